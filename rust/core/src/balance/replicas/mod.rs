//! Replicas over zones: places each item on several workers, evenly over racks or zones, with few moves.
//!
//! The aims, each optimal within the ones before it:
//!
//! 1. Every item gets the requested number of different workers, or all workers if there are fewer.
//! 2. The numbers of replicas of an item in two zones differ by at most one. A zone with fewer workers than that has
//!    the item on all of them. No zone has two replicas of an item if there are as many zones as replicas.
//! 3. The sum of squared worker loads is minimal. A load counts inversely to the weight of the worker.
//! 4. The number of replicas on workers that did not have them is minimal.
//!
//! Because of aim 2, each item has `base` replicas in each zone, and one more in `extras` of the open zones. Aim 3 then
//! only decides how many replicas each worker has, which a greedy choice finds (`loads`). Any loads without an item
//! twice on a worker can be reached. Aim 4 is a minimum-cost flow with costs of 0 and 1, from items over their zones to
//! workers, within the loads of equal cost (`Flow` below).

mod loads;

use crate::balance::flow::Network;
use crate::cancel::Cancel;
use crate::error::Error;
use loads::{Loads, Range};

/// A placement problem: items with replicas, workers with zones.
#[derive(Debug, Clone, Default)]
pub struct Replicas {
    /// How many different workers each item asks for.
    pub copies: u32,
    /// The zone of each worker; zones are numbered from zero. Workers are numbered in name order.
    pub zone: Vec<u32>,
    /// One weight per worker, finite and greater than zero.
    pub weights: Vec<f64>,
    /// The workers that had each item, each once; items are in name order.
    pub previous: Vec<Vec<u32>>,
}

/// How the replicas of each item are spread over the zones.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Spread {
    /// The least number of replicas of an item in each zone.
    pub base: Vec<u32>,
    /// Whether each zone can have one more replica of an item.
    pub open: Vec<bool>,
    /// How many more replicas of an item the open zones get, at most one each.
    pub extras: u32,
}

impl Spread {
    fn new(copies: u32, zone: &[u32]) -> Self {
        let zones = zone.iter().max().map_or(0, |last| *last as usize + 1);
        let mut sizes = vec![0; zones];
        zone.iter().for_each(|zone| sizes[*zone as usize] += 1);
        let copies = copies.min(zone.len() as u32);
        let at = |level: u32| sizes.iter().map(|size: &u32| (*size).min(level)).sum::<u32>();
        let level = (0..=copies).rev().find(|level| at(*level) <= copies).unwrap_or(0);
        let base: Vec<u32> = sizes.iter().map(|size| (*size).min(level)).collect();
        Self { extras: copies - at(level), open: sizes.iter().map(|size| *size > level).collect(), base }
    }
}

/// The most pairs of an item and a worker. Each takes some 64 bytes while replicas are placed.
pub const MOST_PAIRS: usize = 1 << 25;

/// Returns the workers of each item, ascending. Takes O(items * workers) memory, and a few passes over it.
///
/// # Errors
/// [`Error::Invalid`] for more than [`MOST_PAIRS`], [`Error::OutOfMemory`], [`Error::Cancelled`].
pub fn place(problem: &Replicas, cancel: &Cancel<'_>) -> Result<Vec<Vec<u32>>, Error> {
    let (items, workers) = (problem.previous.len(), problem.zone.len());
    if items.saturating_mul(workers) > MOST_PAIRS {
        return Err(Error::Invalid(format!(
            "{items} items x {workers} workers are more than {MOST_PAIRS} pairs; place fewer items at a time"
        )));
    }
    let spread = Spread::new(problem.copies, &problem.zone);
    let loads = Loads::new(problem, &spread, cancel)?;
    let mut flow = Flow::new(problem, &spread, &loads, cancel)?;
    flow.solve(cancel)
}

