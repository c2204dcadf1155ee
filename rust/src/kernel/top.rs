//! The best k workers for each key, all weights being equal.
//!
//! The k-th greatest of any k workers' scores is a floor that the best k reach. The lanes of the overall bound are
//! such scores, and since lanes share the workers evenly, the floor is a tight one.

use super::lanes::{Lanes, Level, Task};
use super::sweep::{spread, Bounds, Score, LEAST};
use super::table::Table;
use crate::score::fast_score;

/// Up to so many only the best are kept while searching; more are sorted at the end.
const FEW: usize = 16;

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
        match L::KEYS {
            1 => self.side_by_side::<L, 1>(lanes),
            _ => self.side_by_side::<L, 4>(lanes),
        }
    }
}

impl Top<'_> {
    #[inline(always)]
    fn side_by_side<L: Lanes, const K: usize>(self, lanes: L) {
        let mut bounds = Bounds::<L, K>::new(lanes);
        let mut found: [Vec<(u32, u32)>; K] = std::array::from_fn(|_| Vec::new());
        let mut lots = Vec::new();
        let Self { table, keys, k, best } = self;
        for (keys, best) in keys.chunks(K).zip(best.chunks_mut(K * k)) {
            let spread = spread(lanes, keys);
            // Padding would count one worker twice, so the pass is over full rows; the rest are always looked at.
            let (tiles, rest) = table.full_tiles();
            for (start, tile) in tiles {
                bounds.sweep(lanes, Score, tile, &spread, keys.len());
                for n in 0..keys.len() {
                    let floor = bounds.kth(lanes, n, k, &mut lots).unwrap_or(LEAST);
                    let visit = |worker| offer(&mut found[n], k, rated(table, keys[n], worker));
                    bounds.reaching(lanes, Score, (start, tile), (n, spread[n]), floor, visit);
                }
            }
            for n in 0..keys.len() {
                for worker in rest..table.len() {
                    offer(&mut found[n], k, rated(table, keys[n], worker));
                }
                found[n].sort_unstable();
                for (place, (_, worker)) in best[n * k..].iter_mut().zip(&found[n][..k]) {
                    *place = *worker;
                }
                found[n].clear();
            }
        }
    }
}

/// Adds a worker to those found, unless few are wanted and there are as many better ones.
#[inline(always)]
fn offer(found: &mut Vec<(u32, u32)>, k: usize, rated: (u32, u32)) {
    if k > FEW || found.len() < k {
        found.push(rated);
        return;
    }
    let mut worst = 0;
    for at in 1..k {
        if found[at] > found[worst] {
            worst = at;
        }
    }
    if rated < found[worst] {
        found[worst] = rated;
    }
}

/// Ascends from the best worker to the worst.
#[inline(always)]
fn rated(table: &Table, key: u64, worker: usize) -> (u32, u32) {
    (!fast_score(key, table.hash(worker)), worker as u32)
}
