//! Selects moves for large plans greedily: always the move that improves most at present, in O(n log n).
//!
//! A move improves less and less as others are made. The value of a move in the heap is therefore never too small. A
//! move is made if its value is still correct, and otherwise put back with the current value. Each (job, giver) has a
//! separate heap, so that a move of a giver does not make the values of all its other moves outdated.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::{Side, Step};
use crate::cancel::Cancel;
use crate::error::Error;

/// How often a move is put back into its heap, on average. Afterwards moves are taken as they come.
const RETURNS: usize = 8;

/// What a move improves: the items that its giver and its taker still have to give and get in the job, then over all
/// jobs.
type Spares = (u32, u32);

/// Returns how many moves of each group to make. O(n log n) for n moves.
pub(super) fn choose(groups: &[(Step, u32)], limit: u32, cancel: &Cancel<'_>) -> Result<Vec<u32>, Error> {
    let mut plan = Plan::new(groups);
    let mut made = vec![0; groups.len()];
    let mut returns = RETURNS * groups.iter().map(|(_, count)| *count as usize).sum::<usize>();
    let mut left = limit;
    while left > 0 {
        cancel.report_steps(64)?;
        let Reverse(giver) = plan.givers.pop().expect("there are more moves than the limit").1;
        let (spares, Reverse(group)) = plan.groups[giver].pop().expect("a giver in the heap has moves");
        let group = group as usize;
        if spares > plan.taker_spares(group) && returns > 0 {
            returns -= 1;
        } else {
            plan.take(group);
            made[group] += 1;
            left -= 1;
        }
        if made[group] < groups[group].1 {
            let spares = plan.taker_spares(group);
            plan.groups[giver].push((spares, Reverse(group as u32)));
        }
        plan.push(giver);
    }
    Ok(made)
}

struct Plan {
    /// The nodes of each group: of its giver, of its taker, and of both over all jobs.
    nodes: Vec<[usize; 4]>,
    /// The items that each node still has to give or get.
    left: Vec<u32>,
    /// The groups of each (job, giver), by what they improve for their takers.
    groups: Vec<BinaryHeap<(Spares, Reverse<u32>)>>,
    /// Each (job, giver) that has groups, by what its best one improves.
    givers: BinaryHeap<(Spares, Reverse<usize>)>,
}

impl Plan {
    fn new(groups: &[(Step, u32)]) -> Self {
        let (givers, takers) = (Side::new(groups, |step| step.1), Side::new(groups, |step| step.2));
        let node = |(step, _): &(Step, u32)| {
            let first = givers.nodes();
            let nodes = [
                givers.share(0, step.0, step.1),
                takers.share(first, step.0, step.2),
                givers.worker(0, step.1),
                takers.worker(first, step.2),
            ];
            nodes.map(|node| node as usize)
        };
        let nodes: Vec<[usize; 4]> = groups.iter().map(node).collect();
        let left: Vec<u32> = givers.counts().chain(takers.counts()).collect();
        let shares = givers.nodes() as usize;
        let mut plan = Self { nodes, left, groups: vec![BinaryHeap::new(); shares], givers: BinaryHeap::new() };
        for group in 0..groups.len() {
            let spares = plan.taker_spares(group);
            plan.groups[plan.nodes[group][0]].push((spares, Reverse(group as u32)));
        }
        (0..shares).for_each(|giver| plan.push(giver));
        plan
    }

    /// Returns how much a move improves for its taker: in the job, and over all jobs.
    fn taker_spares(&self, group: usize) -> Spares {
        let [_, taker, from, to] = self.nodes[group];
        (self.left[taker], self.left[from] + self.left[to])
    }

    fn take(&mut self, group: usize) {
        for node in self.nodes[group] {
            self.left[node] -= 1;
        }
    }

    /// Puts a giver back into the heap, unless it has no more moves.
    fn push(&mut self, giver: usize) {
        if let Some(((taker, total), _)) = self.groups[giver].peek() {
            self.givers.push(((self.left[giver] + taker, *total), Reverse(giver)));
        }
    }
}
