//! The budget as it once was: one arc per unit, one unit after the other. Slow, and what the other one must equal.

use std::collections::BTreeMap;

use super::super::{Step, MOST_MOVES_WITH_TOTALS, SINK, SOURCE};
use crate::balance::flow::Network;
use crate::cancel::Cancel;

/// Says of each move whether it is among the best `limit`. Of equal moves the first are made.
///
/// O(distances * arcs), with a few arcs per move at most.
pub fn choose(moves: &[Step], limit: usize) -> (Vec<bool>, u64) {
    if limit >= moves.len() {
        return (vec![true; moves.len()], 0);
    }
    let mut groups: BTreeMap<Step, u32> = BTreeMap::new();
    moves.iter().for_each(|step| *groups.entry(*step).or_default() += 1);
    let (mut net, arcs, potential) = network(&groups, limit as u32);
    let mut excess = vec![0; potential.len()];
    (excess[SOURCE as usize], excess[SINK as usize]) = (limit as i64, -(limit as i64));
    let solved = net.solve(excess, potential, &Cancel::never()).unwrap();
    assert!(solved, "there are more moves than the limit");
    groups.values_mut().zip(arcs).for_each(|(count, arc)| *count -= net.room(arc));
    (moves.iter().map(|step| groups.get_mut(step).is_some_and(take)).collect(), net.examined())
}

fn take(left: &mut u32) -> bool {
    let some = *left > 0;
    *left -= u32::from(some);
    some
}

/// The network, the arc of each group, and potentials under which no arc costs less than nothing.
fn network(groups: &BTreeMap<Step, u32>, limit: u32) -> (Network, Vec<usize>, Vec<i64>) {
    let total: u32 = groups.values().sum();
    // A cycle passes at most four arcs of totals, so the first criterion outweighs the second.
    let (rate, total_rate) = if total > MOST_MOVES_WITH_TOTALS { (1, 0) } else { (16 * i64::from(total), 1) };
    let (givers, takers) = (Side::new(groups, |step| step.1), Side::new(groups, |step| step.2));
    let first_taker = 2 + givers.nodes();
    let nodes = (first_taker + takers.nodes()) as usize;
    let (mut net, mut potential) = (Network::new(nodes), vec![0; nodes]);
    let (wide, wider) = (2 * i64::from(total) * rate, 2 * i64::from(total) * total_rate);
    givers.add(2, limit, (rate, total_rate), |arc_of, node, cost| {
        let (from, to) = if arc_of == ROOT { (SOURCE, node) } else { (arc_of, node) };
        net.arc(from, to, 1, 0, cost);
    });
    takers.add(first_taker, limit, (rate, total_rate), |arc_of, node, cost| {
        let (from, to) = if arc_of == ROOT { (node, SINK) } else { (node, arc_of) };
        net.arc(from, to, 1, 0, cost);
    });
    for (node, is_share) in givers.kinds().zip(2..).map(|(kind, node)| (node, kind)) {
        potential[node] = -wider - if is_share { wide } else { 0 };
    }
    for (node, is_share) in takers.kinds().zip(first_taker as usize..).map(|(kind, node)| (node, kind)) {
        potential[node] = -wider - wide - if is_share { 0 } else { wide };
    }
    potential[SINK as usize] = -2 * (wide + wider);
    let arc = |(step, count): (&Step, &u32)| {
        let (from, to) = (givers.share(2, step.0, step.1), takers.share(first_taker, step.0, step.2));
        net.arc(from, to, *count, 0, 0)
    };
    let arcs = groups.iter().map(arc).collect();
    (net, arcs, potential)
}

/// Stands for source or sink.
const ROOT: u32 = u32::MAX;

/// Those who give, or those who get: numbered workers first, then their shares of jobs.
struct Side {
    workers: BTreeMap<u32, (u32, u32)>,
    shares: BTreeMap<(u32, u32), (u32, u32)>,
}

impl Side {
    fn new(groups: &BTreeMap<Step, u32>, worker: impl Fn(&Step) -> u32) -> Self {
        let mut side = Self { workers: BTreeMap::new(), shares: BTreeMap::new() };
        for (step, count) in groups {
            side.workers.entry(worker(step)).or_default().1 += count;
            side.shares.entry((step.0, worker(step))).or_default().1 += count;
        }
        let nodes = side.workers.values_mut().chain(side.shares.values_mut());
        nodes.zip(0..).for_each(|(node, number)| node.0 = number);
        side
    }

    fn nodes(&self) -> u32 {
        (self.workers.len() + self.shares.len()) as u32
    }

    /// Whether each node is a share.
    fn kinds(&self) -> impl Iterator<Item = bool> + '_ {
        self.workers.iter().map(|_| false).chain(self.shares.iter().map(|_| true))
    }

    fn share(&self, first: u32, job: u32, worker: u32) -> u32 {
        first + self.shares[&(job, worker)].0
    }

    /// Calls `arc` with each unit arc: the node nearer to source or sink, the node, the cost.
    fn add(&self, first: u32, limit: u32, (rate, total_rate): (i64, i64), mut arc: impl FnMut(u32, u32, i64)) {
        let mut units = |root: u32, node: u32, count: u32, rate: i64| {
            let spared = (0..count.min(limit)).map(|made| 2 * i64::from(count - made) - 1);
            spared.for_each(|spared| arc(root, node, -spared * rate));
        };
        for &(node, count) in self.workers.values() {
            units(ROOT, first + node, count, total_rate);
        }
        for (&(_, worker), &(node, count)) in &self.shares {
            units(first + self.workers[&worker].0, first + node, count, rate);
        }
    }
}
