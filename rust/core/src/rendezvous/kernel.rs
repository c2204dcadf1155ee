//! The loops over keys and workers, which take nearly all of the time.
//!
//! They are plain loops over arrays, which the compiler vectorizes: each worker in turn is compared with a block of
//! keys. [`InstructionSet::run`] compiles them once for each instruction set of the processor. The results are the
//! same.
//!
//! [`best`] keeps the best worker of each key in one pass. Weighted workers and the best k need a *sweep*, which only
//! finds the greatest measure in each tile of workers, and a *bound*: a measure that every worker of the answer
//! reaches. Only the workers of tiles that reach the bound are then scored exactly. The answer is therefore exact,
//! although a sweep rounds.

#![allow(clippy::needless_range_loop)] // one index over several arrays is what the compiler makes vectors of

pub use super::table::Table;

#[cfg(test)]
mod tests;

use crate::rendezvous::score::{exponential, fast_score, HIGH_FACTOR, LOW_FACTOR};

/// Number of keys that are compared with a worker at the same time.
const BLOCK: usize = 32;
/// Number of workers of a tile. A sweep finds their greatest measure.
const TILE: usize = 8;
/// Number of tiles of a sweep. Its result stays in the first-level cache.
const TILES: usize = 128;
/// Up to this many best workers, the bound is computed for all keys of a block together.
const FEW: usize = 8;
/// Number of workers that are compared with one key at the same time.
const RUN: usize = 64;
/// Number of items that are tested at the same time.
const ITEMS: usize = 32;
/// More than all rounding errors between a bound and the exact value: each of the four is below 2^-23.
const SLACK: f64 = 1.0 + 1.0 / 1_000_000.0;

/// An instruction set. The results do not depend on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InstructionSet(Kind);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Baseline,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    #[cfg(all(target_arch = "x86_64", avx512))]
    Avx512,
}

impl InstructionSet {
    /// Returns the instruction sets of this processor, slowest first.
    pub fn available() -> Vec<Self> {
        #[allow(unused_mut)]
        let mut levels = vec![Self(Kind::Baseline)];
        #[cfg(target_arch = "x86_64")]
        if std::is_x86_feature_detected!("avx2") {
            levels.push(Self(Kind::Avx2));
            #[cfg(avx512)]
            if std::is_x86_feature_detected!("avx512f") && std::is_x86_feature_detected!("avx512vl") {
                levels.push(Self(Kind::Avx512));
            }
        }
        levels
    }

    /// Returns the fastest instruction set of this processor.
    pub fn best() -> Self {
        Self::available().pop().unwrap_or(Self(Kind::Baseline))
    }

    /// Returns "baseline", "avx2" or "avx512".
    pub fn name(self) -> &'static str {
        match self.0 {
            Kind::Baseline => "baseline",
            #[cfg(target_arch = "x86_64")]
            Kind::Avx2 => "avx2",
            #[cfg(all(target_arch = "x86_64", avx512))]
            Kind::Avx512 => "avx512",
        }
    }

    /// Calls `work` compiled for this instruction set.
    #[allow(unsafe_code)]
    fn run<W: Work>(self, work: W) -> W::Output {
        match self.0 {
            Kind::Baseline => work.run(),
            // SAFETY: only `available` creates this value, after it has checked that the processor has AVX2.
            #[cfg(target_arch = "x86_64")]
            Kind::Avx2 => unsafe { run_avx2(work) },
            // SAFETY: only `available` creates this value, after it has checked that the processor has AVX-512.
            #[cfg(all(target_arch = "x86_64", avx512))]
            Kind::Avx512 => unsafe { run_avx512(work) },
        }
    }
}

/// A computation that is compiled for every instruction set. `run` and the functions that it calls must be
/// `#[inline(always)]`, because other functions are compiled for the baseline.
trait Work {
    type Output;
    fn run(self) -> Self::Output;
}

/// Calls `work` compiled for AVX2.
///
/// # Safety
/// The processor must have AVX2.
#[cfg(target_arch = "x86_64")]
#[allow(unsafe_code)]
#[target_feature(enable = "avx2")]
unsafe fn run_avx2<W: Work>(work: W) -> W::Output {
    work.run()
}

/// Calls `work` compiled for AVX-512.
///
/// # Safety
/// The processor must have AVX-512F and AVX-512VL.
#[cfg(all(target_arch = "x86_64", avx512))]
#[allow(unsafe_code, clippy::incompatible_msrv)]
#[target_feature(enable = "avx2,avx512f,avx512vl")]
unsafe fn run_avx512<W: Work>(work: W) -> W::Output {
    work.run()
}

