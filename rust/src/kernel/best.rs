//! The best worker for each key, all weights being equal.

use super::lanes::{Lanes, Level, Task};
use super::sweep::{spread, Bounds, Score, BATCH};
use super::table::Table;
use crate::score::fast_score;

/// For each key the first worker with the highest score, and that score. O(keys x workers).
///
/// `keys`, `owners` and `scores` are of one length; the table has workers.
pub fn best(level: Level, table: &Table, keys: &[u64], owners: &mut [u32], scores: &mut [u32]) {
    assert!(keys.len() == owners.len() && keys.len() == scores.len() && !table.is_empty());
    level.run(Best { table, keys, owners, scores });
}

struct Best<'a> {
    table: &'a Table,
    keys: &'a [u64],
    owners: &'a mut [u32],
    scores: &'a mut [u32],
}

impl Task for Best<'_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, lanes: L) {
        if self.table.len() <= FEW {
            return self.one_by_one();
        }
        match L::KEYS {
            1 => self.side_by_side::<L, 1>(lanes),
            _ => self.side_by_side::<L, 4>(lanes),
        }
    }
}

/// Up to so many workers a plain loop is faster than vectors that are mostly padding.
const FEW: usize = 8;

impl Best<'_> {
    /// The plain loop.
    #[inline(always)]
    fn one_by_one(self) {
        let count = self.table.len();
        let workers: [u64; FEW] = std::array::from_fn(|at| self.table.hash(at.min(count - 1)));
        for ((key, owner), top) in self.keys.iter().zip(self.owners).zip(self.scores) {
            (*owner, *top) = (0, fast_score(*key, workers[0]));
            for (at, worker) in workers[..count].iter().enumerate().skip(1) {
                let score = fast_score(*key, *worker);
                (*owner, *top) = if score > *top { (at as u32, score) } else { (*owner, *top) };
            }
        }
    }

    #[inline(always)]
    fn side_by_side<L: Lanes, const K: usize>(self, lanes: L) {
        let mut bounds = Bounds::<L, K>::new(lanes);
        let batches = self.keys.chunks(BATCH).zip(self.owners.chunks_mut(BATCH));
        for ((keys, owners), scores) in batches.zip(self.scores.chunks_mut(BATCH)) {
            for (start, tile) in self.table.tiles() {
                let groups = keys.chunks(K).zip(owners.chunks_mut(K)).zip(scores.chunks_mut(K));
                for ((keys, owners), scores) in groups {
                    let spread = spread(lanes, keys);
                    bounds.sweep(lanes, Score, tile, &spread, keys.len());
                    for k in 0..keys.len() {
                        let mut best = if start == 0 { None } else { Some((scores[k], owners[k])) };
                        let floor = bounds.greatest(lanes, k);
                        bounds.reaching(lanes, Score, (start, tile), (k, spread[k]), floor, |worker| {
                            let score = fast_score(keys[k], self.table.hash(worker));
                            if best.is_none_or(|(top, _)| score > top) {
                                best = Some((score, worker as u32));
                            }
                        });
                        (scores[k], owners[k]) = best.expect("some worker has the greatest score");
                    }
                }
            }
        }
    }
}
