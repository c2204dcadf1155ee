//! The strategy EvenlySpread: even per job, with the fewest moves.
//!
//! In each job, a seat avoids a move exactly if the worker owned more items than its fixed number. Such workers get
//! seats first. Among equals, the worker with the least load over all jobs so far comes first, then the first in name
//! order.

use crate::balance::quota::{Demand, Loads, Share};
use crate::cancel::Cancel;
use crate::error::Error;

/// Decides which able workers get a seat of each job, by position in `able`. O(sum of able workers, each job sorted).
///
/// # Errors
/// [`Error::Cancelled`].
pub fn seats(workers: usize, jobs: &[Demand], shares: &[Share], cancel: &Cancel<'_>) -> Result<Vec<Vec<bool>>, Error> {
    let mut loads = Loads::new(workers, jobs, shares);
    let seat = |(job, share): (&Demand, &Share)| {
        cancel.report_steps(8 * job.able.len() as u64)?;
        Ok(seat_next(job, share, &mut loads))
    };
    jobs.iter().zip(shares).map(seat).collect()
}

/// Assigns the seats of the next job in name order, and adds them to the loads.
///
/// At the first job, `loads` must contain the fixed numbers of items of all jobs.
pub fn seat_next(job: &Demand, share: &Share, loads: &mut Loads) -> Vec<bool> {
    seat_job(job, share, loads, |_, _| true)
}

/// Assigns the seats of one job: first to workers that keep an item because of a seat and for which `keeps` returns
/// true, then by cost, then by name.
pub(crate) fn seat_job(
    job: &Demand,
    share: &Share,
    loads: &mut Loads,
    keeps: impl Fn(&Loads, u32) -> bool,
) -> Vec<bool> {
    // One number per candidate, so that it sorts fast: costs stay below 2^62.
    let rank = |at: u32| {
        let (worker, gain) = (job.able[at as usize], share.gain[at as usize]);
        let later = !(gain && keeps(loads, worker));
        let cost = loads.cost_of_one_more(worker) as u128;
        u128::from(later) << 127 | cost << 64 | u128::from(!gain) << 32 | u128::from(at)
    };
    let mut ranked: Vec<u128> = Vec::with_capacity(share.gain.len());
    for at in share.candidates() {
        ranked.push(rank(at));
    }
    let seats = share.quota.seats as usize;
    if seats < ranked.len() && seats > 0 {
        ranked.select_nth_unstable(seats);
        ranked.truncate(seats);
    }
    let mut seated = vec![false; job.able.len()];
    for at in ranked.into_iter().map(|rank| rank as u32 as usize) {
        seated[at] = true;
        loads.load[job.able[at] as usize] += 1;
    }
    seated
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seats_that_spare_no_move_go_to_the_least_loaded() {
        let job = Demand { items: 1, able: vec![0, 1, 2], weights: vec![1.0; 3], held: vec![0; 3] };
        let jobs = vec![job; 3];
        let shares: Vec<Share> = jobs.iter().map(Share::of).collect();
        let seated = seats(3, &jobs, &shares, &Cancel::never()).unwrap();
        assert_eq!(seated, [[true, false, false], [false, true, false], [false, false, true]]);
    }
}
