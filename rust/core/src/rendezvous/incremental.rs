//! Keeps the owners of many items up to date while workers and items come and go (rendezvous hashing).
//!
//! The owners are always those of a fresh assignment with the current workers, weights and items. Each change examines
//! only the pairs whose result may differ:
//!
//! - A worker that joins, or whose weight rises, is compared with the owner of each item: O(items + workers).
//! - If a worker leaves or its weight falls, its items are assigned again: O(items + its items x workers).
//!
//! A worker has a *slot*, a number that stays the same while the places in name order shift. A change therefore need
//! not update the owners of items that stay. The slot of a worker that has left is used again.

use std::cmp::Ordering;
use std::sync::Arc;

use crate::cancel::Cancel;
use crate::error::{filled, Error};
use crate::input::{check_weights, NO_OWNER};
use crate::rendezvous::kernel::{challenge, held_by};
use crate::rendezvous::{Key, Keys, Mode, Rendezvous};

/// The owner of each item, and the data with which owners are changed cheaply.
pub struct Assignment {
    rendezvous: Rendezvous<String>,
    /// The slot of each worker in name order.
    slots: Vec<u32>,
    /// The position in name order of each slot; `NO_OWNER` for free slots.
    places: Vec<u32>,
    /// The slot of each item's owner. Shared with readers, and copied when it changes while they read.
    owners: Arc<Vec<u32>>,
    /// The 32 highest bits of the score of each item's owner, ascending.
    scores: Vec<u32>,
}

/// The items that a change moved: three columns of one length, sorted by item.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Delta {
    /// Positions of the items.
    pub items: Vec<u32>,
    /// The slots of the previous owners; `NO_OWNER` for new items.
    pub from: Vec<u32>,
    /// The slots of the new owners; `NO_OWNER` for removed items.
    pub to: Vec<u32>,
}

impl Assignment {
    /// Assigns all items to workers. See [`Rendezvous::owners_of`] for `threads`. O(items x workers).
    ///
    /// # Errors
    /// [`Error::OutOfMemory`], [`Error::Cancelled`].
    pub fn new(
        rendezvous: Rendezvous<String>,
        keys: Keys<'_>,
        threads: usize,
        cancel: &Cancel<'_>,
    ) -> Result<Self, Error> {
        let count = rendezvous.names().len() as u32;
        let (mut owners, mut scores) = (filled(0, keys.len())?, filled(0, keys.len())?);
        rendezvous.owners_of(keys, threads, &mut owners, &mut scores, cancel)?;
        let (slots, places) = ((0..count).collect(), (0..count).collect());
        Ok(Self { rendezvous, slots, places, owners: Arc::new(owners), scores })
    }

    /// Returns the hasher of the current workers and their weights.
    pub fn rendezvous(&self) -> &Rendezvous<String> {
        &self.rendezvous
    }

    /// Returns the slot of each worker, in name order.
    pub fn slots(&self) -> &[u32] {
        &self.slots
    }

    /// Returns the number of slots, including free ones.
    pub fn slot_count(&self) -> usize {
        self.places.len()
    }

    /// Returns the slot of a worker, or None if it is not a member.
    pub fn slot(&self, worker: &str) -> Option<u32> {
        self.place(worker).map(|place| self.slots[place])
    }

    /// Returns the owner of each item, as a position in name order. O(1) if no worker has joined or left since the last
    /// call, else O(items).
    ///
    /// # Errors
    /// [`Error::OutOfMemory`].
    pub fn places(&self) -> Result<Arc<Vec<u32>>, Error> {
        if self.slots.iter().zip(0..).all(|(&slot, place)| slot == place) {
            return Ok(Arc::clone(&self.owners));
        }
        let mut places = filled(0, self.owners.len())?;
        for (place, &slot) in places.iter_mut().zip(self.owners.iter()) {
            *place = self.places[slot as usize];
        }
        Ok(Arc::new(places))
    }

    fn place(&self, worker: &str) -> Option<usize> {
        self.rendezvous.names().binary_search_by(|name| name.as_str().cmp(worker)).ok()
    }

    fn member_place(&self, worker: &str) -> Result<usize, Error> {
        self.place(worker).ok_or_else(|| {
            Error::Invalid(format!("worker '{worker}' is not a member; join it first, or check its name in `workers`"))
        })
    }

