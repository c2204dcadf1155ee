//! EvenlyRendezvous: rendezvous hashing with even loads, and no memory of what was before.
//!
//! Items in name order take the best-scoring worker that is not full. A worker is full when it holds its whole share
//! and no seat is left that it may take, or when it has one.

use crate::input::{InputError, Job, NOBODY};
use crate::quota::Share;
use crate::rendezvous::{for_job, Mode};

/// Owners of a job's items as positions in `able`. O(items x able workers).
pub fn place(job: &Job<'_>, share: &Share, workers: &[&str], mode: Mode) -> Result<Vec<u32>, InputError> {
    if job.able.is_empty() {
        return Ok(vec![NOBODY; job.items.len()]);
    }
    let rendezvous = for_job(job, workers, mode)?;
    let mut room = Room::new(share);
    let (mut text, mut buffer) = (String::new(), Vec::new());
    let mut owners = Vec::with_capacity(job.items.len());
    for item in &job.items {
        job.key(item, &mut text);
        let key = rendezvous.key(&text);
        let best = rendezvous.best_of(key, room.open.iter().copied(), &mut buffer);
        let owner = best.expect("shares add up to the number of items");
        room.take(owner, share);
        owners.push(owner);
    }
    Ok(owners)
}

/// Who still has room, in name order.
struct Room {
    open: Vec<u32>,
    count: Vec<u32>,
    seats: u32,
}

impl Room {
    fn new(share: &Share) -> Self {
        let workers = share.gain.len();
        let mut room = Self { open: Vec::new(), count: vec![0; workers], seats: share.quota.seats };
        room.open = (0..workers as u32).filter(|&w| room.has_room(w, share)).collect();
        room
    }

    fn has_room(&self, worker: u32, share: &Share) -> bool {
        let at = worker as usize;
        let (count, floor) = (self.count[at], share.quota.floor[at]);
        count < floor || (count == floor && share.quota.eligible[at] && self.seats > 0)
    }

    fn take(&mut self, worker: u32, share: &Share) {
        let at = worker as usize;
        let seated = self.count[at] == share.quota.floor[at];
        self.count[at] += 1;
        self.seats -= u32::from(seated);
        if seated && self.seats == 0 {
            let mut open = std::mem::take(&mut self.open);
            open.retain(|&w| self.has_room(w, share));
            self.open = open;
        } else if !self.has_room(worker, share) {
            self.open.retain(|&w| w != worker);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loads_are_within_one_for_any_number_of_items() {
        let names: Vec<String> = (0..100).map(|n| format!("i{n:03}")).collect();
        for count in 0..60 {
            let job = Job {
                id: "j",
                items: names[..count].iter().map(String::as_str).collect(),
                able: vec![0, 1, 2, 3, 4, 5, 6],
                weights: vec![1.0; 7],
                previous: vec![NOBODY; count],
            };
            let workers = ["a", "b", "c", "d", "e", "f", "g"];
            let owners = place(&job, &Share::new(&job), &workers, Mode::Fast).unwrap();
            let mut load = [0; 7];
            owners.iter().for_each(|&w| load[w as usize] += 1);
            assert!(load.iter().max().unwrap() - load.iter().min().unwrap() <= 1);
        }
    }
}
