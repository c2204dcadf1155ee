//! The best worker for each key, weights differing: the greatest weight / -ln(u), exactly, with few logarithms.
//!
//! The pass bounds each value from above: `-ln(1 - z) >= z`, so `weight / -ln(u)` is at most `weight / (1 - u)`, for
//! which no logarithm is needed. The worker of the greatest bound is valued exactly; only workers whose bound reaches
//! that value are valued too. Since winners have small z, where the bound is close, there are few.

use super::lanes::{Lanes, Level, Task};
use super::sweep::{spread, Bounds, Merit, BATCH, LEAST};
use super::table::Table;
use crate::score::{exponential, fast_score};

/// More than all rounding errors between a bound and the exact value together: each is below 2^-23, and there are four.
const SLACK: f64 = 1.0 + 1.0 / 1_000_000.0;

/// For each key the first worker with the highest value (then score), and its score. O(keys x workers).
///
/// `weights` are those of the table; `keys`, `owners` and `scores` are of one length.
pub fn weighted(
    level: Level,
    (table, weights): (&Table, &[f64]),
    keys: &[u64],
    owners: &mut [u32],
    scores: &mut [u32],
) {
    assert!(keys.len() == owners.len() && keys.len() == scores.len() && !table.is_empty());
    assert!(weights.len() == table.len() && table.is_weighted());
    let greatest = weights.iter().fold(0.0, |a: f64, b| a.max(*b));
    level.run(Weighted { table, weights, greatest, keys, owners, scores });
}

struct Weighted<'a> {
    table: &'a Table,
    weights: &'a [f64],
    greatest: f64,
    keys: &'a [u64],
    owners: &'a mut [u32],
    scores: &'a mut [u32],
}

/// The best so far of one key.
#[derive(Clone, Copy)]
struct Top {
    value: f64,
    score: u32,
    worker: u32,
}

impl Task for Weighted<'_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, lanes: L) {
        match L::KEYS {
            1 => self.side_by_side::<L, 1>(lanes),
            _ => self.side_by_side::<L, 4>(lanes),
        }
    }
}

impl Weighted<'_> {
    #[inline(always)]
    fn side_by_side<L: Lanes, const K: usize>(self, lanes: L) {
        let mut bounds = Bounds::<L, K>::new(lanes);
        let nobody = Top { value: -1.0, score: 0, worker: u32::MAX };
        for at in (0..self.keys.len()).step_by(BATCH) {
            let keys = &self.keys[at..self.keys.len().min(at + BATCH)];
            let mut tops = [nobody; BATCH];
            for (start, tile) in self.table.tiles() {
                for (keys, tops) in keys.chunks(K).zip(tops.chunks_mut(K)) {
                    let spread = spread(lanes, keys);
                    bounds.sweep(lanes, Merit, tile, &spread, keys.len());
                    for k in 0..keys.len() {
                        let top = &mut tops[k];
                        let mut consider = |worker: usize| self.consider(keys[k], worker, top);
                        let guess = bounds.greatest(lanes, k);
                        bounds.reaching(lanes, Merit, (start, tile), (k, spread[k]), guess, &mut consider);
                        let floor = self.merit(top.value);
                        let mut consider = |worker: usize| self.consider(keys[k], worker, top);
                        if (floor as i32) < guess as i32 {
                            bounds.reaching(lanes, Merit, (start, tile), (k, spread[k]), floor, &mut consider);
                        }
                    }
                }
            }
            for (k, top) in tops[..keys.len()].iter().enumerate() {
                (self.owners[at + k], self.scores[at + k]) = (top.worker, top.score);
            }
        }
    }
}

impl Weighted<'_> {
    /// The least merit that a worker of at least this value can have.
    #[inline(always)]
    fn merit(&self, value: f64) -> u32 {
        if value == f64::INFINITY {
            return LEAST; // Beyond what a float holds, values are equal and scores decide.
        }
        !((self.greatest / value * 2_147_483_648.0 * SLACK) as f32).to_bits()
    }

    /// Workers may come in any order, and more than once.
    #[inline(always)]
    fn consider(&self, key: u64, worker: usize, top: &mut Top) {
        let worker = worker.min(self.table.len() - 1);
        if worker as u32 == top.worker {
            return;
        }
        let score = fast_score(key, self.table.hash(worker));
        let value = self.weights[worker] / exponential(score);
        let first = (worker as u32) < top.worker;
        let better = score > top.score || (score == top.score && first);
        if value > top.value || (value == top.value && better) {
            *top = Top { value, score, worker: worker as u32 };
        }
    }
}
