//! EvenlySpread: even per job, and the fewest moves that evenness allows.
//!
//! Per job, a seat spares a move exactly where the worker held more than its whole share; so seats go to those workers
//! first. Among equals, the least loaded over all jobs so far, then the first in name order.

use crate::input::Job;
use crate::quota::{Loads, Share};

/// Who gets the seats of each job, by position in `able`. O(sum of able workers, each job sorted).
pub fn seats(workers: usize, jobs: &[Job<'_>], shares: &[Share]) -> Vec<Vec<bool>> {
    let mut loads = Loads::new(workers, jobs, shares);
    let seat = |(job, share)| seat_job(job, share, &mut loads, |_, _| true);
    jobs.iter().zip(shares).map(seat).collect()
}

/// Gives the seats of one job: first to those with a gain for whom `keeps` holds, then by cost, then by name.
pub(crate) fn seat_job(
    job: &Job<'_>,
    share: &Share,
    loads: &mut Loads,
    keeps: impl Fn(&Loads, u32) -> bool,
) -> Vec<bool> {
    let rank = |at: u32| {
        let worker = job.able[at as usize];
        let first = share.gain[at as usize] && keeps(loads, worker);
        (!first, loads.taking(worker), !share.gain[at as usize], at)
    };
    let mut ranked: Vec<_> = share.candidates().map(rank).collect();
    let seats = share.quota.seats as usize;
    if seats < ranked.len() && seats > 0 {
        ranked.select_nth_unstable(seats);
        ranked.truncate(seats);
    }
    let mut seated = vec![false; job.able.len()];
    for (_, _, _, at) in ranked {
        seated[at as usize] = true;
        loads.load[job.able[at as usize] as usize] += 1;
    }
    seated
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seats_that_spare_no_move_go_to_the_least_loaded() {
        let job = |id| Job {
            id,
            items: vec!["x"],
            able: vec![0, 1, 2],
            weights: vec![1.0; 3],
            previous: vec![crate::input::NOBODY],
        };
        let jobs = [job("a"), job("b"), job("c")];
        let shares: Vec<Share> = jobs.iter().map(Share::new).collect();
        let seated = seats(3, &jobs, &shares);
        assert_eq!(seated, [[true, false, false], [false, true, false], [false, false, true]]);
    }
}
