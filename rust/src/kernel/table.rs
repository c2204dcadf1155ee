//! Hashed workers, laid out for vectors.

/// Workers in a row: the widest vector.
pub(super) const WIDEST: usize = 16;
/// Rows that are scored for a batch of keys before the next ones: they stay in first-level cache.
pub(super) const TILE: usize = 64;

/// Sixteen workers.
#[derive(Debug, Clone, Copy)]
#[repr(C, align(64))]
pub(super) struct Row {
    pub low: [u32; WIDEST],
    pub high: [u32; WIDEST],
    pub rates: [u32; WIDEST],
}

/// Hashed workers in name order.
///
/// The last row is filled up with the last worker. A repeated worker can only tie with the original, which comes
/// first, and ties go to the first: so padding never owns anything. Low halves are biased by 2^31: since the factor of
/// the low half is odd, this adds 2^31 to the score, and scores compare right as signed numbers, which is what SSE2 has.
#[derive(Debug, Clone, Default)]
pub struct Table {
    count: usize,
    rows: Vec<Row>,
    weighted: bool,
}

impl Table {
    /// Workers by their hashes; `weights` empty or one per worker, finite and positive. O(workers).
    pub fn new(hashes: &[u64], weights: &[f64]) -> Self {
        let greatest = weights.iter().fold(0.0, |a: f64, b| a.max(*b));
        let row = |start: usize| {
            let worker = |lane: usize| (start + lane).min(hashes.len() - 1);
            let weight = |lane: usize| weights.get(worker(lane)).copied().unwrap_or(greatest);
            Row {
                low: std::array::from_fn(|lane| hashes[worker(lane)] as u32 ^ (1 << 31)),
                high: std::array::from_fn(|lane| (hashes[worker(lane)] >> 32) as u32),
                rates: std::array::from_fn(|lane| rate(greatest, weight(lane))),
            }
        };
        let rows = (0..hashes.len()).step_by(WIDEST).map(row).collect();
        Self { count: hashes.len(), rows, weighted: !weights.is_empty() }
    }

    /// How many workers there are.
    pub fn len(&self) -> usize {
        self.count
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Whether it was made with weights.
    pub fn is_weighted(&self) -> bool {
        self.weighted
    }

    /// A worker's hash.
    pub fn hash(&self, worker: usize) -> u64 {
        let (row, lane) = (&self.rows[worker / WIDEST], worker % WIDEST);
        u64::from(row.high[lane]) << 32 | u64::from(row.low[lane] ^ (1 << 31))
    }

    /// All rows; lanes from the count on repeat the last worker.
    pub(super) fn rows(&self) -> &[Row] {
        &self.rows
    }

    /// All rows, in tiles, each with the number of its first worker.
    pub(super) fn tiles(&self) -> impl Iterator<Item = (usize, &[Row])> {
        (0..).step_by(TILE * WIDEST).zip(self.rows.chunks(TILE))
    }

    /// Those rows that are full, in tiles, and the number of the first worker that is in none.
    pub(super) fn full_tiles(&self) -> (impl Iterator<Item = (usize, &[Row])>, usize) {
        let full = self.count / WIDEST;
        ((0..).step_by(TILE * WIDEST).zip(self.rows[..full].chunks(TILE)), full * WIDEST)
    }
}

/// Bits of `greatest / weight` as a float that is not above it, nor too great to multiply by 2^31.
fn rate(greatest: f64, weight: f64) -> u32 {
    let exact = if greatest > 0.0 { (greatest / weight).min(f64::from(f32::MAX) / 4e9) } else { 1.0 };
    let near = exact as f32;
    let down = if f64::from(near) > exact { f32::from_bits(near.to_bits() - 1) } else { near };
    down.to_bits()
}
