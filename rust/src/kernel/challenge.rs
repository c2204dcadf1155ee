//! One worker against the owners that items have: what makes joining and leaving cheap.

use super::lanes::{Lanes, Level, Task};
use crate::score::fast_score;

/// Items between two looks at whether any of them is concerned.
const BLOCK: usize = 32;

/// Calls `visit` with each item for which the worker scores at least `scores`, and its score there. O(items).
pub fn challenge(level: Level, worker: u64, keys: &[u64], scores: &[u32], visit: impl FnMut(usize, u32)) {
    level.run(Challenge { worker, keys, scores, visit });
}

struct Challenge<'a, F> {
    worker: u64,
    keys: &'a [u64],
    scores: &'a [u32],
    visit: F,
}

impl<F: FnMut(usize, u32)> Task for Challenge<'_, F> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(mut self, _: L) {
        let blocks = self.keys.chunks(BLOCK).zip(self.scores.chunks(BLOCK)).enumerate();
        for (block, (keys, scores)) in blocks {
            let mut any = false;
            for (key, score) in keys.iter().zip(scores.iter()) {
                any |= fast_score(*key, self.worker) >= *score;
            }
            if !any {
                continue;
            }
            for (at, (key, score)) in keys.iter().zip(scores).enumerate() {
                let new = fast_score(*key, self.worker);
                if new >= *score {
                    (self.visit)(block * BLOCK + at, new);
                }
            }
        }
    }
}

/// The items that a worker has, ascending. O(items).
pub fn held_by(level: Level, worker: u32, owners: &[u32]) -> Vec<u32> {
    level.run(HeldBy { worker, owners })
}

struct HeldBy<'a> {
    worker: u32,
    owners: &'a [u32],
}

impl Task for HeldBy<'_> {
    type Output = Vec<u32>;

    #[inline(always)]
    fn run<L: Lanes>(self, _: L) -> Vec<u32> {
        let mut held = Vec::new();
        for (block, owners) in self.owners.chunks(BLOCK).enumerate() {
            let mut any = false;
            for owner in owners {
                any |= *owner == self.worker;
            }
            if any {
                let theirs = owners.iter().enumerate().filter(|(_, owner)| **owner == self.worker);
                held.extend(theirs.map(|(at, _)| (block * BLOCK + at) as u32));
            }
        }
        held
    }
}
