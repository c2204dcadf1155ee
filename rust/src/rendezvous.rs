//! Rendezvous hashing: every key goes to the worker with the highest score for it.
//!
//! A worker that joins takes only what it wins, one that leaves gives up only what it had, and nobody needs to know
//! the previous placement. Ties go to the first worker in name order.

use std::cmp::Ordering;

use crate::input::{check_weights, InputError, Job};
use crate::score::{ascending, compat_score, exponential, fast_key, fast_score, fast_worker};

/// Workers scored between two looks at the best so far; short enough to stay in registers and first-level cache.
const BLOCK: usize = 64;

/// Which score is compared; see `score`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// One hash per key and worker, a short integer mix per pair.
    Fast,
    /// murmur3 of key and worker together, for placements shared with other implementations.
    Compat,
}

impl Mode {
    /// Reads "fast" or "compat".
    pub fn parse(name: &str) -> Result<Self, InputError> {
        match name {
            "fast" => Ok(Self::Fast),
            "compat" => Ok(Self::Compat),
            _ => Err(InputError(format!("unknown hashing mode '{name}'; use 'fast' or 'compat'"))),
        }
    }
}

/// What a worker is worth to a key. Greater is better; equal ranks are decided by name order.
#[derive(Debug, Clone, Copy)]
pub struct Rank {
    /// weight / -ln(u), or 0 where all weights are equal.
    value: f64,
    /// The plain score, which also decides between equal values.
    raw: u64,
}

impl Rank {
    /// Whether this rank is strictly greater than `other`.
    pub fn beats(&self, other: &Self) -> bool {
        self.value > other.value || (self.value == other.value && self.raw > other.raw)
    }

    fn descending(&self, other: &Self) -> Ordering {
        other.value.total_cmp(&self.value).then(other.raw.cmp(&self.raw))
    }
}

/// The workers of one rendezvous, in name order; `S` is how their names are kept.
#[derive(Debug, Clone)]
pub struct Rendezvous<S> {
    mode: Mode,
    names: Vec<S>,
    hashes: Vec<u64>,
    /// None where all weights are equal: then plain scores decide, which weighted scores would confirm.
    weights: Option<Vec<f64>>,
}

/// A key, hashed as far as the mode allows.
#[derive(Debug, Clone, Copy)]
pub struct Key<'k> {
    text: &'k str,
    hash: u64,
}

impl<S: AsRef<str>> Rendezvous<S> {
    /// `names` ascending and unique, `weights` one per name; both are checked. O(workers).
    pub fn new(names: Vec<S>, weights: &[f64], mode: Mode) -> Result<Self, InputError> {
        check_weights(&names, weights)?;
        if names.is_empty() {
            return Err(InputError("rendezvous hashing needs at least one worker; none was given".into()));
        }
        if let Some(pair) = names.windows(2).find(|pair| pair[0].as_ref() >= pair[1].as_ref()) {
            return Err(InputError(format!("worker '{}' is given twice; give each worker once", pair[1].as_ref())));
        }
        let hashes = match mode {
            Mode::Fast => names.iter().map(|n| fast_worker(n.as_ref().as_bytes())).collect(),
            Mode::Compat => Vec::new(),
        };
        let weights = weights.iter().any(|w| *w != weights[0]).then(|| weights.to_vec());
        Ok(Self { mode, names, hashes, weights })
    }

    /// The workers' names, ascending.
    pub fn names(&self) -> &[S] {
        &self.names
    }

