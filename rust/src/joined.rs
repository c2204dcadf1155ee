//! Many keys in one text, with zero bytes between them; and several threads for one piece of work.

use crate::score::fast_key;

/// So many bytes of text are cut and hashed before the next ones: they stay in the cache.
const PORTION: usize = 32_768;

/// Calls `visit` with the hashes of the keys of a section, in order, many at a time.
#[inline(always)]
pub fn hashes_in(section: &[u8], mut visit: impl FnMut(&[u64])) {
    let (mut ends, mut hashes) = (Vec::new(), Vec::new());
    let mut start = 0;
    // An empty section is one empty key.
    for from in (0..section.len().max(1)).step_by(PORTION) {
        let to = section.len().min(from + PORTION);
        ends.clear();
        zeros_in(&section[from..to], |at| ends.push(from + at));
        if to == section.len() {
            ends.push(to);
        }
        hashes.clear();
        for &end in &ends {
            hashes.push(fast_key(&section[start..end]));
            start = end + 1;
        }
        visit(&hashes);
    }
}

/// A text in so many sections of about one size, cut at zero bytes, which fall away; fewer if there are too few of them.
pub fn sections(text: &[u8], count: usize) -> Vec<&[u8]> {
    let (mut sections, mut rest) = (Vec::with_capacity(count), text);
    for left in (2..=count).rev() {
        let from = rest.len() / left;
        if let Some(at) = rest[from..].iter().position(|byte| *byte == 0) {
            sections.push(&rest[..from + at]);
            rest = &rest[from + at + 1..];
        }
    }
    sections.push(rest);
    sections
}

/// Calls `visit` with the place of each zero byte, in order.
#[inline(always)]
fn zeros_in(text: &[u8], mut visit: impl FnMut(usize)) {
    let words = text.chunks_exact(8);
    let tail = words.remainder();
    for (number, word) in words.enumerate() {
        let word = u64::from_le_bytes(word.try_into().expect("eight bytes"));
        // The high bit of each byte that is zero, and of no other.
        let mut zeros = !((word & !HIGH_BITS).wrapping_add(!HIGH_BITS) | word | !HIGH_BITS);
        while zeros != 0 {
            visit(number * 8 + zeros.trailing_zeros() as usize / 8);
            zeros &= zeros - 1;
        }
    }
    let zeros = tail.iter().enumerate().filter(|(_, byte)| **byte == 0);
    zeros.for_each(|(at, _)| visit(text.len() - tail.len() + at));
}

const HIGH_BITS: u64 = 0x8080_8080_8080_8080;

/// Does all of the work, each in a thread, the last of it in this one; the results in order.
pub fn side_by_side<T: Send, W: FnOnce() -> T + Send>(work: impl Iterator<Item = W>) -> Vec<T> {
    std::thread::scope(|scope| {
        let mut work = work.peekable();
        let (mut started, mut here) = (Vec::new(), None);
        while let Some(next) = work.next() {
            if work.peek().is_none() {
                here = Some(next());
                break;
            }
            let thread = std::thread::Builder::new().name(format!("latchwork-assign-{}", started.len()));
            started.push(thread.spawn_scoped(scope, next).expect("the system starts a thread"));
        }
        let join = |thread: std::thread::ScopedJoinHandle<'_, T>| thread.join().expect("no assignment panics");
        started.into_iter().map(join).chain(here).collect()
    })
}

/// How many processors this process may use.
pub fn processors() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zero_bytes_are_found_wherever_they_are_and_nothing_else() {
        let text = [1, 0x80, 0xff, 0x7f, 1, 1, 2, 0x81, 1, 0x80, 1, 1, 0x7f, 1, 1, 1, 1, 1, 1, 1];
        for first in 0..text.len() {
            for second in first + 1..text.len() {
                let (mut text, mut found) = (text, Vec::new());
                (text[first], text[second]) = (0, 0);
                zeros_in(&text, |at| found.push(at));
                assert_eq!(found, [first, second]);
            }
        }
    }
}
