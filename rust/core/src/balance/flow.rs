//! Minimum-cost flow for small integer costs, by the primal-dual method.
//!
//! It starts from a flow and from potentials with which no residual arc has a negative reduced cost. Some nodes have
//! excess, others lack units. Each phase finds the distance from excess to the nearest node that lacks units, and then
//! sends as many units as possible over arcs with reduced cost zero, layer by layer. The number of phases is the number
//! of different distances, which is small for costs of 0 and 1. If there would be many, `cost_scaling` comes close to
//! the solution first.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::cancel::Cancel;
use crate::error::{filled, Error};

mod cost_scaling;

const FAR: i64 = i64::MAX;
const UNSEEN: u32 = u32::MAX;

/// A network and its flow. Arc `2 i` is the i-th that was added, `2 i + 1` is its reverse.
#[derive(Debug, Clone, Default)]
pub struct Network {
    nodes: usize,
    to: Vec<u32>,
    room: Vec<u32>,
    /// The cost of the next unit, by arc.
    cost: Vec<i64>,
    /// By how much each unit costs more than the one before it, by pair of arcs.
    slope: Vec<i64>,
    /// The level of each node, if every arc leads from one level to the next; otherwise empty.
    level: Vec<u32>,
    examined: u64,
}

impl Network {
    /// Creates a network of `nodes` nodes without arcs.
    pub fn new(nodes: usize) -> Self {
        Self { nodes, ..Self::default() }
    }

    /// Creates a network of levels. Every arc leads from one level to the next, from the only node with excess at level
    /// 0 to a last node.
    ///
    /// Paths along the levels are the shortest ones, so they are used before any search.
    pub fn of_levels(level: Vec<u32>) -> Self {
        Self { nodes: level.len(), level, ..Self::default() }
    }

    /// Adds an arc with capacity for `room` more units, which can also take back `back` units that were already sent.
    /// Returns the number of the arc.
    pub fn arc(&mut self, from: u32, to: u32, room: u32, back: u32, cost: i64) -> usize {
        let arc = self.to.len();
        self.to.extend([to, from]);
        self.room.extend([room, back]);
        self.cost.extend([cost, -cost]);
        self.slope.push(0);
        arc
    }

    /// Adds an arc with capacity for `room` units. The first unit costs `cost`, and each further unit costs `slope`
    /// more than the one before it.
    pub fn convex_arc(&mut self, from: u32, to: u32, room: u32, cost: i64, slope: i64) -> usize {
        let arc = self.arc(from, to, room, 0, cost);
        self.cost[arc + 1] += slope;
        self.slope[arc / 2] = slope;
        arc
    }

    /// Reserves memory for this many additional arcs.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`].
    pub fn reserve(&mut self, arcs: usize) -> Result<(), Error> {
        self.to.try_reserve_exact(2 * arcs)?;
        self.room.try_reserve_exact(2 * arcs)?;
        self.cost.try_reserve_exact(2 * arcs)?;
        self.slope.try_reserve_exact(arcs)?;
        Ok(())
    }

    /// Returns how many arcs were examined so far. This measures the work without a clock.
    pub fn examined(&self) -> u64 {
        self.examined
    }

    /// Returns how many more units an arc can carry.
    pub fn room(&self, arc: usize) -> u32 {
        self.room[arc]
    }

    fn from(&self, arc: usize) -> u32 {
        self.to[arc ^ 1]
    }

    /// Sends units over an arc. The arc must have enough capacity.
    fn carry(&mut self, arc: usize, units: u32) {
        self.room[arc] -= units;
        self.room[arc ^ 1] += units;
        let dearer = self.slope[arc / 2] * i64::from(units);
        self.cost[arc] += dearer;
        self.cost[arc ^ 1] -= dearer;
    }

    /// Sends the excess of all nodes to the nodes that lack units, at minimum cost. Returns false if that is
    /// impossible.
    ///
    /// `excess` must add up to zero. With `potential`, every arc with capacity left must have a reduced cost of at
    /// least zero: `cost + potential[from] - potential[to] >= 0`. O(phases * arcs * (log nodes + rounds)).
    ///
    /// # Errors
    /// [`Error::OutOfMemory`], [`Error::Cancelled`].
    pub fn solve(&mut self, excess: Vec<i64>, potential: Vec<i64>, cancel: &Cancel<'_>) -> Result<bool, Error> {
        debug_assert_eq!(excess.iter().sum::<i64>(), 0);
        Run::new(self, excess, potential, cancel)?.solve(u64::MAX)
    }

    /// Solves the problem as [`Network::solve`] does, but uses cost scaling after `most` examined arcs. This is faster
    /// if there are many different distances.
    ///
    /// If several solutions have the same cost, `most` may decide which one is found. In practice O(most + arcs *
    /// log(greatest cost)).
    ///
    /// # Errors
    /// [`Error::OutOfMemory`], [`Error::Cancelled`].
    pub fn solve_within(
        &mut self,
        excess: Vec<i64>,
        potential: Vec<i64>,
        most: u64,
        cancel: &Cancel<'_>,
    ) -> Result<bool, Error> {
        debug_assert_eq!(excess.iter().sum::<i64>(), 0);
        Run::new(self, excess, potential, cancel)?.solve(most)
    }
}