    /// Hashes a key once for all workers. O(length of the key).
    pub fn key<'k>(&self, text: &'k str) -> Key<'k> {
        let hash = match self.mode {
            Mode::Fast => fast_key(text.as_bytes()),
            Mode::Compat => 0,
        };
        Key { text, hash }
    }

    /// The rank of one worker for a key; `buffer` is scratch space.
    pub fn rank(&self, key: Key<'_>, worker: usize, buffer: &mut Vec<u8>) -> Rank {
        let raw = match self.mode {
            Mode::Fast => u64::from(fast_score(key.hash, self.hashes[worker])) << 32,
            Mode::Compat => {
                ascending(compat_score(key.text.as_bytes(), self.names[worker].as_ref().as_bytes(), buffer))
            }
        };
        let value = match &self.weights {
            None => 0.0,
            Some(weights) => weights[worker] / exponential((raw >> 32) as u32),
        };
        Rank { value, raw }
    }

    /// The worker that owns a key. O(workers).
    pub fn owner(&self, key: Key<'_>, buffer: &mut Vec<u8>) -> usize {
        if self.mode == Mode::Fast && self.weights.is_none() {
            return first_best(key.hash, &self.hashes);
        }
        let everyone = 0..self.names.len() as u32;
        self.best_of(key, everyone, buffer).expect("a rendezvous has workers") as usize
    }

    /// The best of some workers, given in ascending order. O(candidates).
    pub fn best_of(&self, key: Key<'_>, candidates: impl Iterator<Item = u32>, buffer: &mut Vec<u8>) -> Option<u32> {
        let mut best: Option<(u32, Rank)> = None;
        for worker in candidates {
            let rank = self.rank(key, worker as usize, buffer);
            if best.is_none_or(|(_, so_far)| rank.beats(&so_far)) {
                best = Some((worker, rank));
            }
        }
        best.map(|(worker, _)| worker)
    }

    /// The best `k` workers, best first; all of them if there are fewer. O(workers + k log k).
    pub fn owners(&self, key: Key<'_>, k: usize, buffer: &mut Vec<u8>) -> Vec<usize> {
        let mut ranked: Vec<(Rank, usize)> =
            (0..self.names.len()).map(|worker| (self.rank(key, worker, buffer), worker)).collect();
        let order = |a: &(Rank, usize), b: &(Rank, usize)| a.0.descending(&b.0).then(a.1.cmp(&b.1));
        if k < ranked.len() {
            ranked.select_nth_unstable_by(k, order);
            ranked.truncate(k);
        }
        ranked.sort_unstable_by(order);
        ranked.into_iter().map(|(_, worker)| worker).collect()
    }
}

/// The first worker with the highest `fast` score. The inner loop has no branches, so that it vectorises.
fn first_best(key: u64, workers: &[u64]) -> usize {
    let (mut best, mut block_of_best) = (0, 0);
    for (number, block) in workers.chunks(BLOCK).enumerate() {
        let top = block.iter().fold(0, |top, &worker| top.max(fast_score(key, worker)));
        if top > best {
            (best, block_of_best) = (top, number);
        }
    }
    let start = block_of_best * BLOCK;
    let within = workers[start..].iter().position(|&w| fast_score(key, w) == best);
    start + within.expect("the best score was seen in this block")
}

/// Places every item of a job on its rendezvous owner; positions in `able`. O(items x able workers).
pub fn place(job: &Job<'_>, workers: &[&str], mode: Mode) -> Result<Vec<u32>, InputError> {
    let rendezvous = for_job(job, workers, mode)?;
    let (mut text, mut buffer) = (String::new(), Vec::new());
    let owner = |item: &&str| {
        job.key(item, &mut text);
        rendezvous.owner(rendezvous.key(&text), &mut buffer) as u32
    };
    Ok(job.items.iter().map(owner).collect())
}

