//! Kernels: the loops over keys and workers that all the time goes into. Safe code over `lanes`, the unsafe module.
//!
//! docs/design has a note on how they work.

mod best;
mod challenge;
pub mod lanes;
mod sweep;
mod table;
mod top;
mod weighted;

#[cfg(test)]
mod tests;

pub use best::best;
pub use challenge::{challenge, held_by};
pub use lanes::Level;
pub use table::Table;
pub use top::top;
pub use weighted::weighted;
