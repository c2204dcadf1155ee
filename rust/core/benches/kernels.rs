//! Runs one kernel several times and prints its speed.
//!
//! Kernels: best, weighted, top3; and loops for the baseline: plain, which has the same scores as best, and fmix64.
//! Instruction sets: baseline, avx2, avx512.
//!
//! `kernels KERNEL LEVEL WORKERS KEYS [REPEATS]` prints billions of pairs per second, of the fastest repeat.

#![allow(clippy::cast_possible_truncation, clippy::cast_precision_loss)] // small numbers

use std::time::Instant;

use latchwork_core::hash::fmix64;
use latchwork_core::rendezvous::kernel::{best, top, weighted, InstructionSet, Table};
use latchwork_core::rendezvous::score::fast_score;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|a| a != "--bench").collect();
    let [kernel, level, workers, keys, rest @ ..] = &arguments[..] else {
        println!("usage: kernels KERNEL LEVEL WORKERS KEYS [REPEATS]");
        return;
    };
    let (workers, keys): (u64, u64) = (workers.parse().unwrap(), keys.parse().unwrap());
    let repeats = rest.first().map_or(5, |text| text.parse().unwrap());
    let hashes: Vec<u64> = (1..=workers).map(fmix64).collect();
    let keys: Vec<u64> = (1..=keys).map(|n| fmix64(n << 32)).collect();
    let mut run = runner(kernel, level, &hashes, &keys);
    let mut least = f64::INFINITY;
    for _ in 0..repeats {
        let started = Instant::now();
        run();
        least = least.min(started.elapsed().as_secs_f64());
    }
    let pairs = (workers * keys.len() as u64) as f64;
    println!("{kernel} {level} {workers} x {}: {:.2} billion pairs/s", keys.len(), pairs / least / 1e9);
}

fn runner<'a>(kernel: &str, level: &str, hashes: &'a [u64], keys: &'a [u64]) -> Box<dyn FnMut() + 'a> {
    let (mut owners, mut scores) = (vec![0; keys.len()], vec![0; keys.len()]);
    match kernel {
        "fmix64" => return Box::new(move || plain_loop(hashes, keys, &mut owners, |key, hash| fmix64(key ^ hash))),
        "plain" => return Box::new(move || plain_loop(hashes, keys, &mut owners, fast_score)),
        _ => {}
    }
    let level = *InstructionSet::available().iter().find(|l| l.name() == level).expect("this processor has the level");
    let plain = Table::new(hashes, &[]);
    let weights: Vec<f64> = (0..hashes.len()).map(|n| 1.0 + (n * n % 997) as f64 / 500.0).collect();
    let unequal = Table::new(hashes, &weights);
    let mut three = vec![0; keys.len() * hashes.len().min(3)];
    match kernel {
        "best" => Box::new(move || best(level, &plain, keys, &mut owners, &mut scores)),
        "weighted" => Box::new(move || weighted(level, &unequal, keys, &mut owners, &mut scores)),
        "top3" => Box::new(move || top(level, &plain, keys, 3, &mut three)),
        _ => panic!("unknown kernel '{kernel}'"),
    }
}

/// What the goals compare with: the loop that one writes first, compiled for the baseline.
#[inline(never)]
fn plain_loop<T: Ord + Default>(workers: &[u64], keys: &[u64], owners: &mut [u32], score: impl Fn(u64, u64) -> T) {
    for (key, owner) in keys.iter().zip(owners) {
        let (mut top, mut at) = (T::default(), 0);
        for (worker, hash) in workers.iter().enumerate() {
            let score = score(*key, *hash);
            if score > top {
                (top, at) = (score, worker as u32);
            }
        }
        *owner = at;
    }
}
