//! Kernels on every level of this machine against the definition, for inputs that a search makes up and makes small.

#![allow(clippy::cast_possible_truncation, clippy::cast_precision_loss)] // small numbers

use latchwork_core::rendezvous::kernel::{best, top, weighted, InstructionSet, Table};
use latchwork_core::rendezvous::score::{exponential, fast_score};
use proptest::collection::vec;
use proptest::prelude::*;

/// Few distinct values and single bits, so that ties and extremes are common.
fn hash() -> impl Strategy<Value = u64> {
    prop_oneof![any::<u64>(), 0..4u64, (0..64u32).prop_map(|bit| 1 << bit)]
}

fn weight() -> impl Strategy<Value = f64> {
    prop_oneof![Just(1.0), 0.001..1000.0, Just(f64::MAX), Just(f64::MIN_POSITIVE)]
}

/// All workers from best to worst, by the definition.
fn ranked(key: u64, workers: &[u64], weights: &[f64]) -> Vec<u32> {
    let rate = |at: usize| {
        let score = fast_score(key, workers[at]);
        (weights.get(at).map_or(0.0, |weight| weight / exponential(score)), score, at as u32)
    };
    let mut all: Vec<_> = (0..workers.len()).map(rate).collect();
    all.sort_by(|a, b| b.0.total_cmp(&a.0).then(b.1.cmp(&a.1)).then(a.2.cmp(&b.2)));
    all.into_iter().map(|(_, _, worker)| worker).collect()
}

proptest! {
    #[test]
    fn any_workers_and_keys_have_the_owners_of_the_definition(
        workers in vec((hash(), weight()), 1..200),
        keys in vec(hash(), 1..40),
        k in 1..40usize,
    ) {
        let (workers, weights): (Vec<u64>, Vec<f64>) = workers.into_iter().unzip();
        let (plain, unequal) = (Table::new(&workers, &[]), Table::new(&workers, &weights));
        let places = k.min(workers.len());
        for level in InstructionSet::available() {
            let (mut owners, mut scores) = (vec![0; keys.len()], vec![0; keys.len()]);
            let mut tops = vec![0; keys.len() * places];
            top(level, &plain, &keys, k, &mut tops);
            best(level, &plain, &keys, &mut owners, &mut scores);
            for (at, key) in keys.iter().enumerate() {
                let expected = ranked(*key, &workers, &[]);
                prop_assert_eq!(owners[at], expected[0], "{}", level.name());
                prop_assert_eq!(&tops[at * places..][..places], &expected[..places], "{}", level.name());
            }
            weighted(level, &unequal, &keys, &mut owners, &mut scores);
            for (at, key) in keys.iter().enumerate() {
                prop_assert_eq!(owners[at], ranked(*key, &workers, &weights)[0], "weighted, {}", level.name());
            }
        }
    }
}
