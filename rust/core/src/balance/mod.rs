//! Balancing: how many items of each job a worker gets, which ones, and when they move.

pub mod flow;
pub mod move_limit;
pub mod moves;
pub mod names;
pub mod planner;
pub mod quota;
pub mod replicas;
pub mod seats;
pub mod spread;
pub mod strategy;
