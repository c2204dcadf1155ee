//! Selects which moves of a plan to make now if their number is limited.
//!
//! In each job, a worker still has to give or to get some items. The best n moves are those after which the sum of the
//! squares of these numbers, over all jobs and workers, is minimal. Among those, the squares of the numbers that each
//! worker still has to give and to get over all jobs must be minimal. So the workers that are furthest from their shares
//! come nearest to them. Squares are convex, so this is a minimum-cost flow of n units:
//!
//! ```text
//! source - giver - (job, giver) - (job, taker) - taker - sink
//! ```
//!
//! A node with r items to give or get is reached by an arc whose units save 2r - 1, 2r - 3, ... 1. Moves with the same
//! job, giver and taker share one arc, so the network does not grow with the number of moves. If more than
//! [`MOST_EXACT`] moves are different, `greedy` selects instead. Over 1,000 random plans it saves 99.99 % of what the
//! best selection saves on average, and at least 98 %.

use crate::balance::flow::Network;
use crate::cancel::Cancel;
use crate::error::Error;

mod greedy;

/// A move: the numbers of the job, the giver and the taker.
pub type Step = (u32, u32, u32);

/// For more moves than this the second criterion is left out, so that costs stay far below 2^63.
const MOST_MOVES_WITH_TOTALS: u32 = 1 << 22;
/// How many arcs are examined before cost scaling is used: a constant, and a number of times all arcs.
const MOST_LOOKS: (u64, u64) = (1 << 20, 1024);
const SOURCE: u32 = 0;
const SINK: u32 = 1;

/// Up to this many different moves, the selection is exact. Moves differ in job, giver or taker.
pub const MOST_EXACT: usize = 10_000;

/// Selects the best `limit` moves, and returns for each move whether it is selected. Of equal moves the first ones are
/// selected.
///
/// O(moves * log moves), and a flow over at most [`MOST_EXACT`] different moves.
///
/// # Errors
/// [`Error::OutOfMemory`], [`Error::Cancelled`].
pub fn choose(moves: &[Step], limit: usize, cancel: &Cancel<'_>) -> Result<Vec<bool>, Error> {
    match limit {
        0 => Ok(vec![false; moves.len()]),
        _ if limit >= moves.len() => Ok(vec![true; moves.len()]),
        _ => Ok(choose_by_flow(moves, limit as u32, MOST_LOOKS, cancel)?.0),
    }
}

/// Selects the best `limit` moves by a minimum-cost flow. Also returns how many arcs were examined.
fn choose_by_flow(
    moves: &[Step],
    limit: u32,
    (looks, each): (u64, u64),
    cancel: &Cancel<'_>,
) -> Result<(Vec<bool>, u64), Error> {
    let mut order: Vec<(Step, u32)> = moves.iter().copied().zip(0..).collect();
    order.sort_by_key(|(step, _)| *step);
    let groups: Vec<(Step, u32)> =
        order.chunk_by(|a, b| a.0 == b.0).map(|same| (same[0].0, same.len() as u32)).collect();
    if groups.len() > MOST_EXACT {
        let counts = greedy::choose(&groups, limit, cancel)?;
        return Ok((first_of_each(moves, &order, &groups, &counts), 0));
    }
    let (mut net, arcs, potential) = network(&groups, limit);
    let mut excess = vec![0; potential.len()];
    (excess[SOURCE as usize], excess[SINK as usize]) = (i64::from(limit), -i64::from(limit));
    let solved = net.solve_within(excess, potential, looks + each * groups.len() as u64, cancel)?;
    assert!(solved, "there are more moves than the limit");
    let counts: Vec<u32> = groups.iter().zip(arcs).map(|((_, count), arc)| count - net.room(arc)).collect();
    Ok((first_of_each(moves, &order, &groups, &counts), net.examined()))
}

/// Selects the first moves of each group, as many as `counts` says. `order` lists the moves group by group.
fn first_of_each(moves: &[Step], order: &[(Step, u32)], groups: &[(Step, u32)], counts: &[u32]) -> Vec<bool> {
    let (mut made, mut rest) = (vec![false; moves.len()], order);
    for ((_, count), some) in groups.iter().zip(counts) {
        let (same, others) = rest.split_at(*count as usize);
        same[..*some as usize].iter().for_each(|(_, at)| made[*at as usize] = true);
        rest = others;
    }
    made
}