    /// Adds a worker and moves to it the items for which it scores highest. `keys` are the keys of all items.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the worker is already a member or the weight is bad, [`Error::Cancelled`].
    pub fn join(&mut self, worker: &str, weight: f64, keys: Keys<'_>, cancel: &Cancel<'_>) -> Result<Delta, Error> {
        check_weights(&[worker], &[weight])?;
        if self.place(worker).is_some() {
            let hint = "give it another name, or change its weight with reweigh";
            return Err(Error::Invalid(format!("worker '{worker}' is a member already; {hint}")));
        }
        let place = self.rendezvous.insert(worker.to_owned(), weight);
        let slot = self.places.iter().position(|&place| place == NO_OWNER).unwrap_or(self.places.len()) as u32;
        if slot as usize == self.places.len() {
            self.places.push(NO_OWNER);
        }
        self.slots.insert(place, slot);
        self.renumber(place);
        match self.won_items(place, keys, cancel) {
            Ok(won) => Ok(self.apply(won)),
            Err(error) => {
                self.rendezvous.remove(place);
                self.remove_slot(place);
                Err(error)
            }
        }
    }

    /// Removes a worker and moves each of its items to the next best worker. `keys` are the keys of all items.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the worker is not a member or is the last one, [`Error::OutOfMemory`],
    /// [`Error::Cancelled`].
    pub fn leave(&mut self, worker: &str, keys: Keys<'_>, cancel: &Cancel<'_>) -> Result<Delta, Error> {
        let place = self.member_place(worker)?;
        if self.slots.len() == 1 {
            return Err(Error::Invalid(format!("worker '{worker}' is the last one; join another before it leaves")));
        }
        let weight = self.rendezvous.weights()[place];
        let slot = self.remove_slot(place);
        self.rendezvous.remove(place);
        match self.moves_away_from(slot, keys, cancel) {
            Ok(given) => Ok(self.apply(given)),
            Err(error) => {
                self.rendezvous.insert(worker.to_owned(), weight);
                self.slots.insert(place, slot);
                self.renumber(place);
                Err(error)
            }
        }
    }

    /// Changes the weight of a worker. With a greater weight, the worker gets more items. With a smaller weight, it
    /// loses some. `keys` are the keys of all items.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the worker is not a member or the weight is bad, [`Error::OutOfMemory`],
    /// [`Error::Cancelled`].
    pub fn reweigh(&mut self, worker: &str, weight: f64, keys: Keys<'_>, cancel: &Cancel<'_>) -> Result<Delta, Error> {
        let place = self.member_place(worker)?;
        check_weights(&[worker], &[weight])?;
        let before = self.rendezvous.weights()[place];
        self.rendezvous.reweigh(place, weight);
        let changes = match weight.total_cmp(&before) {
            Ordering::Greater => self.won_items(place, keys, cancel),
            Ordering::Less => self.moves_away_from(self.slots[place], keys, cancel),
            Ordering::Equal => Ok(Vec::new()),
        };
        match changes {
            Ok(changes) => Ok(self.apply(changes)),
            Err(error) => {
                self.rendezvous.reweigh(place, before);
                Err(error)
            }
        }
    }

    /// Appends items and assigns them. `keys` are the keys of the new items only. O(new items x workers).
    ///
    /// # Errors
    /// [`Error::OutOfMemory`], [`Error::Cancelled`].
    pub fn add(&mut self, keys: Keys<'_>, threads: usize, cancel: &Cancel<'_>) -> Result<Delta, Error> {
        let count = self.owners.len();
        let (mut owners, mut scores) = (filled(0, keys.len())?, filled(0, keys.len())?);
        self.rendezvous.owners_of(keys, threads, &mut owners, &mut scores, cancel)?;
        owners.iter_mut().for_each(|owner| *owner = self.slots[*owner as usize]);
        self.scores.try_reserve(scores.len())?;
        let all = Arc::make_mut(&mut self.owners);
        all.try_reserve(owners.len())?;
        all.extend_from_slice(&owners);
        self.scores.extend_from_slice(&scores);
        let items = (count as u32..).take(owners.len()).collect();
        Ok(Delta { items, from: vec![NO_OWNER; owners.len()], to: owners })
    }

