//! Exactness against brute force on small problems, promises on larger ones.

use super::*;
use crate::balance::quota;
use crate::testing::Random;

fn place(problem: &Replicas) -> Vec<Vec<u32>> {
    super::place(problem, &Cancel::never()).unwrap()
}

fn random_problem(random: &mut Random, items: usize, workers: usize, zones: usize, weights: &[f64]) -> Replicas {
    let workers = 1 + random.below(workers);
    let mut zone: Vec<u32> = (0..workers).map(|_| random.below(zones) as u32).collect();
    let mut used = zone.clone();
    used.sort_unstable();
    used.dedup();
    zone.iter_mut().for_each(|zone| *zone = used.iter().position(|u| u == zone).unwrap() as u32);
    let had = |random: &mut Random| (0..workers as u32).filter(|w| random.below(2 + *w as usize) == 0).collect();
    let count = random.below(items + 1);
    Replicas {
        copies: random.below(5) as u32,
        zone,
        weights: (0..workers).map(|_| weights[random.below(weights.len())]).collect(),
        previous: (0..count).map(|_| had(random)).collect(),
    }
}

fn zone_counts(problem: &Replicas, owners: &[u32]) -> Vec<u32> {
    let mut counts = vec![0; problem.zone.iter().max().map_or(0, |z| *z as usize + 1)];
    owners.iter().for_each(|w| counts[problem.zone[*w as usize] as usize] += 1);
    counts
}

/// Whether an item's replicas are spread as the definition says.
fn is_spread(problem: &Replicas, owners: &[u32]) -> bool {
    let counts = zone_counts(problem, owners);
    let size = |zone: usize| problem.zone.iter().filter(|z| **z as usize == zone).count() as u32;
    let fullest = counts.iter().max().copied().unwrap_or(0);
    let even = (0..counts.len()).all(|zone| counts[zone] + 1 >= fullest || counts[zone] == size(zone));
    owners.len() == (problem.copies as usize).min(problem.zone.len()) && even
}

/// Squared loads, then replicas on workers that did not have them.
fn value(problem: &Replicas, owners: &[Vec<u32>]) -> (i128, usize) {
    let mut loads = quota::Loads::empty(&problem.weights);
    owners.iter().flatten().for_each(|w| loads.load[*w as usize] += 1);
    let new = |(owners, had): (&Vec<u32>, &Vec<u32>)| owners.iter().filter(|w| !had.contains(w)).count();
    (loads.cost(), owners.iter().zip(&problem.previous).map(new).sum())
}

fn brute(problem: &Replicas) -> (i128, usize) {
    let sets = (0u32..1 << problem.zone.len())
        .map(|set| (0..problem.zone.len() as u32).filter(|w| set >> w & 1 == 1).collect());
    let choices: Vec<Vec<u32>> = sets.filter(|owners: &Vec<u32>| is_spread(problem, owners)).collect();
    let mut at = vec![0; problem.previous.len()];
    let mut least = (i128::MAX, 0);
    loop {
        let owners: Vec<Vec<u32>> = at.iter().map(|choice: &usize| choices[*choice].clone()).collect();
        least = least.min(value(problem, &owners));
        let Some(turn) = (0..at.len()).find(|&item| at[item] + 1 < choices.len()) else { return least };
        at[..turn].fill(0);
        at[turn] += 1;
    }
}

fn check(seed: u64, rounds: usize, weights: &[f64]) {
    let mut random = Random::new(seed);
    for round in 0..rounds {
        let problem = random_problem(&mut random, 4, 5, 4, weights);
        let owners = place(&problem);
        assert!(owners.iter().all(|owners| is_spread(&problem, owners)), "round {round}: {problem:?} {owners:?}");
        assert_eq!(value(&problem, &owners), brute(&problem), "round {round}: {problem:?} {owners:?}");
    }
}

#[test]
fn replicas_are_optimal_for_equal_weights() {
    check(41, 1500, &[1.0]);
}

#[test]
fn replicas_are_optimal_for_unequal_weights() {
    check(42, 1500, &[1.0, 2.0, 3.0, 0.5]);
}

#[test]
fn many_replicas_are_spread_level_and_stay_where_they_are() {
    let mut random = Random::new(43);
    for _ in 0..20 {
        let mut problem = random_problem(&mut random, 300, 40, 6, &[1.0]);
        let owners = place(&problem);
        assert!(owners.iter().all(|owners| is_spread(&problem, owners)));
        let (cost, _) = value(&problem, &owners);
        problem.previous = owners;
        assert_eq!(value(&problem, &place(&problem)), (cost, 0));
    }
}

#[test]
fn zones_allow_one_replica_each_as_long_as_there_are_enough() {
    let zone = vec![0, 0, 0, 1, 2];
    assert_eq!(Spread::new(3, &zone), Spread { base: vec![1, 1, 1], open: vec![true, false, false], extras: 0 });
    assert_eq!(Spread::new(2, &zone), Spread { base: vec![0, 0, 0], open: vec![true; 3], extras: 2 });
    assert_eq!(Spread::new(4, &zone), Spread { base: vec![2, 1, 1], open: vec![true, false, false], extras: 0 });
    assert_eq!(Spread::new(9, &zone), Spread { base: vec![3, 1, 1], open: vec![false; 3], extras: 0 });
    assert_eq!(Spread::new(3, &[]), Spread { base: vec![], open: vec![], extras: 0 });
}
