//! Exactness against brute force, in pure Rust; `tests/assignment` repeats it from Python on whole items.

use super::*;
use crate::balance::quota::Loads;
use crate::testing::Random;

fn seats(workers: usize, jobs: &[Demand], shares: &[Share]) -> Vec<Vec<bool>> {
    super::seats(workers, jobs, shares, &Cancel::never()).unwrap()
}

fn random_job(random: &mut Random, workers: usize, weight: &[f64]) -> Demand {
    let able: Vec<u32> = (0..workers as u32).filter(|_| random.below(10) < 7).collect();
    let items = random.below(13) as u32;
    let mut held = vec![0; able.len()];
    for _ in 0..items {
        if !able.is_empty() && random.below(5) > 0 {
            held[random.below(able.len().min(3))] += 1;
        }
    }
    let weights = able.iter().map(|&w| weight[w as usize]).collect();
    Demand { items, able, weights, held }
}

/// All ways to give the seats of one job.
fn choices(share: &Share) -> Vec<Vec<bool>> {
    let candidates: Vec<u32> = share.candidates().collect();
    let seats = if share.gain.is_empty() { 0 } else { share.quota.seats };
    let subsets = (0u32..1 << candidates.len()).filter(|set| set.count_ones() == seats);
    let seated = |set: u32| {
        let mut seated = vec![false; share.gain.len()];
        let chosen = candidates.iter().enumerate().filter(|(bit, _)| set >> bit & 1 == 1);
        chosen.for_each(|(_, &at)| seated[at as usize] = true);
        seated
    };
    subsets.map(seated).collect()
}

/// Cost and gains of a placement, as something to minimise.
fn value(jobs: &[Demand], shares: &[Share], seated: &[&Vec<bool>], bare: &Loads) -> (i128, i64) {
    let (mut loads, mut gains) = (bare.clone(), 0);
    for ((job, share), seated) in jobs.iter().zip(shares).zip(seated) {
        for at in (0..seated.len()).filter(|&at| seated[at]) {
            loads.load[job.able[at] as usize] += 1;
            gains += i64::from(share.gain[at]);
        }
    }
    (loads.cost(), -gains)
}

fn brute(jobs: &[Demand], shares: &[Share], bare: &Loads) -> (i128, i64) {
    let options: Vec<Vec<Vec<bool>>> = shares.iter().map(choices).collect();
    let mut least = (i128::MAX, 0);
    let mut at = vec![0; jobs.len()];
    loop {
        let seated: Vec<&Vec<bool>> = at.iter().zip(&options).map(|(&i, o)| &o[i]).collect();
        least = least.min(value(jobs, shares, &seated, bare));
        let Some(turn) = (0..at.len()).find(|&j| at[j] + 1 < options[j].len()) else { return least };
        at[..turn].fill(0);
        at[turn] += 1;
    }
}

fn check(seed: u64, rounds: usize, workers: usize, weights: &[f64]) -> usize {
    let mut random = Random::new(seed);
    let mut gains = 0;
    for round in 0..rounds {
        let count = 1 + round % 4;
        let jobs: Vec<Demand> = (0..count).map(|_| random_job(&mut random, workers, weights)).collect();
        let shares: Vec<Share> = jobs.iter().map(Share::of).collect();
        let bare = Loads::new(workers, &jobs, &shares);
        let seated = seats(workers, &jobs, &shares);
        for (seated, share) in seated.iter().zip(&shares) {
            assert!(choices(share).contains(seated), "round {round}: not one of the choices");
        }
        let found = value(&jobs, &shares, &seated.iter().collect::<Vec<_>>(), &bare);
        assert_eq!(found, brute(&jobs, &shares, &bare), "round {round}: {jobs:?}");
        gains += usize::from(found.1 < 0);
    }
    gains
}

#[test]
fn seats_are_optimal_for_equal_weights() {
    assert!(check(7, 1500, 5, &[1.0; 5]) > 500);
    check(8, 600, 3, &[1.0; 3]);
}

