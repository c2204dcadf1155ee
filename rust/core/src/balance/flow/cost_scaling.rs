//! Cost scaling by push and relabel: comes close to the minimum cost in few steps, also for arcs with convex costs.
//!
//! A flow is optimal up to `e` if no arc with capacity left has a reduced cost below `-e`. Each round divides `e` and
//! restores this condition: units with a negative reduced cost are sent, and nodes that then have excess send it on,
//! after lowering their potential until some arc has a negative reduced cost. An arc carries all such units at once, so
//! the time depends neither on the number of units nor much on the costs. Method: Goldberg and Tarjan, "Finding
//! minimum-cost circulations by successive approximation", 1990.

use std::collections::VecDeque;

use super::Run;
use crate::error::Error;

const DIVISOR: i64 = 8;
/// Potentials stay above this value, so that sums of a few of them cannot overflow.
const LOWEST: i64 = -(1 << 60);
/// A round ends early after so many examinations per arc. The exact method then does the rest.
const LOOKS: u64 = 512;

impl Run<'_> {
    /// Improves the flow by cost scaling, so that only few short distances are left for the exact search. Afterwards,
    /// no arc with capacity left has a negative reduced cost.
    pub(super) fn approach(&mut self) -> Result<(), Error> {
        let greatest = (0..self.net.to.len()).filter(|arc| self.net.room[*arc] > 0).map(|arc| self.net.cost[arc].abs());
        let mut within = greatest.max().unwrap_or(0) / DIVISOR;
        while within > 0 && self.refine(within)? {
            within /= DIVISOR;
        }
        self.saturate_negative_arcs();
        Ok(())
    }

    /// Sends units over each arc until no unit with a negative reduced cost is left.
    fn saturate_negative_arcs(&mut self) {
        self.net.examined += self.net.to.len() as u64;
        for arc in 0..self.net.to.len() {
            let units = self.negative_cost_units(arc);
            if units > 0 {
                self.push(arc, units);
            }
        }
    }

    /// Returns how many units of an arc have a negative reduced cost.
    fn negative_cost_units(&self, arc: usize) -> u32 {
        let (room, cost) = (self.net.room[arc], self.reduced(arc));
        match self.net.slope[arc / 2] {
            _ if room == 0 || cost >= 0 => 0,
            0 => room,
            slope => i64::from(room).min((slope - 1 - cost) / slope) as u32,
        }
    }

    fn push(&mut self, arc: usize, units: u32) {
        let (from, to) = (self.net.from(arc), self.net.to[arc]);
        self.net.carry(arc, units);
        self.excess[from as usize] -= i64::from(units);
        self.excess[to as usize] += i64::from(units);
    }

    /// Improves the flow until its cost is optimal up to `within` for each unit and arc. Returns false if that takes
    /// too many steps, or if potentials would overflow.
    fn refine(&mut self, within: i64) -> Result<bool, Error> {
        self.saturate_negative_arcs();
        self.next.copy_from_slice(&self.start[..self.net.nodes]);
        let mut active: VecDeque<u32> = (0..self.net.nodes as u32).filter(|&n| self.excess[n as usize] > 0).collect();
        let last = self.net.examined + LOOKS * self.net.to.len() as u64;
        while let Some(node) = active.pop_front() {
            self.report()?;
            if self.net.examined > last || !self.discharge(node, within, &mut active) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Sends all excess of a node over arcs with a negative reduced cost. Returns false if no arc can carry it, or if
    /// potentials would overflow.
    fn discharge(&mut self, node: u32, within: i64, active: &mut VecDeque<u32>) -> bool {
        let at = node as usize;
        while self.excess[at] > 0 {
            if self.next[at] == self.start[at + 1] {
                if !self.relabel(node, within) {
                    return false;
                }
                self.next[at] = self.start[at];
            }
            self.net.examined += 1;
            let arc = self.arcs[self.next[at] as usize] as usize;
            let units = i64::from(self.negative_cost_units(arc)).min(self.excess[at]) as u32;
            if units == 0 {
                self.next[at] += 1;
                continue;
            }
            let to = self.net.to[arc];
            let before = self.excess[to as usize];
            self.push(arc, units);
            if before <= 0 && self.excess[to as usize] > 0 {
                active.push_back(to);
            }
        }
        true
    }

    /// Lowers the potential of a node until its cheapest arc has a reduced cost of `-within`. Returns false if
    /// potentials would overflow.
    fn relabel(&mut self, node: u32, within: i64) -> bool {
        self.net.examined += self.out(node).len() as u64;
        let arcs = self.out(node).map(|slot| self.arcs[slot] as usize).filter(|arc| self.net.room[*arc] > 0);
        let Some(least) = arcs.map(|arc| self.reduced(arc)).min() else { return false };
        self.potential[node as usize] -= least + within;
        self.potential[node as usize] > LOWEST
    }
}
