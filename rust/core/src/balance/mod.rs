//! Balancing: decides how many items of each job a worker gets, which items these are, and which of them move now.

// Items, workers, jobs and seats are numbered by `u32`: `Names` refuses more. Counts of items, and costs, stay below
// 2^62; costs and excess that are converted to unsigned numbers are not negative.
#![allow(clippy::cast_possible_truncation, clippy::cast_possible_wrap, clippy::cast_sign_loss)]

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
