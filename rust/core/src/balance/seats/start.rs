//! Computes a first placement of the seats that is near the least sum of squares and keeps most items on their workers.

use crate::balance::quota::{Demand, Loads, Share};
use crate::balance::spread::seat_job;
use crate::cancel::Cancel;
use crate::error::Error;

/// The second pass is no good start if its loads differ by more than this from those of the first, on average.
const FAR_PER_WORKER: u64 = 2;

/// Returns the seats by job and position in `able`, and the resulting loads. O(sum of able workers, each job sorted).
///
/// A first pass considers only loads. A second pass prefers workers that keep an item because of a seat, unless their
/// load would be more than one item above that of the first pass. If nothing has changed, this is the current
/// placement. If the previous placement was far from even, it would take long to equalize it, so the result of the
/// first pass is used.
pub fn seats(
    workers: usize,
    jobs: &[Demand],
    shares: &[Share],
    cancel: &Cancel<'_>,
) -> Result<(Vec<Vec<bool>>, Loads), Error> {
    let mut order: Vec<usize> = (0..jobs.len()).collect();
    order.sort_by_key(|&job| (jobs[job].able.len(), job));
    let bare = Loads::new(workers, jobs, shares);
    let (seated, level) = assign_seats(&order, jobs, shares, bare.clone(), |_, _| false, cancel)?;
    if shares.iter().all(|share| !share.gain.contains(&true)) {
        return Ok((seated, level));
    }
    let below = |loads: &Loads, worker: u32| loads.load[worker as usize] <= level.load[worker as usize];
    let (kept, loads) = assign_seats(&order, jobs, shares, bare, below, cancel)?;
    let apart: u64 = loads.load.iter().zip(&level.load).map(|(a, b)| a.abs_diff(*b)).sum();
    if apart > FAR_PER_WORKER * workers as u64 {
        return Ok((seated, level));
    }
    Ok((kept, loads))
}

fn assign_seats(
    order: &[usize],
    jobs: &[Demand],
    shares: &[Share],
    mut loads: Loads,
    keeps: impl Fn(&Loads, u32) -> bool,
    cancel: &Cancel<'_>,
) -> Result<(Vec<Vec<bool>>, Loads), Error> {
    let mut seated = vec![Vec::new(); jobs.len()];
    for &job in order {
        cancel.report_steps(8 * jobs[job].able.len() as u64)?;
        seated[job] = seat_job(&jobs[job], &shares[job], &mut loads, &keeps);
    }
    Ok((seated, loads))
}