#[test]
fn seats_are_optimal_for_unequal_weights() {
    assert!(check(9, 1000, 5, &[1.0, 2.0, 3.0, 1.0, 0.5]) > 200);
    check(10, 500, 4, &[0.7, 0.1, 0.9, 1e-9]);
}

#[test]
fn a_hundred_workers_and_jobs_in_upheaval_are_levelled() {
    let mut random = Random::new(11);
    let weights = [1.0; 100];
    let mut jobs = Vec::new();
    for _ in 0..100 {
        let mut job = random_job(&mut random, 100, &weights);
        let held: u32 = job.held.iter().sum();
        job.held.fill(0);
        job.held[0] = held;
        jobs.push(job);
    }
    let shares: Vec<Share> = jobs.iter().map(Share::of).collect();
    let mut loads = Loads::new(100, &jobs, &shares);
    for (job, seated) in jobs.iter().zip(seats(100, &jobs, &shares)) {
        let seated = (0..seated.len()).filter(|&at| seated[at]);
        seated.for_each(|at| loads.load[job.able[at] as usize] += 1);
    }
    assert!(loads.load.iter().max().unwrap() - loads.load.iter().min().unwrap() <= 1);
}

/// Prices prove that no chain of seats lowers the sum: see `equalize`.
fn check_prices(graph: &graph::Graph, loads: &Loads, price: &[i64]) {
    let priced = |worker: u32| price[worker as usize] != equalize::NO_PRICE;
    for seat in 0..graph.worker.len() {
        let (worker, others) = (graph.worker[seat], graph.of_job(graph.job[seat]));
        if graph.taken[seat] {
            assert!(priced(worker) && loads.saving_of_one_fewer(worker) <= price[worker as usize]);
            for free in others.filter(|free| !graph.taken[*free]) {
                let other = graph.worker[free];
                assert!(priced(other) && price[other as usize] >= price[worker as usize]);
                assert!(loads.cost_of_one_more(other) >= price[other as usize]);
            }
        }
    }
}

#[test]
fn prices_prove_the_least_sum_of_squares_on_large_problems_of_every_shape() {
    let mut random = Random::new(12);
    for round in 0..60u32 {
        let (workers, jobs) = (100, 150);
        let able = |random: &mut Random, job: u32| -> Vec<u32> {
            match round % 4 {
                0 => (0..workers).filter(|_| random.below(10) < 7).collect(),
                1 => (0..2 + job * (workers - 2) / jobs).collect(),
                2 => (job * (workers - 3) / jobs..).take(3).collect(),
                _ => {
                    let (a, b) = (random.below(workers as usize) as u32, random.below(10) as u32);
                    if a == b {
                        vec![a]
                    } else {
                        vec![a.min(b), a.max(b)]
                    }
                }
            }
        };
        let demand = |random: &mut Random, job: u32| {
            let (items, able) = (random.below(60) as u32, able(random, job));
            let held = able.iter().map(|_| random.below(3) as u32).collect();
            let weight = |worker: &u32| if round % 8 > 3 { 1.0 + f64::from(worker % 3) } else { 1.0 };
            Demand { items, weights: able.iter().map(weight).collect(), able, held }
        };
        let demands: Vec<Demand> = (0..jobs).map(|job| demand(&mut random, job)).collect();
        let shares: Vec<Share> = demands.iter().map(Share::of).collect();
        let (seated, mut loads) = start::seats(workers as usize, &demands, &shares, &Cancel::never()).unwrap();
        let mut graph = graph::Graph::new(workers as usize, &demands, &shares, &seated);
        let price = equalize::equalize(&mut graph, &mut loads, &Cancel::never()).unwrap();
        check_prices(&graph, &loads, &price);
        let least = loads.cost();
        gains::maximize_gains(&mut graph, &mut loads, &price, &Cancel::never()).unwrap();
        assert_eq!(loads.cost(), least, "round {round}: gains must not cost balance");
    }
}
