//! Every kernel on every level of this machine against the definition.

use super::{best, challenge, held_by, top, weighted, InstructionSet, Table};
use crate::rendezvous::score::{exponential, fast_score};
use crate::testing::Random;

/// Counts at and around what lanes, blocks and tiles divide.
const COUNTS: [usize; 24] =
    [1, 2, 3, 4, 5, 7, 8, 15, 16, 17, 31, 33, 63, 64, 65, 100, 127, 130, 511, 513, 1000, 1023, 1025, 2100];

fn random(seed: u64, count: usize) -> Vec<u64> {
    let mut random = Random::new(seed);
    (0..count).map(|_| random.next()).collect()
}

/// All workers from best to worst, by the definition.
fn ranked(key: u64, workers: &[u64], weights: &[f64]) -> Vec<(u32, u32)> {
    let value = |worker: usize, score| weights.get(worker).map_or(0.0, |weight| weight / exponential(score));
    let rate = |worker: usize| {
        let score = fast_score(key, workers[worker]);
        (value(worker, score), score, worker as u32)
    };
    let mut all: Vec<_> = (0..workers.len()).map(rate).collect();
    all.sort_by(|a, b| b.0.total_cmp(&a.0).then(b.1.cmp(&a.1)).then(a.2.cmp(&b.2)));
    all.into_iter().map(|(_, score, worker)| (worker, score)).collect()
}

fn found(level: InstructionSet, table: &Table, weights: &[f64], keys: &[u64]) -> Vec<(u32, u32)> {
    let (mut owners, mut scores) = (vec![7; keys.len()], vec![7; keys.len()]);
    if weights.is_empty() {
        best(level, table, keys, &mut owners, &mut scores);
    } else {
        weighted(level, table, keys, &mut owners, &mut scores);
    }
    owners.into_iter().zip(scores).collect()
}

#[test]
fn every_level_finds_the_best_worker_of_the_definition() {
    for level in InstructionSet::available() {
        for count in COUNTS {
            let (workers, keys) = (random(count as u64, count), random(1, 37));
            let expected: Vec<_> = keys.iter().map(|key| ranked(*key, &workers, &[])[0]).collect();
            let table = Table::new(&workers, &[]);
            for some in [1, 3, 4, 7, 16, 37] {
                let found = found(level, &table, &[], &keys[..some]);
                assert_eq!(found, expected[..some], "{} {count} {some}", level.name());
            }
        }
    }
}

#[test]
fn every_level_finds_the_best_weighted_worker_of_the_definition() {
    let scales: [fn(u64) -> f64; 5] = [
        |n| (n % 5 + 1) as f64,
        |n| (n % 1000 + 1) as f64 / 7.0,
        |n| 2f64.powi((n % 2000) as i32 - 1000),
        |n| [f64::MAX, f64::MIN_POSITIVE][n as usize % 2],
        |n| f64::MAX / (n % 64 + 1) as f64,
    ];
    for level in InstructionSet::available() {
        for count in COUNTS {
            for (number, scale) in scales.iter().enumerate() {
                let (workers, keys) = (random(count as u64, count), random(2, 19));
                let weights: Vec<f64> = random(3, count).into_iter().map(scale).collect();
                let expected: Vec<_> = keys.iter().map(|key| ranked(*key, &workers, &weights)[0]).collect();
                let table = Table::new(&workers, &weights);
                assert_eq!(found(level, &table, &weights, &keys), expected, "{} {count} {number}", level.name());
            }
        }
    }
}

#[test]
fn every_level_finds_the_best_k_of_the_definition() {
    for level in InstructionSet::available() {
        for count in COUNTS {
            let (workers, keys) = (random(count as u64, count), random(4, 13));
            for k in [1, 2, 3, 4, 5, 9, 16, 17, 40, 5000] {
                let places = k.min(count);
                let mut best = vec![7; keys.len() * places];
                top(level, &Table::new(&workers, &[]), &keys, k, &mut best);
                let expected = keys
                    .iter()
                    .flat_map(|key| ranked(*key, &workers, &[]).into_iter().take(places).map(|(worker, _)| worker));
                assert_eq!(best, expected.collect::<Vec<_>>(), "{} {count} {k}", level.name());
            }
        }
    }
}

