//! The best worker for each key, all weights being equal.

use super::lanes::{Lanes, Level, Task};
use super::sweep::{spread, Bounds, Score, BATCH, LEAST};
use super::table::{Table, WIDEST};
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
        let few_keys = self.keys.len() < L::N;
        if few_keys && self.table.len() <= FEW {
            return self.one_by_one();
        }
        if !few_keys && self.table.len() <= if L::N > 4 { IN_LANES } else { IN_FOUR_LANES } {
            return self.in_lanes(lanes);
        }
        match L::KEYS {
            1 => self.side_by_side::<L, 1>(lanes),
            _ => self.side_by_side::<L, 4>(lanes),
        }
    }
}

/// Up to so many workers a plain loop is faster for one key than vectors that are mostly padding.
const FEW: usize = 8;
/// Up to so many workers a key in each lane is faster than workers in lanes; measured on Zen 4, see docs/design/assignment.md.
const IN_LANES: usize = 1024;
const IN_FOUR_LANES: usize = 200;
/// Vectors of keys that meet one worker: more would not fit into sixteen registers.
const VECTORS: usize = 2;

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

    /// A key in each lane, the workers one after the other: no lane is padding, and nothing is searched for.
    #[inline(always)]
    fn in_lanes<L: Lanes>(self, lanes: L) {
        let groups = self.keys.chunks(VECTORS * L::N).zip(self.owners.chunks_mut(VECTORS * L::N));
        for ((keys, owners), scores) in groups.zip(self.scores.chunks_mut(VECTORS * L::N)) {
            let mut halves = [[[0; WIDEST]; 2]; VECTORS];
            for (at, key) in keys.iter().enumerate() {
                let half = &mut halves[at / L::N];
                (half[0][at % L::N], half[1][at % L::N]) = (*key as u32, (*key >> 32) as u32);
            }
            let mut spread = [(lanes.splat(0), lanes.splat(0)); VECTORS];
            for v in 0..VECTORS {
                spread[v] = (lanes.load(&halves[v][0]), lanes.load(&halves[v][1]));
            }
            let (mut tops, mut winners) = ([lanes.splat(LEAST); VECTORS], [lanes.splat(0); VECTORS]);
            for (number, row) in self.table.rows().iter().enumerate() {
                let first = number * WIDEST;
                for lane in 0..WIDEST.min(self.table.len() - first) {
                    let (low, high) = (lanes.splat(row.low[lane]), lanes.splat(row.high[lane]));
                    let worker = lanes.splat((first + lane) as u32);
                    for v in 0..VECTORS {
                        lanes.keep(&mut tops[v], &mut winners[v], lanes.score(spread[v], low, high), worker);
                    }
                }
            }
            for v in 0..keys.len().div_ceil(L::N) {
                let (mut top, mut winner) = ([0; WIDEST], [0; WIDEST]);
                lanes.store(tops[v], &mut top);
                lanes.store(winners[v], &mut winner);
                let (from, to) = (v * L::N, keys.len().min((v + 1) * L::N));
                for (at, (owner, score)) in owners[from..to].iter_mut().zip(&mut scores[from..to]).enumerate() {
                    let lane = lanes.lane_of(at);
                    (*owner, *score) = (winner[lane], top[lane] ^ LEAST);
                }
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