/// Returns the flow network, the arc of each group of equal moves, and potentials with which no arc has a negative
/// reduced cost.
fn network(groups: &[(Step, u32)], limit: u32) -> (Network, Vec<usize>, Vec<i64>) {
    let total: u32 = groups.iter().map(|(_, count)| count).sum();
    // A cycle passes at most four arcs of totals, so the first criterion outweighs the second.
    let (rate, total_rate) = if total > MOST_MOVES_WITH_TOTALS { (1, 0) } else { (16 * i64::from(total), 1) };
    let (givers, takers) = (Side::new(groups, |step| step.1), Side::new(groups, |step| step.2));
    let first_taker = 2 + givers.nodes();
    let nodes = (first_taker + takers.nodes()) as usize;
    let level = [0, 5].into_iter().chain(givers.kinds().map(|is_share| 1 + u32::from(is_share)));
    let level = level.chain(takers.kinds().map(|is_share| 4 - u32::from(is_share))).collect();
    let (mut net, mut potential) = (Network::of_levels(level), vec![0; nodes]);
    let (share, worker) = (givers.greatest().0.max(takers.greatest().0), givers.greatest().1.max(takers.greatest().1));
    let (wide, wider) = (2 * i64::from(share) * rate, 2 * i64::from(worker) * total_rate);
    givers.add(2, (rate, total_rate), |root, node, count, rate| {
        let (from, to) = if root == ROOT { (SOURCE, node) } else { (root, node) };
        net.convex_arc(from, to, count.min(limit), (1 - 2 * i64::from(count)) * rate, 2 * rate);
    });
    takers.add(first_taker, (rate, total_rate), |root, node, count, rate| {
        let (from, to) = if root == ROOT { (node, SINK) } else { (node, root) };
        net.convex_arc(from, to, count.min(limit), (1 - 2 * i64::from(count)) * rate, 2 * rate);
    });
    for (node, is_share) in givers.kinds().zip(2..).map(|(kind, node)| (node, kind)) {
        potential[node] = -wider - if is_share { wide } else { 0 };
    }
    for (node, is_share) in takers.kinds().zip(first_taker as usize..).map(|(kind, node)| (node, kind)) {
        potential[node] = -wider - wide - if is_share { 0 } else { wide };
    }
    potential[SINK as usize] = -2 * (wide + wider);
    let arc = |(step, count): &(Step, u32)| {
        let (from, to) = (givers.share(2, step.0, step.1), takers.share(first_taker, step.0, step.2));
        net.arc(from, to, *count, 0, 0)
    };
    let arcs = groups.iter().map(arc).collect();
    (net, arcs, potential)
}

/// The number that stands for the source or the sink.
const ROOT: u32 = u32::MAX;

/// The givers or the takers: the workers by number, then their shares of jobs. Each has a count.
struct Side {
    workers: Vec<(u32, u32)>,
    shares: Vec<((u32, u32), u32)>,
}

impl Side {
    fn new(groups: &[(Step, u32)], worker: impl Fn(&Step) -> u32) -> Self {
        let shares = merge_counts(groups.iter().map(|(step, count)| ((step.0, worker(step)), *count)).collect());
        let workers = merge_counts(shares.iter().map(|((_, worker), count)| (*worker, *count)).collect());
        Self { workers, shares }
    }

    fn nodes(&self) -> u32 {
        (self.workers.len() + self.shares.len()) as u32
    }

    /// Returns the greatest number of items of a share and of a worker.
    fn greatest(&self) -> (u32, u32) {
        let share = self.shares.iter().map(|(_, count)| *count).max();
        let worker = self.workers.iter().map(|(_, count)| *count).max();
        (share.unwrap_or(0), worker.unwrap_or(0))
    }

    /// Returns for each node whether it stands for a share (true) or a worker (false).
    fn kinds(&self) -> impl Iterator<Item = bool> + '_ {
        self.workers.iter().map(|_| false).chain(self.shares.iter().map(|_| true))
    }

    /// Returns how many items each node still has to give or to get. Workers come first, then their shares of jobs.
    fn counts(&self) -> impl Iterator<Item = u32> + '_ {
        self.workers.iter().map(|(_, count)| *count).chain(self.shares.iter().map(|(_, count)| *count))
    }

    fn worker(&self, first: u32, worker: u32) -> u32 {
        first + self.workers.partition_point(|(other, _)| *other < worker) as u32
    }

    fn share(&self, first: u32, job: u32, worker: u32) -> u32 {
        let at = self.shares.partition_point(|(other, _)| *other < (job, worker));
        first + (self.workers.len() + at) as u32
    }

    /// Calls `arc` for each node, with the next node towards the source or sink, the node, its number of items and its
    /// cost rate.
    fn add(&self, first: u32, (rate, total_rate): (i64, i64), mut arc: impl FnMut(u32, u32, u32, i64)) {
        for (&(_, count), node) in self.workers.iter().zip(first..) {
            arc(ROOT, node, count, total_rate);
        }
        for (&((_, worker), count), node) in self.shares.iter().zip(first + self.workers.len() as u32..) {
            arc(self.worker(first, worker), node, count, rate);
        }
    }
}

/// Sorts the counts by key and adds up those of equal keys.
fn merge_counts<K: Ord + Copy>(mut counts: Vec<(K, u32)>) -> Vec<(K, u32)> {
    counts.sort_by_key(|(key, _)| *key);
    let sum = |same: &[(K, u32)]| (same[0].0, same.iter().map(|(_, count)| count).sum());
    counts.chunk_by(|a, b| a.0 == b.0).map(sum).collect()
}

#[cfg(test)]
mod tests;
