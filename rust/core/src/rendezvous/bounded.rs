//! EvenlyRendezvous: rendezvous hashing with bounded loads, independent of previous owners.
//!
//! Items in name order go to the best-scoring worker that is not full. A worker is full when it has its fixed number of
//! items and can get no seat, or when it has a seat.

use crate::balance::quota::{Quota, Share};
use crate::cancel::Cancel;
use crate::error::{filled, Error};
use crate::input::{Job, NO_OWNER};
use crate::rendezvous::{for_job, job_hashes, Keys, Mode, Rendezvous};

/// Assigns the items of a job to able workers that are not full, and returns the owners as positions in `able`. O(items
/// x able workers).
///
/// # Errors
/// [`Error::OutOfMemory`], [`Error::Cancelled`].
pub fn place(
    job: &Job<'_>,
    share: &Share,
    workers: &[&str],
    mode: Mode,
    cancel: &Cancel<'_>,
) -> Result<Vec<u32>, Error> {
    if job.able.is_empty() {
        return Ok(vec![NO_OWNER; job.items.len()]);
    }
    let rendezvous = for_job(job, workers, mode)?;
    let prefix = format!("{}:", job.id);
    let hashes = if mode == Mode::Fast { job_hashes(job, &prefix) } else { Vec::new() };
    seat(&rendezvous, share, Keys { hashes: &hashes, prefix: &prefix, texts: &job.items }, 0, cancel)
}

/// Returns the share of this number of new items for workers of these weights. O(workers).
pub fn share_of(items: u32, weights: &[f64]) -> Share {
    Share { quota: Quota::new(items, weights), gain: vec![false; weights.len()] }
}

/// Assigns keys, in the given order, to the best worker that is not full, and returns the owners. `share` is the share
/// of this number of keys. See `Rendezvous::owners_of` for `threads`. O(keys x workers).
///
/// Most keys get their best worker, and these are found first. Only if the best worker of a key is full, the workers
/// that are not full are ranked for it. As long as few workers are full, they are ranked as well.
///
/// # Errors
/// [`Error::OutOfMemory`], [`Error::Cancelled`].
pub fn seat<S: AsRef<str> + Sync>(
    rendezvous: &Rendezvous<S>,
    share: &Share,
    keys: Keys<'_>,
    threads: usize,
    cancel: &Cancel<'_>,
) -> Result<Vec<u32>, Error> {
    let (mut owners, mut scores) = (filled(0, keys.len())?, filled(0, keys.len())?);
    rendezvous.owners_of(keys, threads, &mut owners, &mut scores, cancel)?;
    let mut room = Room::new(share);
    let mut open = rendezvous.subset(room.open(share));
    let (mut text, mut buffer) = (String::new(), Vec::new());
    for (at, owner) in owners.iter_mut().enumerate() {
        if !room.has_room(*owner, share) {
            cancel.report_steps(rendezvous.steps(1) + 16)?;
            let key = keys.key(at, &mut text);
            let mut best = open.owner(key, &mut buffer);
            if !room.has_room(best, share) {
                open = rendezvous.subset(room.open(share));
                best = open.owner(key, &mut buffer);
            }
            *owner = best;
        }
        room.take(*owner, share);
    }
    Ok(owners)
}

/// The workers that are not full. A worker that is full stays full.
struct Room {
    count: Vec<u32>,
    seats: u32,
}

impl Room {
    fn new(share: &Share) -> Self {
        Self { count: vec![0; share.gain.len()], seats: share.quota.seats }
    }

    fn has_room(&self, worker: u32, share: &Share) -> bool {
        let at = worker as usize;
        let (count, floor) = (self.count[at], share.quota.floor[at]);
        count < floor || (count == floor && share.quota.eligible[at] && self.seats > 0)
    }

    fn take(&mut self, worker: u32, share: &Share) {
        let at = worker as usize;
        self.seats -= u32::from(self.count[at] == share.quota.floor[at]);
        self.count[at] += 1;
    }

    /// Returns the workers that are not full, in name order.
    fn open(&self, share: &Share) -> Vec<u32> {
        (0..self.count.len() as u32).filter(|&worker| self.has_room(worker, share)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rendezvous::score::fast_key;

    /// Assigns the items by the definition: in order, each to the best worker that is not full.
    fn naive(rendezvous: &Rendezvous<String>, share: &Share, keys: Keys<'_>) -> Vec<u32> {
        let mut room = Room::new(share);
        let (mut text, mut buffer) = (String::new(), Vec::new());
        let mut place = |at| {
            let open = room.open(share).into_iter();
            let owner = rendezvous.best_of(keys.key(at, &mut text), open, &mut buffer).unwrap();
            room.take(owner, share);
            owner
        };
        (0..keys.len()).map(&mut place).collect()
    }

    #[test]
    fn seating_is_the_naive_definition_for_equal_and_unequal_weights_in_both_modes() {
        let scales: [fn(usize) -> f64; 3] = [|_| 1.0, |n| [1.0, 1.0, 2.0, 7.0][n % 4], |n| 1.0 + n as f64 / 10.0];
        for mode in [Mode::Fast, Mode::Compat] {
            for scale in scales {
                for (workers, items) in [(1, 9), (3, 0), (3, 1), (7, 100), (40, 39), (40, 40), (40, 1000), (90, 200)] {
                    let weights: Vec<f64> = (0..workers).map(scale).collect();
                    let names = (0..workers).map(|n| format!("w{n:02}")).collect();
                    let rendezvous = Rendezvous::new(names, &weights, mode).unwrap();
                    let texts: Vec<String> = (0..items).map(|n| format!("{n}")).collect();
                    let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
                    let hashes: Vec<u64> = texts.iter().map(|text| fast_key(text.as_bytes())).collect();
                    let keys = Keys { hashes: &hashes, prefix: "", texts: &texts };
                    let share = share_of(items as u32, &weights);
                    let seated = seat(&rendezvous, &share, keys, 1, &Cancel::never()).unwrap();
                    assert_eq!(seated, naive(&rendezvous, &share, keys));
                }
            }
        }
    }

    #[test]
    fn loads_are_within_one_for_any_number_of_items() {
        let names: Vec<String> = (0..100).map(|n| format!("i{n:03}")).collect();
        for count in 0..60 {
            let job = Job {
                id: "j",
                items: names[..count].iter().map(String::as_str).collect(),
                able: vec![0, 1, 2, 3, 4, 5, 6],
                weights: vec![1.0; 7],
                previous: vec![NO_OWNER; count],
            };
            let workers = ["a", "b", "c", "d", "e", "f", "g"];
            let owners = place(&job, &Share::new(&job), &workers, Mode::Fast, &Cancel::never()).unwrap();
            let mut load = [0; 7];
            owners.iter().for_each(|&w| load[w as usize] += 1);
            assert!(load.iter().max().unwrap() - load.iter().min().unwrap() <= 1);
        }
    }
}