#[test]
fn ties_go_to_the_first_worker_on_every_level() {
    let mut random = Random::new(5);
    for level in InstructionSet::available() {
        for count in COUNTS {
            // Few distinct workers, so that nearly every best score is there more than once.
            let few = [random.next(), random.next(), random.next()];
            let workers: Vec<u64> = (0..count).map(|_| few[random.below(3)]).collect();
            let keys: Vec<u64> = (0..9).map(|_| random.next()).collect();
            for weights in [vec![], vec![2.5; count]] {
                let table = Table::new(&workers, &weights);
                let expected: Vec<_> = keys.iter().map(|key| ranked(*key, &workers, &weights)[0]).collect();
                assert_eq!(found(level, &table, &weights, &keys), expected, "{} {count}", level.name());
            }
            let k = count.min(6);
            let mut best = vec![0; keys.len() * k];
            top(level, &Table::new(&workers, &[]), &keys, k, &mut best);
            for (key, best) in keys.iter().zip(best.chunks(k)) {
                let expected = ranked(*key, &workers, &[]);
                assert!(best.iter().eq(expected[..k].iter().map(|(worker, _)| worker)));
            }
        }
    }
}

#[test]
fn extreme_scores_are_found_on_every_level() {
    // A key equal to a worker scores 0 there; both extremes of the biased score must survive the vectors.
    for level in InstructionSet::available() {
        for count in [1, 3, 16, 40] {
            let key = 0x1234_5678_9abc_def0;
            let table = Table::new(&vec![key; count], &[]);
            assert_eq!(found(level, &table, &[], &[key]), [(0, 0)], "{}", level.name());
            // 0xffffffff = low * LOW_FACTOR with low the inverse of the factor times -1.
            let inverse = (0..5).fold(1u32, |x, _| {
                x.wrapping_mul(2u32.wrapping_sub(x.wrapping_mul(crate::rendezvous::score::LOW_FACTOR)))
            });
            let other = key ^ u64::from(inverse.wrapping_neg());
            let mut workers = vec![key; count];
            workers[count - 1] = other;
            assert_eq!(fast_score(key, other), u32::MAX);
            let expected = [(count as u32 - 1, u32::MAX)];
            assert_eq!(found(level, &Table::new(&workers, &[]), &[], &[key]), expected);
            let weights: Vec<f64> = (1..=count).map(|n| n as f64).collect();
            assert_eq!(found(level, &Table::new(&workers, &weights), &weights, &[key]), expected);
        }
    }
}

#[test]
fn a_challenge_visits_exactly_the_items_where_the_worker_scores_enough() {
    let mut random = Random::new(6);
    for level in InstructionSet::available() {
        for count in [0, 1, 31, 32, 33, 1000] {
            let keys: Vec<u64> = (0..count).map(|_| random.next()).collect();
            let worker = random.next();
            let floor: Vec<u32> = keys
                .iter()
                .map(|key| fast_score(*key, worker).wrapping_add(random.below(3) as u32).wrapping_sub(1))
                .collect();
            let mut visited = Vec::new();
            challenge(level, worker, &keys, &floor, |at, score| visited.push((at, score)));
            let score = |at: usize| fast_score(keys[at], worker);
            let expected: Vec<_> = (0..count).filter(|&at| score(at) >= floor[at]).map(|at| (at, score(at))).collect();
            assert_eq!(visited, expected);
        }
    }
}

#[test]
fn held_by_finds_every_item_of_a_worker() {
    let mut random = Random::new(7);
    for level in InstructionSet::available() {
        for count in [0, 1, 32, 33, 500] {
            let owners: Vec<u32> = (0..count).map(|_| random.below(5) as u32).collect();
            let expected: Vec<u32> = (0..count as u32).filter(|&at| owners[at as usize] == 3).collect();
            assert_eq!(held_by(level, 3, &owners), expected);
        }
    }
}

#[test]
fn loads_at_counts_that_lanes_do_not_divide_are_as_even_as_chance() {
    // A padded lane that wins or a real one that cannot passes spot checks and fails here.
    for level in InstructionSet::available() {
        for count in [5, 13, 17, 31, 67] {
            let (workers, keys) = (random(count as u64 + 50, count), random(8, 60_000));
            let mut loads = vec![0u32; count];
            for (owner, _) in found(level, &Table::new(&workers, &[]), &[], &keys) {
                loads[owner as usize] += 1;
            }
            let expected = keys.len() as f64 / count as f64;
            let chi: f64 = loads.iter().map(|&load| (f64::from(load) - expected).powi(2) / expected).sum();
            let freedom = count as f64 - 1.0;
            assert!((chi - freedom).abs() < 4.0 * (2.0 * freedom).sqrt(), "{} {count}: {loads:?}", level.name());
        }
    }
}
