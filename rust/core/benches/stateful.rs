//! What Python's operations on an assignment cost without Python: `benches/bench_border.py` compares.
//!
//! `stateful WORKERS ITEMS REPEATS` prints `name nanoseconds` per line, the least of the repeats, on one thread.

use std::hint::black_box;
use std::time::Instant;

use latchwork_core::cancel::Cancel;
use latchwork_core::rendezvous::incremental::Assignment;
use latchwork_core::rendezvous::score::fast_key;
use latchwork_core::rendezvous::{Keys, Mode, Rendezvous};

fn main() {
    let numbers = std::env::args().skip(1).filter(|a| a != "--bench").map(|a| a.parse().expect("a number"));
    let [workers, items, repeats] = numbers.collect::<Vec<usize>>()[..] else {
        println!("usage: stateful WORKERS ITEMS REPEATS");
        return;
    };
    let names: Vec<String> = (0..workers).map(|n| format!("worker-{n:05}")).collect();
    let texts: Vec<String> = (0..items).map(|n| format!("job:item-{n:08}")).collect();
    let more: Vec<u64> = (0..items / 100).map(|n| fast_key(format!("job:more-{n:08}").as_bytes())).collect();
    let gone = &names[workers / 2];
    let mut least =
        [("hash", u128::MAX), ("assign", u128::MAX), ("leave", u128::MAX), ("join", u128::MAX), ("add", u128::MAX)];
    let never = Cancel::never();
    for _ in 0..repeats {
        let mut note = |at: usize, started: Instant| {
            let (_, nanoseconds) = &mut least[at];
            *nanoseconds = (*nanoseconds).min(started.elapsed().as_nanos());
        };
        let started = Instant::now();
        let hashes: Vec<u64> = texts.iter().map(|text| fast_key(text.as_bytes())).collect();
        note(0, started);
        let keys = Keys { hashes: &hashes, ..Keys::default() };
        let rendezvous = Rendezvous::new(names.clone(), &vec![1.0; workers], Mode::Fast).expect("valid workers");
        let started = Instant::now();
        let mut made = Assignment::new(rendezvous, keys, 1, &never).expect("memory");
        note(1, started);
        let started = Instant::now();
        black_box(made.leave(gone, keys, &never).expect("a member"));
        note(2, started);
        let started = Instant::now();
        black_box(made.join(gone, 1.0, keys, &never).expect("no member"));
        note(3, started);
        let started = Instant::now();
        black_box(made.add(Keys { hashes: &more, ..Keys::default() }, 1, &never)).ok();
        note(4, started);
    }
    for (name, nanoseconds) in least {
        println!("{name} {nanoseconds}");
    }
}