    /// Removes the items at ascending positions. Later items move up. O(items).
    pub fn remove(&mut self, positions: &[u32]) -> Delta {
        let from = positions.iter().map(|&at| self.owners[at as usize]).collect();
        remove_at(Arc::make_mut(&mut self.owners), positions);
        remove_at(&mut self.scores, positions);
        Delta { items: positions.to_vec(), from, to: vec![NO_OWNER; positions.len()] }
    }

    /// Updates the place of each slot, starting at a place.
    fn renumber(&mut self, from: usize) {
        for (place, &slot) in self.slots.iter().enumerate().skip(from) {
            self.places[slot as usize] = place as u32;
        }
    }

    /// Frees the slot of the worker at a place, and returns the slot.
    fn remove_slot(&mut self, place: usize) -> u32 {
        let slot = self.slots.remove(place);
        self.places[slot as usize] = NO_OWNER;
        self.renumber(place);
        slot
    }

    /// Applies changes, which are sorted by item, and returns the moves.
    fn apply(&mut self, changes: Vec<Change>) -> Delta {
        let mut moves = Delta::default();
        if changes.is_empty() {
            return moves;
        }
        let owners = Arc::make_mut(&mut self.owners);
        for Change { item, to, score } in changes {
            self.scores[item as usize] = score;
            let from = std::mem::replace(&mut owners[item as usize], to);
            if from != to {
                moves.items.push(item);
                moves.from.push(from);
                moves.to.push(to);
            }
        }
        moves
    }

    /// Returns the items for which the worker at a place scores higher than their owners.
    fn won_items(&self, place: usize, keys: Keys<'_>, cancel: &Cancel<'_>) -> Result<Vec<Change>, Error> {
        let (to, mut won) = (self.slots[place], Vec::new());
        if self.rendezvous.mode() == Mode::Compat || self.rendezvous.is_weighted() {
            return self.won_items_by_rank(place, keys, cancel);
        }
        let worker = self.rendezvous.hash(place);
        for (number, (hashes, scores)) in keys.hashes.chunks(CHUNK).zip(self.scores.chunks(CHUNK)).enumerate() {
            challenge(self.rendezvous.instruction_set(), worker, hashes, scores, |at, score| {
                let at = number * CHUNK + at;
                let first = || (place as u32) < self.places[self.owners[at] as usize];
                if score > self.scores[at] || first() {
                    won.push(Change { item: at as u32, to, score });
                }
            });
            cancel.report_steps(CHUNK as u64)?;
        }
        Ok(won)
    }

    /// Returns the items for which the worker at a place ranks higher than their owners. For weighted workers and for
    /// `compat` mode.
    fn won_items_by_rank(&self, place: usize, keys: Keys<'_>, cancel: &Cancel<'_>) -> Result<Vec<Change>, Error> {
        let (to, mut won) = (self.slots[place], Vec::new());
        let (mut text, mut buffer) = (String::new(), Vec::new());
        for at in 0..self.owners.len() {
            cancel.report_steps(self.rendezvous.steps(1) / self.slots.len() as u64 + 2)?;
            let owner = self.owners[at];
            if owner == to || self.cannot_win(place, keys, at) {
                continue;
            }
            let key: Key<'_> = keys.key(at, &mut text);
            let incumbent = self.places[owner as usize] as usize;
            let new = self.rendezvous.rank(key, place, &mut buffer);
            let old = self.rendezvous.rank(key, incumbent, &mut buffer);
            if new.beats(&old) || (!old.beats(&new) && place < incumbent) {
                won.push(Change { item: at as u32, to, score: new.top() });
            }
        }
        Ok(won)
    }

    /// Returns whether a worker certainly ranks below the owner of an item; see `Rendezvous::may_beat`.
    fn cannot_win(&self, place: usize, keys: Keys<'_>, at: usize) -> bool {
        self.rendezvous.mode() == Mode::Fast && {
            let incumbent = self.places[self.owners[at] as usize] as usize;
            !self.rendezvous.may_beat(keys.hashes[at], place, (incumbent, self.scores[at]))
        }
    }

