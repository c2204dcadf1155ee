//! The best k workers for each key, all weights being equal.
//!
//! The k-th greatest of any k workers' scores is a floor that the best k reach. The lanes of the overall bound are
//! such scores, and since lanes share the workers evenly, the floor is a tight one.

use super::lanes::{Lanes, Level, Task};
use super::sweep::{spread, Bounds, Score, KEYS, LEAST};
use super::table::Table;
use crate::score::fast_score;

/// The best `k` workers of each key, best first, `min(k, workers)` places per key. O(keys x workers).
pub fn top(level: Level, table: &Table, keys: &[u64], k: usize, best: &mut [u32]) {
    let k = k.min(table.len());
    assert!(best.len() == keys.len() * k && k > 0);
    level.run(Top { table, keys, k, best });
}

struct Top<'a> {
    table: &'a Table,
    keys: &'a [u64],
    k: usize,
    best: &'a mut [u32],
}

impl Task for Top<'_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, lanes: L) {
        let mut bounds = Bounds::new(lanes);
        let mut found: [Vec<(u32, u32)>; KEYS] = Default::default();
        let mut lots = Vec::new();
        let Self { table, keys, k, best } = self;
        for (keys, best) in keys.chunks(KEYS).zip(best.chunks_mut(KEYS * k)) {
            let spread = spread(lanes, keys);
            // Padding would count one worker twice, so the pass is over full rows; the rest are always looked at.
            let (tiles, rest) = table.full_tiles();
            for (start, tile) in tiles {
                bounds.sweep(lanes, Score, tile, &spread, keys.len());
                for n in 0..keys.len() {
                    let floor = bounds.kth(lanes, n, k, tile.len(), &mut lots).unwrap_or(LEAST);
                    let found = &mut found[n];
                    let visit = |worker| found.push(rated(table, keys[n], worker));
                    bounds.reaching(lanes, Score, (start, tile), (n, spread[n]), floor, visit);
                }
            }
            for n in 0..keys.len() {
                found[n].extend((rest..table.len()).map(|worker| rated(table, keys[n], worker)));
                found[n].sort_unstable();
                for (place, (_, worker)) in best[n * k..].iter_mut().zip(&found[n][..k]) {
                    *place = *worker;
                }
                found[n].clear();
            }
        }
    }
}

/// Ascends from the best worker to the worst.
#[inline(always)]
fn rated(table: &Table, key: u64, worker: usize) -> (u32, u32) {
    (!fast_score(key, table.hash(worker)), worker as u32)
}