/// The rendezvous of a job's able workers.
pub fn for_job<'a>(job: &Job<'_>, workers: &[&'a str], mode: Mode) -> Result<Rendezvous<&'a str>, InputError> {
    let names = job.able.iter().map(|&w| workers[w as usize]).collect();
    Rendezvous::new(names, &job.weights, mode)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Random;

    fn names(count: usize) -> Vec<String> {
        (0..count).map(|n| format!("w{n:04}")).collect()
    }

    fn rendezvous<'a>(names: &'a [String], weights: &[f64], mode: Mode) -> Rendezvous<&'a str> {
        Rendezvous::new(names.iter().map(String::as_str).collect(), weights, mode).unwrap()
    }

    fn owner(of: &Rendezvous<&str>, key: &str) -> usize {
        of.owner(of.key(key), &mut Vec::new())
    }

    #[test]
    fn owner_is_the_first_of_owners_for_any_number_of_workers() {
        for count in [1, 2, 3, 63, 64, 65, 127, 130] {
            let names = names(count);
            for mode in [Mode::Fast, Mode::Compat] {
                let hashing = rendezvous(&names, &vec![1.0; count], mode);
                for key in (0..200).map(|n| format!("job:{n}")) {
                    let all = hashing.owners(hashing.key(&key), count + 5, &mut Vec::new());
                    assert_eq!(all.len(), count);
                    assert_eq!(all[0], owner(&hashing, &key));
                    let some = hashing.owners(hashing.key(&key), 2, &mut Vec::new());
                    assert_eq!(some, all[..count.min(2)]);
                }
            }
        }
    }

    #[test]
    fn ties_go_to_the_first_in_name_order() {
        let mut random = Random::new(3);
        for _ in 0..1000 {
            let (key, worker) = (random.next(), random.next());
            assert_eq!(first_best(key, &[worker; 200]), 0);
        }
    }

    #[test]
    fn ties_go_to_the_first_in_name_order_with_weights_and_among_the_best_k() {
        let names = names(9);
        let mut hashing = rendezvous(&names, &[2.0; 9], Mode::Fast);
        hashing.hashes = vec![hashing.hashes[0]; 9];
        for weights in [None, Some(vec![2.0; 9])] {
            hashing.weights = weights;
            let (key, mut buffer) = (hashing.key("k"), Vec::new());
            assert_eq!(hashing.owner(key, &mut buffer), 0);
            assert_eq!(hashing.best_of(key, [3, 5, 8].into_iter(), &mut buffer), Some(3));
            assert_eq!(hashing.owners(key, 4, &mut buffer), [0, 1, 2, 3]);
        }
    }

    #[test]
    fn a_worker_whose_every_score_is_zero_can_still_own() {
        assert_eq!(fast_score(5, 5), 0);
        assert_eq!(first_best(5, &[5]), 0);
    }

    #[test]
    fn the_blocked_scan_finds_what_a_plain_scan_finds() {
        let mut random = Random::new(4);
        for round in 0..2000 {
            let workers: Vec<u64> = (0..1 + round % 300).map(|_| random.next()).collect();
            let key = random.next();
            let plain = (0..workers.len()).rev().max_by_key(|&w| fast_score(key, workers[w]));
            assert_eq!(Some(first_best(key, &workers)), plain);
        }
    }

    #[test]
    fn equal_weights_of_any_size_place_as_no_weights() {
        let names = names(20);
        for mode in [Mode::Fast, Mode::Compat] {
            let plain = rendezvous(&names, &[1.0; 20], mode);
            let mut nudged = vec![3.0; 20];
            nudged[19] = f64::from_bits(3f64.to_bits() + 1); // forces the weighted path
            let weighted = rendezvous(&names, &nudged, mode);
            assert!(weighted.weights.is_some());
            for key in (0..2000).map(|n| n.to_string()) {
                assert_eq!(owner(&plain, &key), owner(&weighted, &key));
            }
        }
    }

    #[test]
    fn raising_one_weight_moves_keys_only_to_that_worker() {
        let names = names(7);
        let mut weights = vec![1.0, 2.0, 0.5, 1.0, 3.0, 1.0, 1.0];
        for mode in [Mode::Fast, Mode::Compat] {
            let before = rendezvous(&names, &weights, mode);
            weights[3] *= 1.7;
            let after = rendezvous(&names, &weights, mode);
            let mut moved = 0;
            for key in (0..5000).map(|n| n.to_string()) {
                let (old, new) = (owner(&before, &key), owner(&after, &key));
                assert!(old == new || new == 3);
                moved += usize::from(old != new);
            }
            assert!(moved > 100);
        }
    }

    #[test]
    fn bad_workers_are_refused_by_name() {
        let refuse = |names: Vec<&'static str>| {
            let weights = vec![1.0; names.len()];
            Rendezvous::new(names, &weights, Mode::Fast).unwrap_err().0
        };
        assert!(refuse(vec![]).contains("at least one worker"));
        assert!(refuse(vec!["a", "b", "b"]).contains("'b' is given twice"));
        assert!(Mode::parse("quick").unwrap_err().0.contains("'quick'"));
    }
}