    /// Returns the items of a slot with their best owners among the current workers.
    fn moves_away_from(&self, slot: u32, keys: Keys<'_>, cancel: &Cancel<'_>) -> Result<Vec<Change>, Error> {
        let held = held_by(self.rendezvous.instruction_set(), slot, &self.owners);
        let hashes: Vec<u64> = values_at(&held, keys.hashes);
        let texts: Vec<&str> = values_at(&held, keys.texts);
        let (mut owners, mut scores) = (filled(0, held.len())?, filled(0, held.len())?);
        let theirs = Keys { hashes: &hashes, texts: &texts, prefix: keys.prefix };
        self.rendezvous.owners_of(theirs, 0, &mut owners, &mut scores, cancel)?;
        let change = |((item, owner), score): ((u32, u32), u32)| {
            let to = self.slots[owner as usize];
            Change { item, to, score }
        };
        Ok(held.into_iter().zip(owners).zip(scores).map(change).collect())
    }
}

/// A new owner of an item: its slot and its score.
struct Change {
    item: u32,
    to: u32,
    score: u32,
}

/// Number of items that are examined between two reports of steps.
const CHUNK: usize = 1 << 16;

/// Returns the values at these positions, or no values if the list is empty.
fn values_at<T: Copy>(positions: &[u32], values: &[T]) -> Vec<T> {
    if values.is_empty() {
        return Vec::new();
    }
    positions.iter().map(|&at| values[at as usize]).collect()
}

