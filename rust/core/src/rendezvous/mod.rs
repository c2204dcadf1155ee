//! Rendezvous hashing: every key goes to the worker with the highest score for it.
//!
//! A worker that joins gets only the keys for which it scores highest. A worker that leaves loses only its own keys.
//! The previous placement need not be known. If scores are equal, the first worker in name order gets the key.

// Items and workers are numbered by `u32`: `items::MOST_ITEMS` is the limit. Hashes and scores are split into halves, and
// read as signed or unsigned numbers of the same bits. Floats are bounds with a slack, or exact by their range.
#![allow(
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_precision_loss,
    clippy::cast_sign_loss
)]

pub mod bounded;
pub mod incremental;
pub mod items;
pub mod kernel;
pub mod score;
pub mod table;

use std::cmp::Ordering;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::thread;

use crate::cancel::Cancel;
use crate::error::{filled, Error};
use crate::input::{check_weights, Job};
use kernel::InstructionSet;
use score::{ascending, compat_score, exponential, fast_key, fast_score, fast_worker};
use table::Table;

/// How many pairs per thread make up for the start of a thread.
const PAIRS_PER_THREAD: usize = 4_000_000;
/// The same in `compat` mode, where every pair is hashed.
const HASHED_PAIRS_PER_THREAD: usize = 200_000;
/// How many pairs a thread computes at a time: about a millisecond.
const PAIRS_PER_CHUNK: usize = 1 << 22;
/// The same where every pair is hashed.
const HASHED_PAIRS_PER_CHUNK: usize = 1 << 15;
/// The most numbers that [`Rendezvous::top_of`] returns: a gibibyte.
pub const MOST_OWNERS: usize = 1 << 28;
/// The most threads that are started.
const MOST_THREADS: usize = 256;
/// The cost of hashing a pair, in steps of [`Cancel::report_steps`].
const STEPS_PER_HASHED_PAIR: u64 = 16;

/// The score that is compared; see `score`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// One hash per key and worker, a short integer mix per pair.
    Fast,
    /// murmur3 of key and worker together, for placements shared with other implementations.
    Compat,
}

impl Mode {
    /// Parses "fast" or "compat".
    ///
    /// # Errors
    /// [`Error::Invalid`] for another name.
    pub fn parse(name: &str) -> Result<Self, Error> {
        match name {
            "fast" => Ok(Self::Fast),
            "compat" => Ok(Self::Compat),
            _ => Err(Error::Invalid(format!("unknown hashing mode '{name}'; use 'fast' or 'compat'"))),
        }
    }
}

/// The value of a worker for a key. Greater is better; name order decides between equal ranks.
#[derive(Debug, Clone, Copy)]
pub struct Rank {
    /// weight / -ln(u), or 0 if all weights are equal.
    value: f64,
    /// The score, which decides between equal values.
    raw: u64,
}

impl Rank {
    /// Returns whether this rank is strictly greater than another one.
    pub fn beats(&self, other: &Self) -> bool {
        self.value > other.value || (self.value == other.value && self.raw > other.raw)
    }

    /// Returns the 32 highest bits of the score.
    pub fn top(&self) -> u32 {
        (self.raw >> 32) as u32
    }

    fn descending(&self, other: &Self) -> Ordering {
        other.value.total_cmp(&self.value).then(other.raw.cmp(&self.raw))
    }
}

/// Workers in name order, among which keys are distributed. `S` is the type of their names.
#[derive(Debug, Clone)]
pub struct Rendezvous<S> {
    mode: Mode,
    names: Vec<S>,
    weights: Vec<f64>,
    /// Returns whether weights differ.
    weighted: bool,
    /// Empty in `compat` mode.
    table: Table,
    level: InstructionSet,
}

/// Keys of a batch: hashes for `fast` mode, texts for `compat` mode; the other may be empty.
#[derive(Debug, Clone, Copy, Default)]
pub struct Keys<'k> {
    /// `fast_key` of each key.
    pub hashes: &'k [u64],
    /// The prefix of all keys.
    pub prefix: &'k str,
    /// The keys without their prefix.
    pub texts: &'k [&'k str],
}

