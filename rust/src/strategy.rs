//! The four strategies by name, over the same input.

use crate::input::{InputError, Job, NOBODY};
use crate::quota::Share;
use crate::rendezvous::Mode;
use crate::{balanced, even, place, rendezvous, spread};

/// How items are placed; see the module of each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Strategy {
    /// Each item alone, by rendezvous hashing.
    Rendezvous,
    /// Rendezvous hashing with even loads per job.
    EvenlyRendezvous,
    /// Even loads per job, fewest moves.
    EvenlySpread,
    /// Even loads per job, then over all jobs, then fewest moves.
    Balanced,
}

impl Strategy {
    /// Reads "rendezvous", "evenly-rendezvous", "evenly-spread" or "balanced".
    pub fn parse(name: &str) -> Result<Self, InputError> {
        match name {
            "rendezvous" => Ok(Self::Rendezvous),
            "evenly-rendezvous" => Ok(Self::EvenlyRendezvous),
            "evenly-spread" => Ok(Self::EvenlySpread),
            "balanced" => Ok(Self::Balanced),
            _ => Err(InputError(format!(
                "unknown strategy '{name}'; use 'rendezvous', 'evenly-rendezvous', 'evenly-spread' or 'balanced'"
            ))),
        }
    }

    /// Owners of all items, per job as positions in `able`; `NOBODY` throughout for a job that nobody can run.
    ///
    /// `workers` ascending and unique, `jobs` ascending by id and unique. `mode` matters to rendezvous alone.
    pub fn place(self, workers: &[&str], jobs: &[Job<'_>], mode: Mode) -> Result<Vec<Vec<u32>>, InputError> {
        let shares: Vec<Share> = match self {
            Self::Rendezvous => return jobs.iter().map(|job| hash(job, workers, mode)).collect(),
            _ => jobs.iter().map(Share::new).collect(),
        };
        let seated = match self {
            Self::EvenlySpread => spread::seats(workers.len(), jobs, &shares),
            Self::Balanced => balanced::seats(workers.len(), jobs, &shares),
            _ => {
                let place = |(job, share)| even::place(job, share, workers, mode);
                return jobs.iter().zip(&shares).map(place).collect();
            }
        };
        let place = |((job, share), seated): ((_, _), &Vec<bool>)| place::items(job, share, seated);
        Ok(jobs.iter().zip(&shares).zip(&seated).map(place).collect())
    }
}

fn hash(job: &Job<'_>, workers: &[&str], mode: Mode) -> Result<Vec<u32>, InputError> {
    if job.able.is_empty() {
        return Ok(vec![NOBODY; job.items.len()]);
    }
    rendezvous::place(job, workers, mode)
}
