//! The hashes and weights of workers, in the memory layout of the kernels.

/// Hashed workers in name order, in columns.
#[derive(Debug, Clone, Default)]
pub struct Table {
    pub(super) low: Vec<u32>,
    pub(super) high: Vec<u32>,
    /// Empty where all weights are equal.
    pub(super) rates: Vec<f32>,
    weights: Vec<f64>,
    greatest: f64,
}

impl Table {
    /// Creates a table from the hashes of workers. `weights` is empty, or has one finite and positive weight per
    /// worker. O(workers).
    pub fn new(hashes: &[u64], weights: &[f64]) -> Self {
        let greatest = weights.iter().fold(0.0, |a: f64, b| a.max(*b));
        Self {
            low: hashes.iter().map(|hash| *hash as u32).collect(),
            high: hashes.iter().map(|hash| (*hash >> 32) as u32).collect(),
            rates: weights.iter().map(|weight| rate(greatest, *weight)).collect(),
            weights: weights.to_vec(),
            greatest,
        }
    }

    /// Returns the number of workers.
    pub fn len(&self) -> usize {
        self.low.len()
    }

    /// Returns whether there are no workers.
    pub fn is_empty(&self) -> bool {
        self.low.is_empty()
    }

    /// Returns whether the table has weights.
    pub fn is_weighted(&self) -> bool {
        !self.weights.is_empty()
    }

    /// Returns the hash of a worker.
    pub fn hash(&self, worker: usize) -> u64 {
        u64::from(self.high[worker]) << 32 | u64::from(self.low[worker])
    }

    /// Returns the weight of a worker. The table must have weights.
    pub(super) fn weight(&self, worker: usize) -> f64 {
        self.weights[worker]
    }

    /// Returns the greatest weight.
    pub(super) fn greatest(&self) -> f64 {
        self.greatest
    }
}

/// Returns `greatest / weight` as a float that is not greater than the exact quotient, and small enough to multiply by
/// 2^31.
fn rate(greatest: f64, weight: f64) -> f32 {
    let exact = (greatest / weight).min(f64::from(f32::MAX) / 4e9);
    let near = exact as f32;
    if f64::from(near) > exact {
        f32::from_bits(near.to_bits() - 1)
    } else {
        near
    }
}