impl<'k> Keys<'k> {
    /// Returns the number of keys.
    pub fn len(&self) -> usize {
        self.hashes.len().max(self.texts.len())
    }

    /// Returns whether there are no keys.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn part(&self, from: usize, to: usize) -> Self {
        let hashes = if self.hashes.is_empty() { self.hashes } else { &self.hashes[from..to] };
        let texts = if self.texts.is_empty() { self.texts } else { &self.texts[from..to] };
        Self { hashes, texts, ..*self }
    }

    /// Returns the key at a position. `buffer` holds its text.
    pub fn key<'b>(&self, at: usize, buffer: &'b mut String) -> Key<'b> {
        buffer.clear();
        if let Some(text) = self.texts.get(at) {
            buffer.push_str(self.prefix);
            buffer.push_str(text);
        }
        Key { text: buffer, hash: self.hashes.get(at).copied().unwrap_or(0) }
    }
}

/// A key, hashed as far as the mode allows.
#[derive(Debug, Clone, Copy)]
pub struct Key<'k> {
    text: &'k str,
    hash: u64,
}

impl<S: AsRef<str> + Sync> Rendezvous<S> {
    /// Creates a hasher from worker names and one weight per name. The names must be ascending and unique. O(workers).
    ///
    /// # Errors
    /// [`Error::Invalid`] if there are no workers, if names are not ascending and unique, or if a weight is bad.
    pub fn new(names: Vec<S>, weights: &[f64], mode: Mode) -> Result<Self, Error> {
        check_weights(&names, weights)?;
        if names.is_empty() {
            return Err(Error::invalid("rendezvous hashing needs at least one worker; none was given"));
        }
        if let Some(pair) = names.windows(2).find(|pair| pair[0].as_ref() >= pair[1].as_ref()) {
            return Err(Error::Invalid(format!("worker '{}' is given twice; give each worker once", pair[1].as_ref())));
        }
        let weighted = weights.iter().any(|w| *w != weights[0]);
        let mut made = Self {
            mode,
            names,
            weights: weights.to_vec(),
            weighted,
            table: Table::default(),
            level: InstructionSet::best(),
        };
        made.rebuild_table();
        Ok(made)
    }

    /// Computes the table again after names or weights have changed.
    fn rebuild_table(&mut self) {
        self.weighted = self.weights.iter().any(|w| *w != self.weights[0]);
        if self.mode == Mode::Fast {
            let hashes: Vec<u64> = self.names.iter().map(|n| fast_worker(n.as_ref().as_bytes())).collect();
            self.table = Table::new(&hashes, if self.weighted { &self.weights } else { &[] });
        }
    }

    /// Adds a worker and returns its position. The weight must be valid, and the name must not exist. O(workers).
    pub fn insert(&mut self, name: S, weight: f64) -> usize {
        let at = self.names.partition_point(|other| other.as_ref() < name.as_ref());
        self.names.insert(at, name);
        self.weights.insert(at, weight);
        self.rebuild_table();
        at
    }

    /// Removes the worker at a position. O(workers).
    pub fn remove(&mut self, at: usize) {
        self.names.remove(at);
        self.weights.remove(at);
        self.rebuild_table();
    }

    /// Changes the weight of the worker at a position. The weight must be valid. O(workers).
    pub fn reweigh(&mut self, at: usize, weight: f64) {
        self.weights[at] = weight;
        self.rebuild_table();
    }

    /// Returns the weights of the workers, in name order.
    pub fn weights(&self) -> &[f64] {
        &self.weights
    }

    /// Returns whether the workers have different weights.
    pub fn is_weighted(&self) -> bool {
        self.weighted
    }

    /// Returns the mode, which decides how pairs of key and worker are scored.
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// Returns the hash of a worker. For `fast` mode only.
    pub fn hash(&self, worker: usize) -> u64 {
        self.table.hash(worker)
    }

    /// Returns the instruction set that the hasher uses.
    pub fn instruction_set(&self) -> InstructionSet {
        self.level
    }

    /// Returns the names of the workers in ascending order.
    pub fn names(&self) -> &[S] {
        &self.names
    }