/// Removes the values at ascending positions from a list. O(values).
pub fn remove_at<T>(values: &mut Vec<T>, positions: &[u32]) {
    let (mut at, mut next) = (0, positions.iter().peekable());
    values.retain(|_| {
        let gone = next.next_if_eq(&&at).is_some();
        at += 1;
        !gone
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rendezvous::score::fast_key;
    use crate::testing::Random;

    struct World {
        texts: Vec<String>,
        workers: Vec<(String, f64)>,
        mode: Mode,
    }

    impl World {
        fn rendezvous(&self) -> Rendezvous<String> {
            let mut workers = self.workers.clone();
            workers.sort_by(|a, b| a.0.cmp(&b.0));
            let (names, weights): (Vec<_>, Vec<_>) = workers.into_iter().unzip();
            Rendezvous::new(names, &weights, self.mode).unwrap()
        }
    }

    fn with_keys<T>(texts: &[String], use_them: impl FnOnce(Keys<'_>) -> T) -> T {
        let hashes: Vec<u64> = texts.iter().map(|text| fast_key(format!("p:{text}").as_bytes())).collect();
        let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
        use_them(Keys { hashes: &hashes, prefix: "p:", texts: &texts })
    }

    fn names(assignment: &Assignment) -> Vec<String> {
        assignment
            .places()
            .unwrap()
            .iter()
            .map(|&place| assignment.rendezvous().names()[place as usize].clone())
            .collect()
    }

    /// Random changes; after each, owners equal a full recompute and the moves are exactly what differs.
    fn walk(mode: Mode, weights: &[f64], seed: u64, steps: usize) {
        let mut random = Random::new(seed);
        let mut world = World { texts: vec![], workers: vec![], mode };
        world.texts = (0..120).map(|n| format!("i{n}")).collect();
        world.workers = (0..9).map(|n| (format!("w{n}"), weights[n % weights.len()])).collect();
        let mut assignment =
            with_keys(&world.texts, |keys| Assignment::new(world.rendezvous(), keys, 1, &Cancel::never()).unwrap());
        for step in 0..steps {
            let before: Vec<(String, String)> = world.texts.iter().cloned().zip(names(&assignment)).collect();
            let slots_before: Vec<u32> = assignment.owners.to_vec();
            let at = random.below(world.workers.len());
            let weight = weights[random.below(weights.len())];
            let moves = match random.below(5) {
                0 => {
                    world.workers.push((format!("w{:03}", random.below(1000) + 1000 * step), weight));
                    let name = world.workers.last().unwrap().0.clone();
                    with_keys(&world.texts, |keys| assignment.join(&name, weight, keys, &Cancel::never())).unwrap()
                }
                1 if world.workers.len() > 1 => {
                    let (name, _) = world.workers.remove(at);
                    with_keys(&world.texts, |keys| assignment.leave(&name, keys, &Cancel::never())).unwrap()
                }
                2 => {
                    world.workers[at].1 = weight;
                    with_keys(&world.texts, |keys| {
                        assignment.reweigh(&world.workers[at].0, weight, keys, &Cancel::never())
                    })
                    .unwrap()
                }
                3 => {
                    let new: Vec<String> = (0..random.below(20)).map(|n| format!("n{step}-{n}")).collect();
                    let moves = with_keys(&new, |keys| assignment.add(keys, 1, &Cancel::never()).unwrap());
                    world.texts.extend(new);
                    moves
                }
                _ => {
                    let gone: Vec<u32> = (0..world.texts.len() as u32).filter(|_| random.below(20) == 0).collect();
                    remove_at(&mut world.texts, &gone);
                    assignment.remove(&gone)
                }
            };
            let fresh =
                with_keys(&world.texts, |keys| Assignment::new(world.rendezvous(), keys, 1, &Cancel::never()).unwrap());
            assert_eq!(names(&assignment), names(&fresh), "{mode:?} step {step}");
            let after: Vec<(String, String)> = world.texts.iter().cloned().zip(names(&assignment)).collect();
            let stayed = after.iter().filter(|pair| before.contains(pair)).count();
            let gone = before.iter().filter(|(text, _)| !world.texts.contains(text)).count();
            assert_eq!(moves.items.len(), after.len() - stayed + gone, "{mode:?} step {step}: the least moves");
            let from = |(&item, &from): (&u32, &u32)| from == NO_OWNER || slots_before[item as usize] == from;
            assert!(moves.items.iter().zip(&moves.from).all(from));
            assert!(moves.items.is_sorted());
        }
    }

    #[test]
    fn owners_after_any_changes_are_those_of_a_full_recompute_and_moves_are_the_least() {
        for seed in 0..4 {
            walk(Mode::Fast, &[1.0], seed, 150);
            walk(Mode::Fast, &[1.0, 1.0, 2.0, 0.25, 7.5], seed, 150);
            walk(Mode::Compat, &[1.0], seed, 60);
            walk(Mode::Compat, &[1.0, 3.0], seed, 60);
        }
    }

    #[test]
    fn a_free_slot_is_used_again() {
        let texts: Vec<String> = (0..50).map(|n| n.to_string()).collect();
        let world = World { texts, workers: vec![("a".into(), 1.0), ("b".into(), 1.0)], mode: Mode::Fast };
        with_keys(&world.texts, |keys| {
            let mut assignment = Assignment::new(world.rendezvous(), keys, 1, &Cancel::never()).unwrap();
            for n in 0..20 {
                assignment.join(&format!("c{n}"), 1.0, keys, &Cancel::never()).unwrap();
                assignment.leave(&format!("c{n}"), keys, &Cancel::never()).unwrap();
            }
            assert_eq!(assignment.slot_count(), 3);
        });
    }

    #[test]
    fn changes_that_make_no_sense_are_refused_and_change_nothing() {
        let world = World { texts: vec!["x".into()], workers: vec![("a".into(), 1.0)], mode: Mode::Fast };
        with_keys(&world.texts, |keys| {
            let mut assignment = Assignment::new(world.rendezvous(), keys, 1, &Cancel::never()).unwrap();
            assert!(assignment
                .join("a", 1.0, keys, &Cancel::never())
                .unwrap_err()
                .to_string()
                .contains("'a' is a member already"));
            assert!(assignment
                .join("b", f64::NAN, keys, &Cancel::never())
                .unwrap_err()
                .to_string()
                .contains("'b' has weight NaN"));
            assert!(assignment
                .leave("b", keys, &Cancel::never())
                .unwrap_err()
                .to_string()
                .contains("'b' is not a member"));
            assert!(assignment
                .leave("a", keys, &Cancel::never())
                .unwrap_err()
                .to_string()
                .contains("'a' is the last one"));
            assert!(assignment
                .reweigh("a", 0.0, keys, &Cancel::never())
                .unwrap_err()
                .to_string()
                .contains("'a' has weight 0"));
            assert!(assignment
                .reweigh("c", 1.0, keys, &Cancel::never())
                .unwrap_err()
                .to_string()
                .contains("'c' is not a member"));
            assert_eq!((names(&assignment), assignment.slot_count()), (vec!["a".to_owned()], 1));
        });
    }
}
