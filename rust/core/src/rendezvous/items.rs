//! Finds items by their hashes: repeated items, and the positions of wanted items.
//!
//! Callers compare the texts of items with equal hashes.

use crate::cancel::Cancel;
use crate::error::{filled, Error};
use crate::input::NO_OWNER;

/// Positions are u32, and `NO_OWNER` is taken.
pub const MOST_ITEMS: usize = u32::MAX as usize - 1;

/// Returns the first position of an item that also occurs earlier, or None. O(items), for fewer than 2^32 items.
///
/// `same(a, b)` compares the texts at two positions. It is called only for equal hashes. A filter of bits first finds
/// suspects, which are few. Only items with the hash of a suspect are compared.
///
/// # Errors
/// [`Error::OutOfMemory`], [`Error::Cancelled`].
pub fn first_repeated(
    hashes: &[u64],
    mut same: impl FnMut(u32, u32) -> bool,
    cancel: &Cancel<'_>,
) -> Result<Option<u32>, Error> {
    let mut filter = Filter::new(hashes.len())?;
    let mut suspects = Vec::new();
    for (at, &hash) in hashes.iter().enumerate() {
        cancel.report_steps(2)?;
        if filter.insert(hash) {
            suspects.push((hash, at as u32));
        }
    }
    let mut first = None;
    let visit = |at, suspect| {
        if at < suspect && first.is_none_or(|first| suspect < first) && same(at, suspect) {
            first = Some(suspect);
        }
    };
    matches(hashes, suspects, visit, cancel)?;
    Ok(first)
}

/// Returns the position of each wanted item, or `NO_OWNER` if it does not exist. O(items + wanted log wanted).
///
/// Items are unique, and so are the wanted ones. `same(position, wanted)` compares the texts of two items with equal
/// hashes.
///
/// # Errors
/// [`Error::OutOfMemory`], [`Error::Cancelled`].
pub fn locate(
    hashes: &[u64],
    wanted: &[u64],
    mut same: impl FnMut(u32, u32) -> bool,
    cancel: &Cancel<'_>,
) -> Result<Vec<u32>, Error> {
    let mut positions = filled(NO_OWNER, wanted.len())?;
    let visit = |at, number: u32| {
        if same(at, number) {
            positions[number as usize] = at;
        }
    };
    matches(hashes, wanted.iter().copied().zip(0..).collect(), visit, cancel)?;
    Ok(positions)
}

/// Calls `visit` for each pair of a position and a wanted item with the same hash.
fn matches(
    hashes: &[u64],
    mut wanted: Vec<(u64, u32)>,
    mut visit: impl FnMut(u32, u32),
    cancel: &Cancel<'_>,
) -> Result<(), Error> {
    if wanted.is_empty() {
        return Ok(());
    }
    wanted.sort_unstable();
    let mut filter = Filter::new(wanted.len())?;
    wanted.iter().for_each(|&(hash, _)| {
        filter.insert(hash);
    });
    for (at, &hash) in hashes.iter().enumerate().filter(|(_, hash)| filter.has(**hash)) {
        let from = wanted.partition_point(|(other, _)| *other < hash);
        for &(_, number) in wanted[from..].iter().take_while(|(other, _)| *other == hash) {
            cancel.report_steps(16)?;
            visit(at as u32, number);
        }
    }
    Ok(())
}

/// A set of hashes that sometimes claims to contain what was never inserted: at most one bit in sixteen is set.
struct Filter {
    bits: Vec<u64>,
    mask: usize,
}

impl Filter {
    fn new(hashes: usize) -> Result<Self, Error> {
        let count = (hashes * 16).next_power_of_two().max(64);
        Ok(Self { bits: filled(0, count / 64)?, mask: count - 1 })
    }

    fn has(&self, hash: u64) -> bool {
        self.bits[(hash as usize & self.mask) / 64] >> (hash % 64) & 1 == 1
    }

    /// Adds a hash, and returns whether it was probably added before.
    fn insert(&mut self, hash: u64) -> bool {
        let word = &mut self.bits[(hash as usize & self.mask) / 64];
        let before = *word >> (hash % 64) & 1 == 1;
        *word |= 1 << (hash % 64);
        before
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Random;

    /// Hashes with collisions of the whole, of either half, and none.
    fn hash(text: u64) -> u64 {
        match text % 4 {
            0 => 7,
            1 => text << 32,
            2 => 0xabcd_0000_0000 + text % 3,
            _ => text.wrapping_mul(0x9e37_79b9_7f4a_7c15),
        }
    }

    #[test]
    fn the_first_repeated_item_is_found_whatever_hashes_collide() {
        let mut random = Random::new(11);
        for round in 0..3000 {
            let texts: Vec<u64> = (0..round % 40).map(|_| random.next() % 300).collect();
            let hashes: Vec<u64> = texts.iter().map(|text| hash(*text)).collect();
            let found =
                first_repeated(&hashes, |a, b| texts[a as usize] == texts[b as usize], &Cancel::never()).unwrap();
            let expected = (0..texts.len()).find(|&at| texts[..at].contains(&texts[at]));
            assert_eq!(found, expected.map(|at| at as u32), "{texts:?}");
        }
    }

    #[test]
    fn wanted_items_are_located_whatever_hashes_collide() {
        let mut random = Random::new(12);
        for round in 0..2000usize {
            let mut texts: Vec<u64> = (0..300).filter(|_| random.below(3) == 0).collect();
            let middle = texts.len() / 2;
            texts.rotate_left(middle);
            let wanted: Vec<u64> = (0..300).filter(|_| random.below(1 + round % 50) == 0).collect();
            let all = |texts: &[u64]| texts.iter().map(|text| hash(*text)).collect::<Vec<_>>();
            let same = |at: u32, number: u32| texts[at as usize] == wanted[number as usize];
            let place = |text| texts.iter().position(|other| other == text).map_or(NO_OWNER, |at| at as u32);
            let expected: Vec<u32> = wanted.iter().map(place).collect();
            assert_eq!(locate(&all(&texts), &all(&wanted), same, &Cancel::never()), Ok(expected));
        }
    }
}
