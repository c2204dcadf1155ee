//! Scores of (key, worker) pairs: the definitions that placements depend on. Changing anything here moves items.
//!
//! `fast`: key and worker are hashed once each, by the first 64 bits of murmur3_x64_128 with [`KEY_SEED`] and
//! [`WORKER_SEED`]. With `x = key ^ worker`, the score is the 32-bit unsigned number
//!
//! ```text
//! low32(x) * 0x9E3779B1  +  high32(x) * 0x85EBCA77      (mod 2^32)
//! ```
//!
//! Two 32-bit multiplies, an exclusive or, a shift and an add, with no data dependence between pairs: a loop over
//! workers vectorises on every instruction set since SSE2. One multiply is not enough: it skews loads by many sigma.
//!
//! `compat`: the score is the first 64 bits of murmur3_x64_128(key + worker), seed 0, compared as a signed number.
//!
//! Weighted, both modes: `u = (2 t + 1) / 2^33` with `t` the 32 highest bits of the score in ascending order, and the
//! pair's value is `weight / -ln(u)`. `-ln` is computed here with IEEE additions, multiplications and divisions only,
//! so that it is the same on every machine.

use crate::hash::murmur3_64;

/// Seed of the hash of keys in `fast` mode.
pub const KEY_SEED: u32 = 0x6974_656d;
/// Seed of the hash of workers in `fast` mode.
pub const WORKER_SEED: u32 = 0x776f_726b;

pub(crate) const LOW_FACTOR: u32 = 0x9E37_79B1;
pub(crate) const HIGH_FACTOR: u32 = 0x85EB_CA77;
const SQRT_HALF: f64 = std::f64::consts::FRAC_1_SQRT_2;
const LN_2: f64 = std::f64::consts::LN_2;

/// Returns the `fast` score of a hashed key and a hashed worker.
#[inline(always)]
pub fn fast_score(key: u64, worker: u64) -> u32 {
    let x = key ^ worker;
    let (low, high) = (x as u32, (x >> 32) as u32);
    low.wrapping_mul(LOW_FACTOR).wrapping_add(high.wrapping_mul(HIGH_FACTOR))
}

/// Returns the hash of a key in `fast` mode.
pub fn fast_key(key: &[u8]) -> u64 {
    murmur3_64(key, KEY_SEED)
}

/// Returns the hash of a worker in `fast` mode.
pub fn fast_worker(worker: &[u8]) -> u64 {
    murmur3_64(worker, WORKER_SEED)
}

/// Returns the `compat` score of a key and a worker. `buffer` is scratch space.
pub fn compat_score(key: &[u8], worker: &[u8], buffer: &mut Vec<u8>) -> i64 {
    buffer.clear();
    buffer.extend_from_slice(key);
    buffer.extend_from_slice(worker);
    murmur3_64(buffer, 0) as i64
}

/// Maps a `compat` score to an unsigned number, so that the order is the same.
pub fn ascending(score: i64) -> u64 {
    (score as u64) ^ (1 << 63)
}

/// Returns `-ln((2 top + 1) / 2^33)`. The result is positive, strictly decreasing in `top`, and equal on every machine.
///
/// The results of neighboring arguments differ by at least 2^-38 in relation to their size. The error of the series is
/// below 2^-48.
pub fn exponential(top: u32) -> f64 {
    let odd = 2 * u64::from(top) + 1;
    let bits = 64 - odd.leading_zeros();
    let mut mantissa = odd as f64 / (1u64 << bits) as f64;
    let mut halvings = f64::from(33 - bits);
    if mantissa < SQRT_HALF {
        mantissa *= 2.0;
        halvings += 1.0;
    }
    halvings * LN_2 - log_near_one(mantissa)
}

/// Returns ln(x) for x in [0.7, 1.42], computed by the series of the inverse hyperbolic tangent.
fn log_near_one(x: f64) -> f64 {
    let f = (x - 1.0) / (x + 1.0);
    let square = f * f;
    let mut sum = 0.0;
    for odd in [23.0, 21.0, 19.0, 17.0, 15.0, 13.0, 11.0, 9.0, 7.0, 5.0, 3.0] {
        sum = (sum + 1.0 / odd) * square;
    }
    2.0 * f * (1.0 + sum)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Random;

    #[test]
    fn exponential_agrees_with_the_standard_logarithm() {
        let mut random = Random::new(1);
        let edges = [0, 1, 2, u32::MAX - 1, u32::MAX, 1 << 31, (1 << 31) - 1];
        for top in edges.into_iter().chain((0..100_000).map(|_| random.next() as u32)) {
            let expected = -((2.0 * f64::from(top) + 1.0) / 2f64.powi(33)).ln();
            assert!((exponential(top) - expected).abs() <= 4e-15 * expected, "{top}");
        }
    }

    #[test]
    fn exponential_strictly_decreases_everywhere_we_look() {
        let mut random = Random::new(2);
        let root = (2f64.powi(32) * SQRT_HALF) as u32;
        let edges = (0..32).map(|bit| 1u32 << bit).chain([root, root / 2, 1000]);
        for start in edges.chain((0..2000).map(|_| random.next() as u32)) {
            for top in start.saturating_sub(50)..start.saturating_add(50) {
                assert!(exponential(top) > exponential(top + 1), "{top}");
            }
        }
    }

    /// How many sigma a chi-square lies above its mean.
    fn sigma(counts: &[u64], expected: f64) -> f64 {
        let chi: f64 = counts.iter().map(|&c| (c as f64 - expected).powi(2) / expected).sum();
        let freedom = counts.len() as f64 - 1.0;
        (chi - freedom) / (2.0 * freedom).sqrt()
    }

    #[test]
    fn loads_of_two_to_five_workers_are_as_even_as_chance_over_millions_of_items() {
        let items = 4_000_000u64;
        let workers: Vec<u64> = (0..5).map(|n| fast_worker(format!("worker-{n}").as_bytes())).collect();
        let mut loads = [[0u64; 5]; 6];
        for n in 0..items {
            let mut id = *b"orders:000000000";
            (0..9).for_each(|digit| id[15 - digit] += (n / 10u64.pow(digit as u32) % 10) as u8);
            let key = fast_key(&id);
            let (mut top, mut owner) = (0, 0);
            for (worker, &hash) in workers.iter().enumerate() {
                let score = fast_score(key, hash);
                if score > top {
                    (top, owner) = (score, worker);
                }
                loads[worker + 1][owner] += 1;
            }
        }
        for (count, load) in loads.iter().enumerate().skip(2) {
            let off = sigma(&load[..count], items as f64 / count as f64);
            assert!(off < 4.0, "{count} workers: {off} sigma, {load:?}");
        }
    }

    #[test]
    fn ascending_keeps_the_signed_order() {
        let scores = [i64::MIN, -5, -1, 0, 1, 7, i64::MAX];
        assert!(scores.map(ascending).windows(2).all(|p| p[0] < p[1]));
    }
}
