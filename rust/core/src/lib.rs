//! Assigns work items to workers, and encodes messages of etcd and ZooKeeper. No Python, no I/O, and no clock except in
//! [`cancel`].
//!
//! - [`rendezvous`]: every key goes to the worker with the highest score. Start with [`rendezvous::Rendezvous`];
//!   [`rendezvous::incremental::Assignment`] keeps the owners of many keys while workers come and go, and
//!   [`rendezvous::bounded`] limits the loads.
//! - [`balance`]: even shares per job and over all jobs, with few moves. Start with [`balance::planner::Board`], or with
//!   [`balance::strategy::Strategy`] for a single placement. A new strategy becomes a module there.
//! - [`codec`]: encoders and decoders of messages.
//!
//! All results depend on the input only: they are the same on every machine and in every version. Long computations take
//! a [`cancel::Cancel`] and end early if the caller wants that.
//!
//! ```
//! use latchwork_core::rendezvous::{Mode, Rendezvous};
//!
//! let workers = Rendezvous::new(vec!["w1", "w2", "w3"], &[1.0, 1.0, 2.0], Mode::Fast)?;
//! let key = workers.key("orders:2024-01");
//! let best = workers.owners(key, 2, &mut Vec::new());
//! assert_eq!(best[0], workers.owner(key, &mut Vec::new()));
//! # Ok::<(), latchwork_core::error::Error>(())
//! ```

#![cfg_attr(test, allow(clippy::cast_possible_truncation, clippy::cast_precision_loss))] // small numbers

pub mod balance;
pub mod cancel;
pub mod codec;
pub mod error;
pub mod hash;
pub mod input;
pub mod rendezvous;

#[cfg(test)]
mod testing;