#[inline(always)]
fn score(low: u32, high: u32) -> u32 {
    low.wrapping_mul(LOW_FACTOR).wrapping_add(high.wrapping_mul(HIGH_FACTOR))
}

/// Splits the hashes of a block of keys into two halves. A short block repeats its last key.
#[inline(always)]
fn columns<const B: usize>(keys: &[u64]) -> ([u32; B], [u32; B]) {
    let (mut low, mut high) = ([0; B], [0; B]);
    for at in 0..B {
        let key = keys[at.min(keys.len() - 1)];
        (low[at], high[at]) = (key as u32, (key >> 32) as u32);
    }
    (low, high)
}

/// Finds for each key the first worker with the highest score, and that score. O(keys x workers).
///
/// # Panics
/// If `keys`, `owners` and `scores` are not of one length, or the table has no workers.
pub fn best(level: InstructionSet, table: &Table, keys: &[u64], owners: &mut [u32], scores: &mut [u32]) {
    assert!(keys.len() == owners.len() && keys.len() == scores.len() && !table.is_empty());
    level.run(Best { table, keys, owners, scores });
}

struct Best<'a> {
    table: &'a Table,
    keys: &'a [u64],
    owners: &'a mut [u32],
    scores: &'a mut [u32],
}

impl Work for Best<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let blocks = self.keys.chunks(BLOCK).zip(self.owners.chunks_mut(BLOCK)).zip(self.scores.chunks_mut(BLOCK));
        for ((keys, owners), scores) in blocks {
            if keys.len() < BLOCK / 4 {
                for ((key, owner), score) in keys.iter().zip(owners).zip(scores) {
                    (*owner, *score) = best_of_one(self.table, *key);
                }
                continue;
            }
            let (low, high) = columns::<BLOCK>(keys);
            let (mut tops, mut winners) = ([0u32; BLOCK], [0u32; BLOCK]);
            for (worker, (l, h)) in self.table.low.iter().zip(&self.table.high).enumerate() {
                for at in 0..BLOCK {
                    let score = score(low[at] ^ l, high[at] ^ h);
                    winners[at] = if score > tops[at] { worker as u32 } else { winners[at] };
                    tops[at] = tops[at].max(score);
                }
            }
            owners.copy_from_slice(&winners[..keys.len()]);
            scores.copy_from_slice(&tops[..keys.len()]);
        }
    }
}

/// Finds the worker with the highest score for one key, as [`best`] does, by comparing several workers at a time.
#[inline(always)]
fn best_of_one(table: &Table, key: u64) -> (u32, u32) {
    let (low, high) = (key as u32, (key >> 32) as u32);
    let (mut top, mut first) = (0, 0);
    for (number, (lows, highs)) in table.low.chunks(RUN).zip(table.high.chunks(RUN)).enumerate() {
        let mut most = 0;
        for (l, h) in lows.iter().zip(highs) {
            most = most.max(score(low ^ l, high ^ h));
        }
        (top, first) = if most > top { (most, number * RUN) } else { (top, first) };
    }
    let mut run = first..table.len();
    let owner = run.find(|&worker| fast_score(key, table.hash(worker)) == top);
    (owner.expect("some worker has the highest score") as u32, top)
}

/// The number whose maximum a sweep finds.
trait Measure {
    fn of(score: u32, rate: f32) -> u32;
}

/// The measure of workers of equal weight: the score.
struct Score;

impl Measure for Score {
    #[inline(always)]
    fn of(score: u32, _: f32) -> u32 {
        score
    }
}

/// The measure of weighted workers: an upper bound of weight / -ln(u). `-ln(1 - z) >= z`, so it needs no logarithm. The
/// bits of a float are inverted, so that they order the bounds as unsigned numbers.
struct Merit;

impl Measure for Merit {
    #[inline(always)]
    fn of(score: u32, rate: f32) -> u32 {
        !((!score >> 1) as i32 as f32 * rate).to_bits()
    }
}

/// The maxima that a sweep found, by tile and key.
struct Maxima<const B: usize> {
    of_tile: [[u32; B]; TILES],
    tiles: usize,
    first: usize,
}

