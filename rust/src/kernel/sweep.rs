//! What all kernels share: one pass over the workers of a tile that only bounds, and the search for who met the bound.
//!
//! Per vector of workers the pass computes measures (scores, or merits where weights differ) and raises a bound for each
//! block of workers, for some keys side by side, so that what is loaded of the workers serves them all. When it is
//! over, a kernel chooses a floor; only blocks whose bound reaches the floor are measured again, and only workers that
//! reach it are looked at one by one, by the definition of the score. So whatever the pass rounds off, the answer is exact.

use super::lanes::Lanes;
use super::table::{Row, TILE, WIDEST};

/// Keys that go through one tile of workers before the next tile.
pub(super) const BATCH: usize = 256;
/// Rows in a block: as many workers as a mask has bits.
const BLOCK: usize = 4;
const MOST_BLOCKS: usize = TILE / BLOCK;
/// No measure is below it.
pub(super) const LEAST: u32 = 1 << 31;

/// A key's halves, each in all lanes.
pub(super) type Spread<L> = (<L as Lanes>::V, <L as Lanes>::V);

/// What is bounded: greater is better, as signed numbers, in the order of lanes of `Lanes::score`.
pub(super) trait Measure: Copy {
    /// The measures of the workers from lane `at` on.
    fn of<L: Lanes>(self, lanes: L, key: Spread<L>, row: &Row, at: usize) -> L::V;
}

/// The score itself.
#[derive(Clone, Copy)]
pub(super) struct Score;

impl Measure for Score {
    #[inline(always)]
    fn of<L: Lanes>(self, lanes: L, key: Spread<L>, row: &Row, at: usize) -> L::V {
        lanes.score(key, lanes.load(&row.low[at..]), lanes.load(&row.high[at..]))
    }
}

/// An upper bound of weight / -ln(u), in float bits that ascend as signed numbers.
#[derive(Clone, Copy)]
pub(super) struct Merit;

impl Measure for Merit {
    #[inline(always)]
    fn of<L: Lanes>(self, lanes: L, key: Spread<L>, row: &Row, at: usize) -> L::V {
        lanes.merit(Score.of(lanes, key, row, at), lanes.load(&row.rates[at..]))
    }
}

/// The bounds that a pass leaves, per block of workers.
/// It is for `K` keys side by side, as many as registers hold.
pub(super) struct Bounds<L: Lanes, const K: usize> {
    blocks: usize,
    of_block: [[L::V; K]; MOST_BLOCKS],
}

impl<L: Lanes, const K: usize> Bounds<L, K> {
    #[inline(always)]
    pub fn new(lanes: L) -> Self {
        Self { blocks: 0, of_block: [[lanes.splat(LEAST); K]; MOST_BLOCKS] }
    }

    /// The pass over a tile for the first `live` keys: all, or one. O(workers of the tile).
    #[inline(always)]
    pub fn sweep<M: Measure>(&mut self, lanes: L, measure: M, tile: &[Row], keys: &[Spread<L>; K], live: usize) {
        self.blocks = tile.len().div_ceil(BLOCK);
        if live == 1 {
            self.side_by_side::<M, 1>(lanes, measure, tile, keys);
        } else {
            self.side_by_side::<M, K>(lanes, measure, tile, keys);
        }
    }

    #[inline(always)]
    fn side_by_side<M: Measure, const LIVE: usize>(
        &mut self,
        lanes: L,
        measure: M,
        tile: &[Row],
        keys: &[Spread<L>; K],
    ) {
        for (block, rows) in self.of_block.iter_mut().zip(tile.chunks(BLOCK)) {
            let mut bounds = [lanes.splat(LEAST); K];
            for row in rows {
                for part in 0..WIDEST / L::N {
                    for k in 0..LIVE {
                        bounds[k] = lanes.raise(bounds[k], measure.of(lanes, keys[k], row, part * L::N));
                    }
                }
            }
            *block = bounds;
        }
    }

