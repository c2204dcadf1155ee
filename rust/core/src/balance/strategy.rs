//! The four strategies by name, over the same input.

use super::{moves, seats, spread};
use crate::balance::quota::{Demand, Share};
use crate::cancel::Cancel;
use crate::error::Error;
use crate::input::{Job, NOBODY};
use crate::rendezvous::Mode;
use crate::rendezvous::{self, bounded};

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
    pub fn parse(name: &str) -> Result<Self, Error> {
        match name {
            "rendezvous" => Ok(Self::Rendezvous),
            "evenly-rendezvous" => Ok(Self::EvenlyRendezvous),
            "evenly-spread" => Ok(Self::EvenlySpread),
            "balanced" => Ok(Self::Balanced),
            _ => Err(Error::Invalid(format!(
                "unknown strategy '{name}'; use 'rendezvous', 'evenly-rendezvous', 'evenly-spread' or 'balanced'"
            ))),
        }
    }

    /// Owners of all items, per job as positions in `able`; `NOBODY` throughout for a job that nobody can run.
    ///
    /// `workers` ascending and unique, `jobs` ascending by id and unique. `mode` matters to rendezvous alone.
    ///
    /// # Errors
    /// [`Error::Invalid`] for bad weights, [`Error::OutOfMemory`], [`Error::Cancelled`].
    pub fn place(
        self,
        workers: &[&str],
        jobs: &[Job<'_>],
        mode: Mode,
        cancel: &Cancel<'_>,
    ) -> Result<Vec<Vec<u32>>, Error> {
        match self {
            Self::Rendezvous => jobs.iter().map(|job| hash(job, workers, mode, cancel)).collect(),
            Self::EvenlyRendezvous => {
                let place = |job| bounded::place(job, &Share::new(job), workers, mode, cancel);
                jobs.iter().map(place).collect()
            }
            Self::EvenlySpread | Self::Balanced => {
                let demands: Vec<Demand> = jobs.iter().map(Demand::new).collect();
                let sizes = self.sizes(workers.len(), &demands, cancel)?;
                Ok(jobs.iter().zip(&sizes).map(|(job, sizes)| moves::items(job, sizes)).collect())
            }
        }
    }

    /// How many items each able worker of each job gets, for the two strategies that keep what was before.
    ///
    /// Any strategy but `EvenlySpread` counts as `Balanced`.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`], [`Error::Cancelled`].
    pub fn sizes(self, workers: usize, demands: &[Demand], cancel: &Cancel<'_>) -> Result<Vec<Vec<u32>>, Error> {
        let shares: Vec<Share> = demands.iter().map(Share::of).collect();
        let seated = match self {
            Self::EvenlySpread => spread::seats(workers, demands, &shares, cancel)?,
            _ => seats::seats(workers, demands, &shares, cancel)?,
        };
        Ok(shares.iter().zip(&seated).map(|(share, seated)| share.sizes(seated)).collect())
    }
}

fn hash(job: &Job<'_>, workers: &[&str], mode: Mode, cancel: &Cancel<'_>) -> Result<Vec<u32>, Error> {
    if job.able.is_empty() {
        return Ok(vec![NOBODY; job.items.len()]);
    }
    rendezvous::place(job, workers, mode, cancel)
}
