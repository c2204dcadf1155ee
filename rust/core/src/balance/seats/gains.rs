//! Finds, among the placements of seats with the least sum of squares, one that keeps the most items on their workers.
//!
//! The prices from `equalize` say exactly which placements have the least sum. Within a job, workers below the highest
//! price of a worker with a seat keep their seats, and workers above it get none. Only seats of workers at that price
//! can change: they are called *tight*. The load of a worker may change by at most one, and only if that costs nothing
//! at its price. Each job first assigns its tight seats so that it keeps as many items as possible, regardless of
//! loads. A flow then brings the loads back into their bounds with as few additional moves as possible.

use super::equalize::NO_PRICE;
use super::graph::Graph;
use crate::balance::flow::Network;
use crate::balance::quota::Loads;
use crate::cancel::Cancel;
use crate::error::Error;

/// Rearranges seats at equal cost so that as many items as possible stay on their workers. O(tight seats) if no chains
/// of jobs are needed.
pub fn maximize_gains(graph: &mut Graph, loads: &mut Loads, price: &[i64], cancel: &Cancel<'_>) -> Result<(), Error> {
    if !graph.gain.contains(&true) {
        return Ok(());
    }
    let bounds = Bounds::new(loads, price);
    let tight = Tight::new(graph, price);
    let preferred: Vec<bool> = tight.jobs.iter().map(|job| prefer_kept_seats(graph, loads, job)).collect();
    let (excess, hub) = bounds.excess(&loads.load);
    if excess.iter().all(|e| *e == 0) {
        return Ok(());
    }
    rearrange(graph, loads, &tight, &preferred, &bounds, (excess, hub), cancel)
}

/// The range of loads that each worker may have at its price.
struct Bounds {
    least: Vec<u64>,
    most: Vec<u64>,
}

impl Bounds {
    fn new(loads: &Loads, price: &[i64]) -> Self {
        let workers = || 0..price.len();
        let less = |w: usize| u64::from(price[w] != NO_PRICE && loads.saving_of_one_fewer(w as u32) == price[w]);
        let more = |w: usize| u64::from(price[w] != NO_PRICE && loads.cost_of_one_more(w as u32) == price[w]);
        Self {
            least: workers().map(|w| loads.load[w] - less(w)).collect(),
            most: workers().map(|w| loads.load[w] + more(w)).collect(),
        }
    }

    /// Returns how far each load is outside its bounds, and the balance of the hub node between all workers.
    fn excess(&self, load: &[u64]) -> (Vec<i64>, i64) {
        let outside = |w: usize| load[w] as i64 - load[w].clamp(self.least[w], self.most[w]) as i64;
        let excess: Vec<i64> = (0..load.len()).map(outside).collect();
        let sum: i64 = excess.iter().sum();
        (excess, -sum)
    }
}

/// The tight seats of each job.
struct Tight {
    jobs: Vec<Vec<u32>>,
}

impl Tight {
    fn new(graph: &Graph, price: &[i64]) -> Self {
        let of = |seat: usize| price[graph.worker[seat] as usize];
        let tight = |job: u32| {
            let taken = graph.of_job(job).filter(|&seat| graph.taken[seat]);
            match taken.map(of).max() {
                None => Vec::new(),
                Some(top) => graph.of_job(job).filter(|&s| of(s) == top).map(|s| s as u32).collect(),
            }
        };
        Self { jobs: (0..graph.jobs() as u32).map(tight).collect() }
    }
}

/// Moves the tight seats of a job to workers that keep an item because of them. Returns whether every tight seat of the
/// job now keeps an item.
fn prefer_kept_seats(graph: &mut Graph, loads: &mut Loads, tight: &[u32]) -> bool {
    let idle = |seat: &&u32| graph.taken[**seat as usize] && !graph.gain[**seat as usize];
    let idle: Vec<u32> = tight.iter().filter(idle).copied().collect();
    let missed = |seat: &&u32| !graph.taken[**seat as usize] && graph.gain[**seat as usize];
    let missed: Vec<u32> = tight.iter().filter(missed).copied().collect();
    for (&from, &to) in idle.iter().zip(&missed) {
        graph.taken[from as usize] = false;
        graph.taken[to as usize] = true;
        loads.load[graph.worker[from as usize] as usize] -= 1;
        loads.load[graph.worker[to as usize] as usize] += 1;
    }
    idle.len() <= missed.len()
}

/// Moves tight seats until all loads are within their bounds, with the fewest items that lose their worker.
fn rearrange(
    graph: &mut Graph,
    loads: &mut Loads,
    tight: &Tight,
    preferred: &[bool],
    bounds: &Bounds,
    (mut excess, hub_excess): (Vec<i64>, i64),
    cancel: &Cancel<'_>,
) -> Result<(), Error> {
    let (workers, jobs) = (graph.workers() as u32, graph.jobs() as u32);
    let hub = workers + jobs;
    let mut net = Network::new(hub as usize + 1);
    let mut arcs = Vec::new();
    for (job, seats) in (workers..).zip(&tight.jobs) {
        for &seat in seats {
            let (worker, taken) = (graph.worker[seat as usize], u32::from(graph.taken[seat as usize]));
            let cost = -i64::from(graph.gain[seat as usize]);
            arcs.push((net.arc(job, worker, 1 - taken, taken, cost), seat));
        }
    }
    for worker in 0..workers {
        let (least, most) = (bounds.least[worker as usize], bounds.most[worker as usize]);
        let load = loads.load[worker as usize].clamp(least, most);
        net.arc(worker, hub, (most - load) as u32, (load - least) as u32, 0);
    }
    excess.resize(hub as usize, 0);
    excess.push(hub_excess);
    let mut potential = vec![0; hub as usize + 1];
    for (job, full) in preferred.iter().enumerate() {
        potential[workers as usize + job] = i64::from(*full);
    }
    let solved = net.solve(excess, potential, cancel)?;
    assert!(solved, "the placement that `equalize` found is one way to settle");
    for (arc, seat) in arcs {
        let taken = net.room(arc) == 0;
        let worker = graph.worker[seat as usize] as usize;
        loads.load[worker] = loads.load[worker] + u64::from(taken) - u64::from(graph.taken[seat as usize]);
        graph.taken[seat as usize] = taken;
    }
    Ok(())
}