/// The state of one call of `solve`.
struct Run<'n> {
    net: &'n mut Network,
    start: Vec<u32>,
    arcs: Vec<u32>,
    excess: Vec<i64>,
    potential: Vec<i64>,
    depth: Vec<u32>,
    next: Vec<u32>,
    cancel: &'n Cancel<'n>,
    reported: u64,
}

impl<'n> Run<'n> {
    fn solve(mut self, most: u64) -> Result<bool, Error> {
        let mut near = false;
        while self.excess.iter().any(|e| *e > 0) {
            if !near && self.net.examined >= most {
                self.approach()?;
                near = true;
            }
            if !self.advance()? {
                return Ok(false);
            }
            self.send_along_levels()?;
            while self.build_layers()? {
                self.block()?;
            }
        }
        Ok(true)
    }

    /// Reports the number of arcs that were examined since the last report to [`Cancel::report_steps`].
    fn report(&mut self) -> Result<(), Error> {
        let steps = self.net.examined - self.reported;
        self.reported = self.net.examined;
        self.cancel.report_steps(4 * steps + 8)
    }

    /// Sends as many units as possible along the levels, without a search.
    fn send_along_levels(&mut self) -> Result<(), Error> {
        if self.net.level.is_empty() {
            return Ok(());
        }
        self.depth.copy_from_slice(&self.net.level);
        self.next.copy_from_slice(&self.start[..self.net.nodes]);
        self.block()
    }

    fn new(net: &'n mut Network, excess: Vec<i64>, potential: Vec<i64>, cancel: &'n Cancel<'n>) -> Result<Self, Error> {
        let mut start = filled(0u32, net.nodes + 1)?;
        (0..net.to.len()).for_each(|arc| start[net.from(arc) as usize + 1] += 1);
        for node in 0..net.nodes {
            start[node + 1] += start[node];
        }
        let mut fill = start.clone();
        let mut arcs = filled(0, net.to.len())?;
        for arc in 0..net.to.len() {
            let slot = &mut fill[net.from(arc) as usize];
            arcs[*slot as usize] = arc as u32;
            *slot += 1;
        }
        let depth = vec![UNSEEN; net.nodes];
        let next = start[..net.nodes].to_vec();
        let reported = net.examined;
        Ok(Self { net, start, arcs, excess, potential, depth, next, cancel, reported })
    }

    fn out(&self, node: u32) -> std::ops::Range<usize> {
        self.start[node as usize] as usize..self.start[node as usize + 1] as usize
    }

    fn reduced(&self, arc: usize) -> i64 {
        let (from, to) = (self.net.from(arc) as usize, self.net.to[arc] as usize);
        self.net.cost[arc] + self.potential[from] - self.potential[to]
    }

    /// Raises the potentials by the distance to the nearest node that lacks units (Dijkstra's algorithm). Returns false
    /// if there is no such node.
    ///
    /// Of equally near nodes, the one with the highest number is examined first. In a network of levels this leads to
    /// the last node soonest.
    fn advance(&mut self) -> Result<bool, Error> {
        self.net.examined += self.net.nodes as u64 / 16; // passed over, not examined at
        let mut distance = vec![FAR; self.net.nodes];
        let mut queue = BinaryHeap::new();
        for node in (0..self.net.nodes).filter(|&n| self.excess[n] > 0) {
            distance[node] = 0;
            queue.push((Reverse(0), node as u32));
        }
        while let Some((Reverse(far), node)) = queue.pop() {
            if far > distance[node as usize] {
                continue;
            }
            self.report()?;
            if self.excess[node as usize] < 0 {
                self.raise(&distance, far);
                return Ok(true);
            }
            for slot in self.out(node) {
                self.net.examined += 1;
                let arc = self.arcs[slot] as usize;
                let (to, through) = (self.net.to[arc], far + self.reduced(arc));
                if self.net.room[arc] > 0 && through < distance[to as usize] {
                    distance[to as usize] = through;
                    if through == far && self.excess[to as usize] < 0 {
                        self.raise(&distance, far);
                        return Ok(true);
                    }
                    queue.push((Reverse(through), to));
                }
            }
        }
        Ok(false)
    }

    fn raise(&mut self, distance: &[i64], most: i64) {
        self.potential.iter_mut().zip(distance).for_each(|(potential, far)| *potential += (*far).min(most));
    }

