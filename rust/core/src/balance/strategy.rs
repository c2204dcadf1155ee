//! The four built-in strategies, selected by name.

use super::{moves, seats, spread};
use crate::balance::quota::{Demand, Share};
use crate::cancel::Cancel;
use crate::error::Error;
use crate::input::{Job, NO_OWNER};
use crate::rendezvous::Mode;
use crate::rendezvous::{self, bounded};

/// A strategy of placement; see the module of each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Strategy {
    /// Rendezvous hashing: the owner of an item depends on no other item.
    Rendezvous,
    /// Rendezvous hashing with even loads per job.
    EvenlyRendezvous,
    /// Even loads per job, fewest moves.
    EvenlySpread,
    /// Even loads per job, then over all jobs, then fewest moves.
    Balanced,
}

/// A strategy that keeps the previous owners of items where it can, so that a [`Board`](super::planner::Board) can use
/// it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sticky {
    /// As [`Strategy::EvenlySpread`].
    EvenlySpread,
    /// As [`Strategy::Balanced`].
    Balanced,
}

impl Strategy {
    /// Returns the strategy as one that keeps previous owners, or None for the rendezvous strategies, which do not.
    pub fn sticky(self) -> Option<Sticky> {
        match self {
            Self::Rendezvous | Self::EvenlyRendezvous => None,
            Self::EvenlySpread => Some(Sticky::EvenlySpread),
            Self::Balanced => Some(Sticky::Balanced),
        }
    }

    /// Parses "rendezvous", "evenly-rendezvous", "evenly-spread" or "balanced".
    ///
    /// # Errors
    /// [`Error::Invalid`] for another name.
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

    /// Returns the owners of all items, for each job as positions in `able`. All items of a job that no worker can run
    /// have `NO_OWNER`.
    ///
    /// `workers` must be ascending and unique, and `jobs` ascending by ID and unique. Only the two rendezvous
    /// strategies use `mode`.
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
            Self::EvenlySpread => Sticky::EvenlySpread.place(workers, jobs, cancel),
            Self::Balanced => Sticky::Balanced.place(workers, jobs, cancel),
        }
    }
}

impl Sticky {
    fn place(self, workers: &[&str], jobs: &[Job<'_>], cancel: &Cancel<'_>) -> Result<Vec<Vec<u32>>, Error> {
        let demands: Vec<Demand> = jobs.iter().map(Demand::new).collect();
        let sizes = self.sizes(workers.len(), &demands, cancel)?;
        Ok(jobs.iter().zip(&sizes).map(|(job, sizes)| moves::items(job, sizes)).collect())
    }

    /// Returns how many items of each job each able worker gets.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`], [`Error::Cancelled`].
    pub fn sizes(self, workers: usize, demands: &[Demand], cancel: &Cancel<'_>) -> Result<Vec<Vec<u32>>, Error> {
        let shares: Vec<Share> = demands.iter().map(Share::of).collect();
        let seated = match self {
            Self::EvenlySpread => spread::seats(workers, demands, &shares, cancel)?,
            Self::Balanced => seats::seats(workers, demands, &shares, cancel)?,
        };
        Ok(shares.iter().zip(&seated).map(|(share, seated)| share.sizes(seated)).collect())
    }
}

fn hash(job: &Job<'_>, workers: &[&str], mode: Mode, cancel: &Cancel<'_>) -> Result<Vec<u32>, Error> {
    if job.able.is_empty() {
        return Ok(vec![NO_OWNER; job.items.len()]);
    }
    rendezvous::place(job, workers, mode, cancel)
}
