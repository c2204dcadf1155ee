//! Times Balanced and EvenlySpread on demands alone, also on those that are hard for them. No Python, no items.
//!
//!     cargo run --release --no-default-features --example balance_times [workers] [jobs]

#![allow(clippy::cast_possible_truncation, clippy::cast_precision_loss)] // small numbers

use std::time::Instant;

use latchwork_core::balance::quota::Demand;
use latchwork_core::balance::strategy::Incremental;
use latchwork_core::cancel::Cancel;

/// xorshift64*: reproducible, and good enough to shape a problem.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u32) -> u32 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        ((self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 32) % u64::from(bound)) as u32
    }
}

fn demand(items: u32, able: Vec<u32>) -> Demand {
    let count = able.len();
    Demand { items, able, weights: vec![1.0; count], held: vec![0; count] }
}

fn random(workers: u32, jobs: u32, percent_able: u32) -> Vec<Demand> {
    let mut rng = Random(7);
    let able = |rng: &mut Random| (0..workers).filter(|_| rng.below(100) < percent_able).collect();
    (0..jobs).map(|_| demand(workers / 2 + rng.below(workers), able(&mut rng))).collect()
}

/// Each job can run on a few neighbours only, and the first ones have most of the items.
fn line(workers: u32, jobs: u32) -> Vec<Demand> {
    let mut rng = Random(8);
    let one = |job: u32, rng: &mut Random| {
        let first = job * (workers - 3) / jobs;
        let items = if first < workers / 10 { 101 } else { 1 };
        demand(items + rng.below(2), (first..first + 3).collect())
    };
    (0..jobs).map(|job| one(job, &mut rng)).collect()
}

/// Job j can run on the first workers only, as many as j says: every worker has another load.
fn nested(workers: u32, jobs: u32) -> Vec<Demand> {
    (1..=jobs).map(|job| demand(workers / 2 + job % 7, (0..(job * workers / jobs).max(2)).collect())).collect()
}

/// One item per job and two workers able: an edge orientation problem, all choices are open.
fn pairs(workers: u32, jobs: u32) -> Vec<Demand> {
    let mut rng = Random(9);
    let pair = |rng: &mut Random| {
        let (a, b) = (rng.below(workers), rng.below(workers / 10));
        if a == b {
            vec![a]
        } else {
            vec![a.min(b), a.max(b)]
        }
    };
    (0..jobs * 50).map(|_| demand(1, pair(&mut rng))).collect()
}

fn with_held(mut demands: Vec<Demand>, sizes: &[Vec<u32>]) -> Vec<Demand> {
    demands.iter_mut().zip(sizes).for_each(|(demand, sizes)| demand.held.clone_from(sizes));
    demands
}

/// The worker in the middle goes.
fn left(mut demands: Vec<Demand>, worker: u32) -> Vec<Demand> {
    for demand in &mut demands {
        if let Ok(at) = demand.able.binary_search(&worker) {
            demand.able.remove(at);
            demand.weights.remove(at);
            demand.held.remove(at);
        }
    }
    demands
}

/// Another worker comes, last in name order, able to run everything.
fn joined(mut demands: Vec<Demand>, worker: u32) -> Vec<Demand> {
    for demand in &mut demands {
        demand.able.push(worker);
        demand.weights.push(1.0);
        demand.held.push(0);
    }
    demands
}

/// Everything was held by anybody: nearly every seat is a gain, and few fit.
fn scattered(mut demands: Vec<Demand>) -> Vec<Demand> {
    let mut rng = Random(10);
    for demand in &mut demands {
        for _ in 0..demand.items {
            let at = rng.below(demand.able.len() as u32) as usize;
            demand.held[at] += 1;
        }
    }
    demands
}

fn time(name: &str, workers: u32, demands: &[Demand]) -> Vec<Vec<u32>> {
    let run = |strategy: Incremental| {
        let started = Instant::now();
        let sizes = strategy.sizes(workers as usize, demands, &Cancel::never()).expect("nobody cancels");
        (started.elapsed().as_secs_f64() * 1e3, sizes)
    };
    let (spread_ms, _) = run(Incremental::EvenlySpread);
    let (balanced_ms, sizes) = run(Incremental::Balanced);
    println!("{name:34}{spread_ms:12.1}{balanced_ms:12.1}");
    sizes
}

fn main() {
    let mut arguments = std::env::args().skip(1).map(|text| text.parse().expect("a number"));
    let (workers, jobs) = (arguments.next().unwrap_or(1000), arguments.next().unwrap_or(1000));
    println!("{:34}{:>12}{:>12}", format!("{workers} workers, {jobs} jobs, ms"), "spread", "balanced");
    let cases = [
        ("all able", random(workers, jobs, 100)),
        ("70 % able", random(workers, jobs, 70)),
        ("5 % able", random(workers, jobs, 5)),
        ("a line", line(workers, jobs)),
        ("nested", nested(workers, jobs)),
        ("pairs", pairs(workers, jobs)),
    ];
    for (name, demands) in cases {
        let sizes = time(&format!("{name}, cold"), workers, &demands);
        let rest = with_held(demands.clone(), &sizes);
        time(&format!("{name}, at rest"), workers, &rest);
        time(&format!("{name}, one left"), workers, &left(rest.clone(), workers / 2));
        time(&format!("{name}, one joined"), workers + 1, &joined(rest, workers));
        time(&format!("{name}, scattered"), workers, &scattered(demands));
    }
}