    /// Numbers the nodes by their distance, in arcs with capacity left and reduced cost 0, from the nodes with excess.
    /// Stops at the first layer in which a node lacks units, and returns whether there is one.
    fn build_layers(&mut self) -> Result<bool, Error> {
        self.depth.fill(UNSEEN);
        self.next.copy_from_slice(&self.start[..self.net.nodes]);
        let has_excess = |&node: &u32| self.excess[node as usize] > 0;
        let mut layer: Vec<u32> = (0..self.net.nodes as u32).filter(has_excess).collect();
        layer.iter().for_each(|&node| self.depth[node as usize] = 0);
        for depth in 1.. {
            if layer.is_empty() || layer.iter().any(|&node| self.excess[node as usize] < 0) {
                break;
            }
            let mut beyond = Vec::new();
            for node in layer {
                self.net.examined += self.out(node).len() as u64;
                self.report()?;
                for slot in self.out(node) {
                    let arc = self.arcs[slot] as usize;
                    let to = self.net.to[arc];
                    if self.depth[to as usize] == UNSEEN && self.is_free(arc) {
                        self.depth[to as usize] = depth;
                        beyond.push(to);
                    }
                }
            }
            layer = beyond;
        }
        Ok(!layer.is_empty())
    }

    fn is_free(&self, arc: usize) -> bool {
        self.net.room[arc] > 0 && self.reduced(arc) == 0
    }

    /// Sends units down the layers until no node with excess can send more (a blocking flow).
    fn block(&mut self) -> Result<(), Error> {
        for node in 0..self.net.nodes as u32 {
            while self.excess[node as usize] > 0 && self.send(node) {
                self.report()?;
            }
        }
        self.report()
    }

    /// Sends units from a node down the layers to a node that lacks some, as many as one path can carry. Returns false
    /// if there is no path.
    fn send(&mut self, from: u32) -> bool {
        let mut path: Vec<usize> = Vec::new();
        let mut at = from;
        while self.excess[at as usize] >= 0 {
            match self.step(at) {
                Some(arc) => {
                    path.push(arc);
                    at = self.net.to[arc];
                }
                None => {
                    self.depth[at as usize] = UNSEEN;
                    let Some(arc) = path.pop() else { return false };
                    at = self.net.from(arc);
                }
            }
        }
        let fit = |arc: &usize| if self.net.slope[arc / 2] == 0 { self.net.room[*arc] } else { 1 };
        let ends = self.excess[from as usize].min(-self.excess[at as usize]);
        let units = path.iter().map(fit).fold(u32::try_from(ends).unwrap_or(u32::MAX), u32::min);
        path.into_iter().for_each(|arc| self.net.carry(arc, units));
        self.excess[from as usize] -= i64::from(units);
        self.excess[at as usize] += i64::from(units);
        true
    }

    /// Returns the next arc of a node that leads one layer down.
    fn step(&mut self, node: u32) -> Option<usize> {
        let end = self.start[node as usize + 1];
        let below = self.depth[node as usize].checked_add(1)?;
        while self.next[node as usize] < end {
            self.net.examined += 1;
            let arc = self.arcs[self.next[node as usize] as usize] as usize;
            if self.depth[self.net.to[arc] as usize] == below && self.is_free(arc) {
                return Some(arc);
            }
            self.next[node as usize] += 1;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Random;

    /// Least cost of an assignment by trying all permutations.
    fn brute(costs: &[Vec<i64>], row: usize, used: &mut Vec<bool>) -> i64 {
        if row == costs.len() {
            return 0;
        }
        let mut least = i64::MAX;
        for column in 0..costs.len() {
            if !used[column] {
                used[column] = true;
                least = least.min(costs[row][column] + brute(costs, row + 1, used));
                used[column] = false;
            }
        }
        least
    }

    #[test]
    fn assignment_problems_cost_what_brute_force_finds() {
        let mut random = Random::new(6);
        for round in 0..400 {
            let n = 1 + round % 6;
            let row = |random: &mut Random| (0..n).map(|_| random.below(5) as i64).collect();
            let costs: Vec<Vec<i64>> = (0..n).map(|_| row(&mut random)).collect();
            let mut net = Network::new(2 * n);
            let mut arcs = Vec::new();
            for (i, row) in costs.iter().enumerate() {
                for (j, &cost) in row.iter().enumerate() {
                    arcs.push((net.arc(i as u32, (n + j) as u32, 1, 0, cost), cost));
                }
            }
            let excess = (0..2 * n).map(|v| if v < n { 1 } else { -1 }).collect();
            assert_eq!(net.solve(excess, vec![0; 2 * n], &Cancel::never()), Ok(true));
            let total: i64 = arcs.iter().filter(|a| net.room(a.0) == 0).map(|a| a.1).sum();
            assert_eq!(total, brute(&costs, 0, &mut vec![false; n]));
        }
    }

    #[test]
    fn what_cannot_arrive_is_reported() {
        let mut net = Network::new(3);
        net.arc(0, 1, 5, 0, 1);
        assert_eq!(net.solve(vec![1, 0, -1], vec![0; 3], &Cancel::never()), Ok(false));
    }

    #[test]
    fn an_arc_that_carries_something_can_give_it_back() {
        let mut net = Network::new(2);
        let arc = net.arc(0, 1, 0, 1, 2);
        assert_eq!(net.solve(vec![-1, 1], vec![-2, 0], &Cancel::never()), Ok(true));
        assert_eq!(net.room(arc), 1);
    }
}
