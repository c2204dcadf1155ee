//! Helpers for unit tests: a small generator of reproducible numbers.

use crate::hash::fmix64;

/// Reproducible pseudo-random numbers for tests; not for placements.
pub struct Random(u64);

impl Random {
    /// The same seed always gives the same numbers.
    pub fn new(seed: u64) -> Self {
        Self(fmix64(seed ^ 0x9e37_79b9_7f4a_7c15))
    }

    /// The next 64 bits.
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        fmix64(self.0)
    }

    /// A number below `bound`, which must not be zero.
    pub fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }
}