impl<const B: usize> Maxima<B> {
    /// Computes the greatest measure of each tile for as many workers as fit, beginning with `first`.
    #[inline(always)]
    fn sweep<M: Measure>(&mut self, table: &Table, first: usize, (low, high): &([u32; B], [u32; B])) {
        let last = table.len().min(first + TILES * TILE);
        let mut start = first;
        self.first = first;
        self.tiles = 0;
        while start < last {
            let end = last.min(start + TILE);
            let mut top = [0; B];
            for worker in start..end {
                let (l, h) = (table.low[worker], table.high[worker]);
                let rate = table.rates.get(worker).copied().unwrap_or(1.0);
                for at in 0..B {
                    top[at] = top[at].max(M::of(score(low[at] ^ l, high[at] ^ h), rate));
                }
            }
            self.of_tile[self.tiles] = top;
            self.tiles += 1;
            start = end;
        }
    }

    /// Returns, for each key, the tile with the greatest measure.
    #[inline(always)]
    fn greatest(&self) -> [u32; B] {
        let (mut tops, mut tiles) = (self.of_tile[0], [0; B]);
        for (tile, maxima) in self.of_tile[..self.tiles].iter().enumerate() {
            for at in 0..B {
                tiles[at] = if maxima[at] > tops[at] { tile as u32 } else { tiles[at] };
                tops[at] = tops[at].max(maxima[at]);
            }
        }
        tiles
    }

    /// Calls `visit` for each key and each tile that reaches the bound of the key, in ascending order of tiles.
    #[inline(always)]
    fn for_each_reaching_tile(&self, floors: &[u32; B], mut visit: impl FnMut(usize, usize)) {
        for (tile, maxima) in self.of_tile[..self.tiles].iter().enumerate() {
            let mut hits = 0u32;
            for at in 0..B {
                hits |= if maxima[at] >= floors[at] { 1 << at } else { 0 };
            }
            while hits != 0 {
                visit(hits.trailing_zeros() as usize, tile);
                hits &= hits - 1;
            }
        }
    }

    /// Returns, for each key, the k-th greatest measure of a tile, or 0 if there are fewer tiles.
    #[inline(always)]
    fn kth(&self, k: usize) -> [u32; B] {
        let mut floors = [0; B];
        if self.tiles < k {
            return floors;
        }
        if k <= FEW {
            let mut greatest = [[0; B]; FEW];
            for maxima in &self.of_tile[..self.tiles] {
                let mut next = *maxima;
                for place in &mut greatest[..k] {
                    for at in 0..B {
                        (place[at], next[at]) = (place[at].max(next[at]), place[at].min(next[at]));
                    }
                }
            }
            return greatest[k - 1];
        }
        let mut column = [0; TILES];
        for (at, floor) in floors.iter_mut().enumerate() {
            column.iter_mut().zip(&self.of_tile[..self.tiles]).for_each(|(place, maxima)| *place = maxima[at]);
            let place = self.tiles - k;
            *floor = *column[..self.tiles].select_nth_unstable(place).1;
        }
        floors
    }

    /// Calls `visit` for each worker of a tile whose measure reaches the bound, with its score, in ascending order.
    #[inline(always)]
    fn workers<M: Measure>(&self, table: &Table, key: u64, tile: usize, floor: u32, mut visit: impl FnMut(usize, u32)) {
        let start = self.first + tile * TILE;
        let (low, high) = (key as u32, (key >> 32) as u32);
        let end = table.len().min(start + TILE);
        let mut scores = [0; TILE];
        let mut hits = 0u32;
        if end - start == TILE {
            let (lows, highs) = (&table.low[start..start + TILE], &table.high[start..start + TILE]);
            for at in 0..TILE {
                scores[at] = score(low ^ lows[at], high ^ highs[at]);
            }
            if table.rates.is_empty() {
                for at in 0..TILE {
                    hits |= if M::of(scores[at], 1.0) >= floor { 1 << at } else { 0 };
                }
            } else {
                let rates = &table.rates[start..start + TILE];
                for at in 0..TILE {
                    hits |= if M::of(scores[at], rates[at]) >= floor { 1 << at } else { 0 };
                }
            }
        } else {
            for (at, worker) in (start..end).enumerate() {
                scores[at] = score(low ^ table.low[worker], high ^ table.high[worker]);
                let rate = table.rates.get(worker).copied().unwrap_or(1.0);
                hits |= if M::of(scores[at], rate) >= floor { 1 << at } else { 0 };
            }
        }
        while hits != 0 {
            let at = hits.trailing_zeros() as usize;
            visit(start + at, scores[at]);
            hits &= hits - 1;
        }
    }
}

