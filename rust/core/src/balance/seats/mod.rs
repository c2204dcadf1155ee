//! Balanced: even per job, then even over all jobs, then the fewest moves; exactly.
//!
//! Per job the whole shares are fixed and only the seats are open (see `quota`), so the problem is which workers get
//! them. The cost of a seat is its part in the sum of squared loads; its gain is one if it keeps an item in place. That
//! is a minimum-cost flow from jobs over seats to workers, with convex costs. It is solved in three steps:
//!
//! 1. `start`: a greedy placement of the seats that is near the optimum of both aims;
//! 2. `equalize`: moves seats along chains of jobs until the sum of squares is least, and leaves prices that prove it;
//! 3. `gains`: among all placements that those prices allow, which are all that have the least sum, finds the one with
//!    the most gains: a flow again, with costs of 0 and 1.

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
