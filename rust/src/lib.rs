//! Hashing and balancing for latchwork: who runs which work item. And messages of etcd and ZooKeeper,
//! which Python is slow at.
//!
//! Everything here is a pure function of its input: no I/O, no clock, no randomness, no global state. The modules
//! know nothing of Python; `py` holds the bindings, and nothing but bindings.

pub mod assignment;
pub mod balanced;
pub mod board;
pub mod budget;
pub mod cancel;
pub mod error;
pub mod etcd;
pub mod even;
pub mod flow;
pub mod grammar;
pub mod hash;
pub mod input;
pub mod items;
pub mod kernel;
pub mod names;
pub mod place;
pub mod quota;
pub mod rendezvous;
pub mod score;
pub mod spread;
pub mod strategy;
pub mod zones;
pub mod zookeeper;

#[cfg(feature = "python")]
mod py;

#[cfg(test)]
mod testing;