    /// Calls `visit` with each worker of the tile whose measure for key `k` is at least `floor`, in name order.
    #[inline(always)]
    pub fn reaching<M: Measure>(
        &self,
        lanes: L,
        measure: M,
        (start, tile): (usize, &[Row]),
        (k, key): (usize, Spread<L>),
        floor: u32,
        mut visit: impl FnMut(usize),
    ) {
        let floor = lanes.splat(floor);
        // Without branches: which blocks it will be, nobody can predict.
        let mut hits = 0u32;
        for (number, bounds) in self.of_block[..self.blocks].iter().enumerate() {
            hits |= u32::from(!lanes.all_below(bounds[k], floor)) << number;
        }
        while hits != 0 {
            let number = hits.trailing_zeros() as usize;
            hits &= hits - 1;
            let rows = &tile[number * BLOCK..tile.len().min((number + 1) * BLOCK)];
            let first = start + number * BLOCK * WIDEST;
            let mut below = 0u64;
            for (number, row) in rows.iter().enumerate() {
                for part in 0..WIDEST / L::N {
                    let mask = lanes.below(measure.of(lanes, key, row, part * L::N), floor);
                    below |= u64::from(mask) << ((number * WIDEST + part * L::N) % 64);
                }
            }
            let mut reaching = !lanes.in_order(below) & (u64::MAX >> ((64 - rows.len() * WIDEST) % 64));
            while reaching != 0 {
                visit(first + reaching.trailing_zeros() as usize);
                reaching &= reaching - 1;
            }
        }
    }

    /// The greatest measure for key `k`, as far as it is known: at most the true one.
    #[inline(always)]
    pub fn greatest(&self, lanes: L, k: usize) -> u32 {
        let lanes = self.lanes(lanes, k);
        let mut top = lanes[0] as i32;
        for &lane in &lanes[1..L::N] {
            top = top.max(lane as i32);
        }
        top as u32
    }

    /// The bounds over all blocks for key `k`, with what is not known cleared; `L::N` of them.
    #[inline(always)]
    pub fn lanes(&self, lanes: L, k: usize) -> [u32; WIDEST] {
        let mut overall = lanes.splat(LEAST);
        for block in &self.of_block[..self.blocks] {
            overall = lanes.raise(overall, block[k]);
        }
        let mut all = [LEAST; WIDEST];
        lanes.store(overall, &mut all);
        for lane in &mut all[..L::N] {
            *lane &= L::KNOWN;
        }
        all
    }

    /// A floor that at least `k` workers of the tile reach, or None if there may be fewer; `lots` is scratch space.
    #[inline(always)]
    pub fn kth(&self, lanes: L, key: usize, k: usize, lots: &mut Vec<u32>) -> Option<u32> {
        if k <= L::N {
            let mut lanes = self.lanes(lanes, key);
            for place in 0..k {
                for other in place + 1..L::N {
                    let (one, two) = (lanes[place] as i32, lanes[other] as i32);
                    (lanes[place], lanes[other]) = (one.max(two) as u32, one.min(two) as u32);
                }
            }
            return Some(lanes[k - 1]);
        }
        lots.clear();
        for block in &self.of_block[..self.blocks] {
            let mut all = [LEAST; WIDEST];
            lanes.store(block[key], &mut all);
            lots.extend(all[..L::N].iter().map(|lane| lane & L::KNOWN ^ LEAST));
        }
        if lots.len() < k {
            return None;
        }
        let at = lots.len() - k;
        Some(*lots.select_nth_unstable(at).1 ^ LEAST)
    }
}

/// The next keys of a batch, spread; a short group repeats its first.
#[inline(always)]
pub(super) fn spread<L: Lanes, const K: usize>(lanes: L, keys: &[u64]) -> [Spread<L>; K] {
    let mut group = [keys[0]; K];
    group[..keys.len()].copy_from_slice(keys);
    let mut result = [(lanes.splat(0), lanes.splat(0)); K];
    for k in 0..K {
        result[k] = (lanes.splat(group[k] as u32), lanes.splat((group[k] >> 32) as u32));
    }
    result
}