/// Finds for each key the worker with the greatest weight / -ln(u), and its score. Among equals the highest score wins,
/// then the first worker. O(keys x workers).
///
/// # Panics
/// If `keys`, `owners` and `scores` have different lengths, or the table has no workers or no weights.
pub fn weighted(level: InstructionSet, table: &Table, keys: &[u64], owners: &mut [u32], scores: &mut [u32]) {
    assert!(keys.len() == owners.len() && keys.len() == scores.len() && table.is_weighted());
    level.run(Weighted { table, keys, owners, scores });
}

struct Weighted<'a> {
    table: &'a Table,
    keys: &'a [u64],
    owners: &'a mut [u32],
    scores: &'a mut [u32],
}

impl Work for Weighted<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let blocks = self.keys.chunks(BLOCK).zip(self.owners.chunks_mut(BLOCK)).zip(self.scores.chunks_mut(BLOCK));
        for ((keys, owners), scores) in blocks {
            if keys.len() < BLOCK / 4 {
                for ((keys, owners), scores) in keys.chunks(1).zip(owners.chunks_mut(1)).zip(scores.chunks_mut(1)) {
                    weighted_block::<1>(self.table, keys, owners, scores);
                }
            } else {
                weighted_block::<BLOCK>(self.table, keys, owners, scores);
            }
        }
    }
}

/// Finds the workers of a block of keys by weight. Computes the exact value of the worker with the greatest bound, and
/// then only the values of workers whose bound reaches that value.
#[inline(always)]
fn weighted_block<const B: usize>(table: &Table, keys: &[u64], owners: &mut [u32], scores: &mut [u32]) {
    let columns = columns::<B>(keys);
    let mut maxima = Maxima { of_tile: [[0; B]; TILES], tiles: 0, first: 0 };
    let mut tops = [Top::NONE; B];
    for first in (0..table.len()).step_by(TILES * TILE) {
        maxima.sweep::<Merit>(table, first, &columns);
        let greatest = maxima.greatest();
        let mut floors = [u32::MAX; B];
        for (at, key) in keys.iter().enumerate() {
            let tile = greatest[at] as usize;
            let most = maxima.of_tile[tile][at];
            maxima.workers::<Merit>(table, *key, tile, most, |worker, score| {
                tops[at].consider(table, worker, score);
            });
            floors[at] = tops[at].floor(table);
        }
        maxima.for_each_reaching_tile(&floors, |at, tile| {
            if at < keys.len() {
                let top = &mut tops[at];
                maxima.workers::<Merit>(table, keys[at], tile, floors[at], |worker, score| {
                    top.consider(table, worker, score);
                });
            }
        });
    }
    for (at, (owner, score)) in owners.iter_mut().zip(scores).enumerate() {
        (*owner, *score) = (tops[at].worker, tops[at].score);
    }
}

/// The best worker of a key so far.
#[derive(Clone, Copy)]
struct Top {
    value: f64,
    score: u32,
    worker: u32,
}

impl Top {
    const NONE: Self = Self { value: -1.0, score: 0, worker: u32::MAX };

    /// Returns the smallest measure that a worker with at least the current value can have.
    #[inline(always)]
    fn floor(&self, table: &Table) -> u32 {
        if self.value == f64::INFINITY {
            return 0; // Beyond what a float holds, values are equal and scores decide.
        }
        !((table.greatest() / self.value * 2_147_483_648.0 * SLACK) as f32).to_bits()
    }

    /// Replaces the best worker if this worker is better. Workers may come in any order and more than once.
    #[inline(always)]
    fn consider(&mut self, table: &Table, worker: usize, score: u32) {
        if worker as u32 == self.worker {
            return;
        }
        let value = table.weight(worker) / exponential(score);
        let first = (worker as u32) < self.worker;
        let better = score > self.score || (score == self.score && first);
        if value > self.value || (value == self.value && better) {
            *self = Self { value, score, worker: worker as u32 };
        }
    }
}

/// Finds the best `k` workers of each key, best first. Each key has `min(k, workers)` entries in `best`. O(keys x
/// workers).
///
/// # Panics
/// If `best` has the wrong length, or if `k` or the number of workers is 0.
pub fn top(level: InstructionSet, table: &Table, keys: &[u64], k: usize, best: &mut [u32]) {
    let k = k.min(table.len());
    assert!(best.len() == keys.len() * k && k > 0);
    level.run(TopK { table, keys, k, best });
}