    /// Hashes a key, so that it can be compared with all workers. O(length of the key).
    pub fn key<'k>(&self, text: &'k str) -> Key<'k> {
        let hash = match self.mode {
            Mode::Fast => fast_key(text.as_bytes()),
            Mode::Compat => 0,
        };
        Key { text, hash }
    }

    /// Returns the rank of a worker for a key. `buffer` is scratch space.
    pub fn rank(&self, key: Key<'_>, worker: usize, buffer: &mut Vec<u8>) -> Rank {
        let raw = match self.mode {
            Mode::Fast => u64::from(fast_score(key.hash, self.table.hash(worker))) << 32,
            Mode::Compat => {
                ascending(compat_score(key.text.as_bytes(), self.names[worker].as_ref().as_bytes(), buffer))
            }
        };
        let value = if self.weighted { self.weights[worker] / exponential((raw >> 32) as u32) } else { 0.0 };
        Rank { value, raw }
    }

    /// Returns whether a worker may have a greater value for a key than an owner with this score. False is always
    /// correct, true is an estimate. For `fast` mode only.
    ///
    /// `z < -ln(1 - z) < z / (1 - z)` bounds both values without logarithms.
    pub fn may_beat(&self, key: u64, worker: usize, (owner, score): (usize, u32)) -> bool {
        let z = |score: u32| (f64::from(!score) + 0.5) / 4_294_967_296.0;
        let (new, old) = (z(fast_score(key, self.table.hash(worker))), z(score));
        // weight / new >= its value, and owner's weight (1 - old) / old <= its value; the slack covers rounding.
        self.weights[worker] * old * (1.0 + 1e-9) >= self.weights[owner] * (1.0 - old) * new
    }

    /// Returns the position of the worker that owns a key. O(workers).
    ///
    /// # Panics
    /// If there are no workers.
    pub fn owner(&self, key: Key<'_>, buffer: &mut Vec<u8>) -> usize {
        if self.mode == Mode::Fast {
            let (mut owner, mut score) = ([0], [0]);
            self.fast_owners(&[key.hash], &mut owner, &mut score);
            return owner[0] as usize;
        }
        let everyone = 0..self.names.len() as u32;
        self.best_of(key, everyone, buffer).expect("a rendezvous has workers") as usize
    }

    /// Finds the owner of each key, and the 32 highest bits of the owner's score as a number in ascending order. O(keys
    /// x workers).
    ///
    /// Starts at most `threads` threads. 0 means one per processor, if there is enough work. The result does not depend
    /// on it.
    ///
    /// # Errors
    /// [`Error::Cancelled`]. `owners` and `scores` are then only partly filled.
    pub fn owners_of(
        &self,
        keys: Keys<'_>,
        threads: usize,
        owners: &mut [u32],
        scores: &mut [u32],
        cancel: &Cancel<'_>,
    ) -> Result<(), Error> {
        let size = self.keys_per_chunk();
        let chunks = Mutex::new(owners.chunks_mut(size).zip(scores.chunks_mut(size)).enumerate());
        let stopped = AtomicBool::new(false);
        let next = || chunks.lock().unwrap_or_else(PoisonError::into_inner).next();
        let owners_in = |(number, (owners, scores)): (usize, (&mut [u32], &mut [u32]))| {
            let part = keys.part(number * size, number * size + owners.len());
            self.owners_here(part, owners, scores);
        };
        let help = || {
            while !stopped.load(Relaxed) {
                let Some(chunk) = next() else { break };
                owners_in(chunk);
            }
        };
        thread::scope(|scope| {
            for number in 1..self.threads(keys.len().saturating_mul(self.names.len()), threads) {
                let thread = thread::Builder::new().name(format!("latchwork-assign-{number}"));
                if thread.spawn_scoped(scope, help).is_err() {
                    break; // the system has no more threads for us: the others do its share
                }
            }
            while let Some(chunk) = next() {
                owners_in(chunk);
                if let Err(error) = cancel.report_steps(self.steps(size)) {
                    stopped.store(true, Relaxed);
                    return Err(error);
                }
            }
            Ok(())
        })
    }

    fn keys_per_chunk(&self) -> usize {
        let pairs = match self.mode {
            Mode::Fast => PAIRS_PER_CHUNK,
            Mode::Compat => HASHED_PAIRS_PER_CHUNK,
        };
        (pairs / self.names.len()).next_multiple_of(64).max(64)
    }

    /// Returns the number of steps for [`Cancel::report_steps`] that this number of keys takes.
    pub(crate) fn steps(&self, keys: usize) -> u64 {
        let pairs = keys as u64 * self.names.len() as u64;
        match self.mode {
            Mode::Fast => pairs / 4,
            Mode::Compat => pairs * STEPS_PER_HASHED_PAIR,
        }
    }

    fn threads(&self, pairs: usize, most: usize) -> usize {
        let most = if most == 0 { processors() } else { most };
        let pays = match self.mode {
            Mode::Fast => PAIRS_PER_THREAD,
            Mode::Compat => HASHED_PAIRS_PER_THREAD,
        };
        most.min(pairs / pays).clamp(1, MOST_THREADS)
    }

    fn owners_here(&self, keys: Keys<'_>, owners: &mut [u32], scores: &mut [u32]) {
        match self.mode {
            Mode::Fast => self.fast_owners(keys.hashes, owners, scores),
            Mode::Compat => {
                let (mut text, mut buffer) = (String::new(), Vec::new());
                for (at, (owner, score)) in owners.iter_mut().zip(scores).enumerate() {
                    let key = keys.key(at, &mut text);
                    *owner = self.owner(key, &mut buffer) as u32;
                    *score = (self.rank(key, *owner as usize, &mut buffer).raw >> 32) as u32;
                }
            }
        }
    }

    fn fast_owners(&self, hashes: &[u64], owners: &mut [u32], scores: &mut [u32]) {
        if self.weighted {
            kernel::weighted(self.level, &self.table, hashes, owners, scores);
        } else {
            kernel::best(self.level, &self.table, hashes, owners, scores);
        }
    }

    /// Returns the best `k` workers of each key, best first. Each key has `min(k, workers)` entries. O(keys x workers).
    ///
    /// # Errors
    /// [`Error::Invalid`] for more than [`MOST_OWNERS`] entries, [`Error::OutOfMemory`], [`Error::Cancelled`].
    pub fn top_of(&self, keys: Keys<'_>, k: usize, cancel: &Cancel<'_>) -> Result<Vec<u32>, Error> {
        let k = k.min(self.names.len());
        let places = keys.len().saturating_mul(k);
        if places > MOST_OWNERS {
            let many = format!("{} items x {k} owners", keys.len());
            return Err(Error::Invalid(format!("{many} are more than {MOST_OWNERS}; ask for fewer at a time")));
        }
        let mut best = filled(0, places)?;
        let size = self.keys_per_chunk().div_ceil(4);
        let (mut text, mut buffer) = (String::new(), Vec::new());
        for (number, best) in best.chunks_mut(size * k).enumerate() {
            let part = keys.part(number * size, number * size + best.len() / k);
            if self.mode == Mode::Fast && !self.weighted {
                kernel::top(self.level, &self.table, part.hashes, k, best);
            } else {
                for (at, best) in best.chunks_mut(k).enumerate() {
                    let owners = self.owners(part.key(at, &mut text), k, &mut buffer);
                    best.iter_mut().zip(owners).for_each(|(place, owner)| *place = owner as u32);
                    cancel.report_steps(STEPS_PER_HASHED_PAIR * self.names.len() as u64)?;
                }
            }
            cancel.report_steps(self.steps(size))?;
        }
        Ok(best)
    }

    /// Returns the best of some workers, given as ascending positions, or None if there are none. O(candidates).
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

    /// Returns a hasher that distributes keys among some of the workers, given as ascending positions. O(their number).
    pub fn subset(&self, workers: Vec<u32>) -> Subset<'_, S> {
        let weights: Vec<f64> = workers.iter().map(|&worker| self.weights[worker as usize]).collect();
        let weighted = weights.iter().any(|w| *w != weights[0]);
        let table = match self.mode {
            Mode::Compat => Table::default(),
            Mode::Fast => {
                let hashes: Vec<u64> = workers.iter().map(|&worker| self.table.hash(worker as usize)).collect();
                Table::new(&hashes, if weighted { &weights } else { &[] })
            }
        };
        Subset { of: self, workers, table }
    }

    /// Returns the best `k` workers for a key, best first, or all workers if there are fewer. O(workers + k log k).
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

