//! The strategy Balanced: even per job, then even over all jobs, then with the fewest moves. The result is optimal.
//!
//! In each job, only the seats can be assigned freely (see `quota`). The cost of a seat is its part of the sum of
//! squared loads. Its gain is one if it lets a worker keep an item. This is a minimum-cost flow from jobs over seats to
//! workers, with convex costs. It is solved in three steps:
//!
//! 1. `start` places the seats greedily, near the optimum for both aims.
//! 2. `equalize` moves seats along chains of jobs until the sum of squares is minimal. It also computes prices that
//!    prove this.
//! 3. `gains` finds, among all placements with the minimal sum, one with the most gains. This is again a flow, with
//!    costs of 0 and 1. The prices describe all these placements.

mod equalize;
mod gains;
mod graph;
mod start;

use crate::balance::quota::{Demand, Share};
use crate::cancel::Cancel;
use crate::error::Error;
use graph::Graph;

/// Decides which able workers get a seat of each job, by position in `able`.
///
/// # Errors
/// [`Error::OutOfMemory`], [`Error::Cancelled`].
pub fn seats(workers: usize, jobs: &[Demand], shares: &[Share], cancel: &Cancel<'_>) -> Result<Vec<Vec<bool>>, Error> {
    let (seated, mut loads) = start::seats(workers, jobs, shares, cancel)?;
    let mut graph = Graph::new(workers, jobs, shares, &seated);
    let price = equalize::equalize(&mut graph, &mut loads, cancel)?;
    gains::maximize_gains(&mut graph, &mut loads, &price, cancel)?;
    Ok(graph.seated(jobs))
}

#[cfg(test)]
mod tests;