/// The network: item - (item, zone) - worker - zone - hub, in this order of nodes.
struct Flow<'p> {
    problem: &'p Replicas,
    net: Network,
    excess: Vec<i64>,
    pairs: Vec<Pair>,
}

/// An item, a worker, and the arc over which the item comes to the worker.
struct Pair {
    item: u32,
    worker: u32,
    arc: usize,
}

impl<'p> Flow<'p> {
    fn new(problem: &'p Replicas, spread: &Spread, loads: &Loads, cancel: &Cancel<'_>) -> Result<Self, Error> {
        let (items, zones, workers) = (problem.previous.len(), spread.base.len(), problem.zone.len());
        let nodes = items + items * zones + workers + zones + 1;
        let mut flow = Self { problem, net: Network::new(nodes), excess: vec![0; nodes], pairs: Vec::new() };
        flow.net.reserve(items * (zones + workers) + workers + zones)?;
        flow.pairs.try_reserve_exact(items * workers)?;
        let first_worker = items + items * zones;
        for item in 0..items {
            cancel.report_steps(8 * (zones + workers) as u64)?;
            flow.add_item(item, spread, items, first_worker);
        }
        flow.add_loads(loads, first_worker, first_worker + workers);
        Ok(flow)
    }

    /// Adds an item to the network. It starts on all workers that had it, and the excess of the nodes says by how much
    /// that is wrong.
    fn add_item(&mut self, item: usize, spread: &Spread, items: usize, first_worker: usize) {
        let zones = spread.base.len();
        self.excess[item] = i64::from(spread.extras);
        for zone in 0..zones {
            let node = items + item * zones + zone;
            self.excess[node] += i64::from(spread.base[zone]);
            if spread.open[zone] {
                self.net.arc(item as u32, node as u32, 1, 0, 0);
            }
        }
        let mut had = vec![false; self.problem.zone.len()];
        self.problem.previous[item].iter().for_each(|worker| had[*worker as usize] = true);
        for (worker, &had) in had.iter().enumerate() {
            let (node, to) = (items + item * zones + self.problem.zone[worker] as usize, first_worker + worker);
            let arc = self.net.arc(node as u32, to as u32, u32::from(!had), u32::from(had), -i64::from(had));
            self.excess[node] -= i64::from(had);
            self.excess[to] += i64::from(had);
            self.pairs.push(Pair { item: item as u32, worker: worker as u32, arc });
        }
    }

    /// Adds the loads to the network. Workers start at their smallest load. Zones whose total may change are connected
    /// to the hub.
    fn add_loads(&mut self, loads: &Loads, first_worker: usize, first_zone: usize) {
        let hub = self.excess.len() - 1;
        for (worker, Range { least, most }) in loads.workers.iter().enumerate() {
            let (node, zone) = (first_worker + worker, first_zone + self.problem.zone[worker] as usize);
            self.net.arc(node as u32, zone as u32, most - least, 0, 0);
            self.excess[node] -= i64::from(*least);
            self.excess[zone] += i64::from(*least);
        }
        for (zone, &(total, varies)) in loads.zones.iter().enumerate() {
            let node = first_zone + zone;
            if varies {
                self.net.arc(node as u32, hub as u32, u32::MAX, 0, 0);
            }
            self.excess[if varies { hub } else { node }] -= total as i64;
        }
    }

    fn solve(&mut self, cancel: &Cancel<'_>) -> Result<Vec<Vec<u32>>, Error> {
        let potential = vec![0; self.excess.len()];
        let solved = self.net.solve(std::mem::take(&mut self.excess), potential, cancel)?;
        assert!(solved, "items can be dealt out for the loads that `loads` found");
        let mut owners = vec![Vec::new(); self.problem.previous.len()];
        for pair in self.pairs.iter().filter(|pair| self.net.room(pair.arc) == 0) {
            owners[pair.item as usize].push(pair.worker);
        }
        Ok(owners)
    }
}

#[cfg(test)]
mod tests;