/// Returns the number of processors that this process may use.
fn processors() -> usize {
    thread::available_parallelism().map_or(1, std::num::NonZero::get)
}

/// Some workers of a rendezvous.
pub struct Subset<'a, S> {
    of: &'a Rendezvous<S>,
    workers: Vec<u32>,
    table: Table,
}

impl<S: AsRef<str> + Sync> Subset<'_, S> {
    /// Returns the best worker of the subset for a key, as a position among all workers. O(workers).
    ///
    /// # Panics
    /// If there are no workers.
    pub fn owner(&self, key: Key<'_>, buffer: &mut Vec<u8>) -> u32 {
        if self.of.mode == Mode::Compat {
            return self.of.best_of(key, self.workers.iter().copied(), buffer).expect("some worker has room");
        }
        let (mut owner, mut score) = ([0], [0]);
        if self.table.is_weighted() {
            kernel::weighted(self.of.level, &self.table, &[key.hash], &mut owner, &mut score);
        } else {
            kernel::best(self.of.level, &self.table, &[key.hash], &mut owner, &mut score);
        }
        self.workers[owner[0] as usize]
    }
}

/// Returns the best worker for each item of a job, as a position in `able`. O(items x able workers).
///
/// # Errors
/// [`Error::OutOfMemory`], [`Error::Cancelled`].
pub fn place(job: &Job<'_>, workers: &[&str], mode: Mode, cancel: &Cancel<'_>) -> Result<Vec<u32>, Error> {
    let rendezvous = for_job(job, workers, mode)?;
    let prefix = format!("{}:", job.id);
    let hashes = if mode == Mode::Fast { job_hashes(job, &prefix) } else { Vec::new() };
    let (mut owners, mut scores) = (vec![0; job.items.len()], vec![0; job.items.len()]);
    let keys = Keys { hashes: &hashes, prefix: &prefix, texts: &job.items };
    rendezvous.owners_of(keys, 0, &mut owners, &mut scores, cancel)?;
    Ok(owners)
}

