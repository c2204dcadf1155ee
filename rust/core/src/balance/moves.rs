//! Selects the items of each worker, given how many it gets, so that as many items as possible stay where they were.
//!
//! Each worker keeps the first of its items in name order, up to its size. The other items go, in name order, to the
//! workers that have too few, also in name order.

use crate::input::{Job, NO_OWNER};

/// How many items are examined together: a block in which all stay is skipped without a branch per item.
const BLOCK: usize = 64;

/// An item that changes its owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Move {
    /// The position of the item in name order.
    pub item: u32,
    /// The previous owner, or `NO_OWNER`.
    pub from: u32,
    /// The new owner.
    pub to: u32,
}

/// Returns the owner of each item of a job, as a position in `able`. `sizes` says how many items each able worker gets.
/// O(items + workers).
pub fn items(job: &Job<'_>, sizes: &[u32]) -> Vec<u32> {
    if job.able.is_empty() {
        return vec![NO_OWNER; job.items.len()];
    }
    let mut owners = job.previous.clone();
    let order: Vec<u32> = (0..sizes.len() as u32).collect();
    apply_sizes(&mut owners, &job.held(), sizes, &order);
    owners
}

/// Changes the owners with the fewest moves so that each worker owns as many items as `sizes` says. Returns the moves
/// in item order.
///
/// `owners`, `held` and `sizes` are indexed by worker number. `order` lists at least the workers that get items, in
/// name order. The sizes must add up to the number of items. O(items + workers), with very little work for an item that
/// stays.
pub fn apply_sizes(owners: &mut [u32], held: &[u32], sizes: &[u32], order: &[u32]) -> Vec<Move> {
    let mut moves = moves_of_excess(owners, held, sizes);
    let room = |&worker: &u32| {
        let at = worker as usize;
        (worker, sizes[at].saturating_sub(held[at]))
    };
    let mut rest = moves.as_mut_slice();
    for (worker, room) in order.iter().map(room) {
        let (filled, behind) = rest.split_at_mut(room as usize);
        for change in filled {
            change.to = worker;
            owners[change.item as usize] = worker;
        }
        rest = behind;
    }
    debug_assert!(rest.is_empty(), "sizes must add up to the number of items");
    moves
}

/// Returns the moves of the items that cannot stay: those without an owner, and those beyond the size of their owner.
fn moves_of_excess(owners: &[u32], held: &[u32], sizes: &[u32]) -> Vec<Move> {
    let over: Vec<bool> = held.iter().zip(sizes).map(|(held, size)| held > size).collect();
    let beyond = held.iter().zip(sizes).map(|(held, size)| held.saturating_sub(*size) as usize).sum::<usize>();
    let orphans = owners.len() - held.iter().map(|held| *held as usize).sum::<usize>();
    if beyond == 0 && orphans == owners.len() {
        return (0..owners.len() as u32).map(|item| Move { item, from: NO_OWNER, to: NO_OWNER }).collect();
    }
    let mut moves = Vec::with_capacity(beyond + orphans);
    if beyond + orphans == 0 {
        return moves;
    }
    let mut kept = vec![0; held.len()];
    let stays = |owner: u32| over.get(owner as usize) == Some(&false);
    for (block, owners) in owners.chunks(BLOCK).enumerate() {
        if owners.iter().fold(true, |all, owner| all & stays(*owner)) {
            continue;
        }
        for (at, &from) in owners.iter().enumerate().filter(|(_, owner)| !stays(**owner)) {
            if from == NO_OWNER || kept[from as usize] == sizes[from as usize] {
                moves.push(Move { item: (block * BLOCK + at) as u32, from, to: NO_OWNER });
            } else {
                kept[from as usize] += 1;
            }
        }
    }
    moves
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::balance::quota::Share;

    #[test]
    fn workers_keep_their_first_items_and_room_is_filled_in_name_order() {
        let job = Job {
            id: "j",
            items: vec!["a", "b", "c", "d", "e"],
            able: vec![0, 1, 2],
            weights: vec![1.0; 3],
            previous: vec![2, 2, 2, NO_OWNER, 0],
        };
        let share = Share::new(&job);
        assert_eq!(share.gain, [false, false, true]);
        assert_eq!(items(&job, &share.sizes(&[true, false, true])), [2, 2, 0, 1, 0]);
    }

    #[test]
    fn workers_without_room_are_passed_over() {
        let mut owners = [NO_OWNER, 4];
        let moves = apply_sizes(&mut owners, &[0, 0, 0, 0, 1], &[0, 0, 0, 1, 1], &[0, 1, 2, 3, 4]);
        assert_eq!(owners, [3, 4]);
        assert_eq!(moves, [Move { item: 0, from: NO_OWNER, to: 3 }]);
    }

    #[test]
    fn a_job_nobody_can_run_stays_without_owners() {
        let job = Job { items: vec!["a", "b"], previous: vec![NO_OWNER; 2], ..Job::default() };
        assert_eq!(items(&job, &[]), [NO_OWNER; 2]);
    }

    #[test]
    fn items_of_every_block_are_found_and_the_name_order_of_workers_need_not_be_that_of_their_numbers() {
        for count in [1, 63, 64, 65, 1000] {
            let mut owners = vec![1; count];
            let sizes = [count as u32 / 2, 0, count as u32 - count as u32 / 2];
            let moves = apply_sizes(&mut owners, &[0, count as u32, 0], &sizes, &[2, 0, 1]);
            assert_eq!(moves.len(), count);
            let first = count - count / 2;
            assert!(owners[..first].iter().all(|w| *w == 2) && owners[first..].iter().all(|w| *w == 0));
        }
    }
}