struct TopK<'a> {
    table: &'a Table,
    keys: &'a [u64],
    k: usize,
    best: &'a mut [u32],
}

impl Work for TopK<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Self { table, keys, k, best } = self;
        let mut found = Vec::new();
        found.resize_with(BLOCK, Vec::new);
        for (keys, best) in keys.chunks(BLOCK).zip(best.chunks_mut(BLOCK * k)) {
            if keys.len() < BLOCK / 4 {
                for (key, best) in keys.iter().zip(best.chunks_mut(k)) {
                    top_block::<1>(table, &[*key], k, best, &mut found);
                }
            } else {
                top_block::<BLOCK>(table, keys, k, best, &mut found);
            }
        }
    }
}

/// The inverted scores and numbers of workers found for a key.
type Found = Vec<(u32, u32)>;

/// Finds the best `k` workers of a block of keys. At least k workers reach the k-th greatest maximum of the tiles, so
/// it is a bound.
#[inline(always)]
fn top_block<const B: usize>(table: &Table, keys: &[u64], k: usize, best: &mut [u32], found: &mut [Found]) {
    let columns = columns::<B>(keys);
    let mut maxima = Maxima { of_tile: [[0; B]; TILES], tiles: 0, first: 0 };
    for first in (0..table.len()).step_by(TILES * TILE) {
        maxima.sweep::<Score>(table, first, &columns);
        let mut floors = maxima.kth(k);
        floors[keys.len()..].fill(u32::MAX);
        for (floor, found) in floors.iter_mut().zip(&mut *found) {
            if found.len() >= k {
                found.select_nth_unstable(k - 1);
                found.truncate(k);
                *floor = (*floor).max(!found[k - 1].0);
            }
        }
        maxima.for_each_reaching_tile(&floors, |at, tile| {
            if at < keys.len() {
                let found = &mut found[at];
                let visit = |worker: usize, score: u32| found.push((!score, worker as u32));
                maxima.workers::<Score>(table, keys[at], tile, floors[at], visit);
            }
        });
    }
    for (found, best) in found.iter_mut().zip(best.chunks_mut(k)) {
        found.sort_unstable();
        best.iter_mut().zip(&*found).for_each(|(place, (_, worker))| *place = *worker);
        found.clear();
    }
}

/// Calls `visit` for each item for which the worker's score is at least the one in `scores`, with that score. O(items).
pub fn challenge(level: InstructionSet, worker: u64, keys: &[u64], scores: &[u32], visit: impl FnMut(usize, u32)) {
    level.run(Challenge { worker, keys, scores, visit });
}

struct Challenge<'a, F> {
    worker: u64,
    keys: &'a [u64],
    scores: &'a [u32],
    visit: F,
}

impl<F: FnMut(usize, u32)> Work for Challenge<'_, F> {
    type Output = ();

    #[inline(always)]
    fn run(mut self) {
        for (block, (keys, scores)) in self.keys.chunks(ITEMS).zip(self.scores.chunks(ITEMS)).enumerate() {
            let mut any = false;
            for (key, score) in keys.iter().zip(scores) {
                any |= fast_score(*key, self.worker) >= *score;
            }
            if !any {
                continue;
            }
            for (at, (key, score)) in keys.iter().zip(scores).enumerate() {
                let new = fast_score(*key, self.worker);
                if new >= *score {
                    (self.visit)(block * ITEMS + at, new);
                }
            }
        }
    }
}

/// Returns the positions of the items of a worker, ascending. O(items).
pub fn held_by(level: InstructionSet, worker: u32, owners: &[u32]) -> Vec<u32> {
    level.run(HeldBy { worker, owners })
}

struct HeldBy<'a> {
    worker: u32,
    owners: &'a [u32],
}

impl Work for HeldBy<'_> {
    type Output = Vec<u32>;

    #[inline(always)]
    fn run(self) -> Vec<u32> {
        let mut held = Vec::new();
        for (block, owners) in self.owners.chunks(ITEMS).enumerate() {
            let mut any = false;
            for owner in owners {
                any |= *owner == self.worker;
            }
            if any {
                let theirs = owners.iter().enumerate().filter(|(_, owner)| **owner == self.worker);
                held.extend(theirs.map(|(at, _)| (block * ITEMS + at) as u32));
            }
        }
        held
    }
}