/// Returns the hash of each item of a job, with [`fast_key`].
pub fn job_hashes(job: &Job<'_>, prefix: &str) -> Vec<u64> {
    let mut key = prefix.to_owned();
    let hash = |item: &&str| {
        key.truncate(prefix.len());
        key.push_str(item);
        fast_key(key.as_bytes())
    };
    job.items.iter().map(hash).collect()
}

/// Returns a hasher for the workers that can run a job.
///
/// # Errors
/// [`Error::Invalid`] for bad weights.
pub fn for_job<'a>(job: &Job<'_>, workers: &[&'a str], mode: Mode) -> Result<Rendezvous<&'a str>, Error> {
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
            let (mut owner, mut score) = ([9], [9]);
            kernel::best(InstructionSet::best(), &Table::new(&[worker; 200], &[]), &[key], &mut owner, &mut score);
            assert_eq!((owner[0], score[0]), (0, fast_score(key, worker)));
        }
    }

    #[test]
    fn ties_go_to_the_first_in_name_order_with_weights_and_among_the_best_k() {
        let names = names(9);
        let mut hashing = rendezvous(&names, &[2.0; 9], Mode::Fast);
        for weights in [vec![], vec![2.0; 9]] {
            hashing.weighted = !weights.is_empty();
            hashing.table = Table::new(&[12345; 9], &weights);
            let (key, mut buffer) = (hashing.key("k"), Vec::new());
            assert_eq!(hashing.owner(key, &mut buffer), 0);
            assert_eq!(hashing.best_of(key, [3, 5, 8].into_iter(), &mut buffer), Some(3));
            assert_eq!(hashing.owners(key, 4, &mut buffer), [0, 1, 2, 3]);
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
            assert!(weighted.weighted);
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
            Rendezvous::new(names, &weights, Mode::Fast).unwrap_err().to_string()
        };
        assert!(refuse(vec![]).contains("at least one worker"));
        assert!(refuse(vec!["a", "b", "b"]).contains("'b' is given twice"));
        assert!(Mode::parse("quick").unwrap_err().to_string().contains("'quick'"));
    }
}
