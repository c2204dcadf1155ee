//! From numbers to items: which items make up each worker's share, so that as many as possible stay where they were.

use crate::input::{Job, NOBODY};
use crate::quota::Share;

/// Owners of a job's items, as positions in `able`, given who has a seat. O(items + workers).
///
/// Each worker keeps the first of its previous items in name order, as many as its share holds; what is left over goes,
/// in name order, to the workers with room, in name order.
pub fn items(job: &Job<'_>, share: &Share, seated: &[bool]) -> Vec<u32> {
    if job.able.is_empty() {
        return vec![NOBODY; job.items.len()];
    }
    let quota = &share.quota;
    let room = |at: usize| quota.floor[at] + u32::from(seated[at]);
    let mut room: Vec<u32> = (0..job.able.len()).map(room).collect();
    let mut owners = job.previous.clone();
    for owner in owners.iter_mut().filter(|owner| **owner != NOBODY) {
        match room[*owner as usize].checked_sub(1) {
            Some(rest) => room[*owner as usize] = rest,
            None => *owner = NOBODY,
        }
    }
    let mut next = 0;
    for owner in owners.iter_mut().filter(|owner| **owner == NOBODY) {
        while room[next] == 0 {
            next += 1;
        }
        room[next] -= 1;
        *owner = next as u32;
    }
    owners
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workers_keep_their_first_items_and_room_is_filled_in_name_order() {
        let job = Job {
            id: "j",
            items: vec!["a", "b", "c", "d", "e"],
            able: vec![0, 1, 2],
            weights: vec![1.0; 3],
            previous: vec![2, 2, 2, NOBODY, 0],
        };
        let share = Share::new(&job);
        assert_eq!(share.gain, [false, false, true]);
        assert_eq!(items(&job, &share, &[true, false, true]), [2, 2, 0, 1, 0]);
    }

    #[test]
    fn workers_without_room_are_passed_over() {
        let job = Job {
            id: "j",
            items: vec!["a", "b"],
            able: vec![0, 1, 2, 3, 4],
            weights: vec![1.0; 5],
            previous: vec![NOBODY, 4],
        };
        let seated = [false, false, false, true, true];
        assert_eq!(items(&job, &Share::new(&job), &seated), [3, 4]);
    }

    #[test]
    fn a_job_nobody_can_run_stays_without_owners() {
        let job = Job { items: vec!["a", "b"], previous: vec![NOBODY; 2], ..Job::default() };
        assert_eq!(items(&job, &Share::new(&job), &[]), [NOBODY; 2]);
    }
}
