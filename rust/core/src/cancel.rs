//! Cancellation of long computations.
//!
//! Loops report their steps to a [`Cancel`]. Every 50 ms it asks the caller whether to continue.

use std::cell::Cell;
use std::time::{Duration, Instant};

use crate::error::Error;

/// The caller is asked this often.
const INTERVAL: Duration = Duration::from_millis(50);
/// The clock is read after this many steps, which take a few milliseconds at most.
const STEPS_PER_READING: u64 = 1 << 20;

/// Asks the caller of a long computation from time to time whether to continue. It stays in the thread that created it.
pub struct Cancel<'a> {
    may_continue: &'a dyn Fn() -> bool,
    steps: Cell<u64>,
    asked: Cell<Instant>,
    interval: Duration,
    steps_per_reading: u64,
}

impl<'a> Cancel<'a> {
    /// Creates a cancel check. The computation ends early when `may_continue` returns false.
    pub fn new(may_continue: &'a dyn Fn() -> bool) -> Self {
        Self {
            may_continue,
            steps: Cell::new(0),
            asked: Cell::new(Instant::now()),
            interval: INTERVAL,
            steps_per_reading: STEPS_PER_READING,
        }
    }

    /// Creates a cancel check for a computation that is never cancelled.
    pub fn never() -> Self {
        Self::new(&|| true)
    }

    /// Creates a cancel check that calls `may_continue` at every report. For tests.
    #[cfg(test)]
    pub fn asking_at_every_report(may_continue: &'a dyn Fn() -> bool) -> Self {
        Self { interval: Duration::ZERO, steps_per_reading: 0, ..Self::new(may_continue) }
    }

    /// Reports steps of the computation, each of which takes one to ten nanoseconds.
    ///
    /// # Errors
    /// [`Error::Cancelled`] if the caller was asked and does not want to continue.
    #[inline]
    pub fn report_steps(&self, steps: u64) -> Result<(), Error> {
        let steps = self.steps.get().saturating_add(steps);
        self.steps.set(steps);
        if steps < self.steps_per_reading {
            return Ok(());
        }
        self.read_clock()
    }

    #[cold]
    fn read_clock(&self) -> Result<(), Error> {
        self.steps.set(0);
        if self.asked.get().elapsed() < self.interval {
            return Ok(());
        }
        let may_continue = (self.may_continue)();
        self.asked.set(Instant::now());
        if may_continue {
            Ok(())
        } else {
            Err(Error::Cancelled)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_caller_is_asked_only_after_an_interval() {
        let asked = Cell::new(0);
        let ask = || {
            asked.set(asked.get() + 1);
            false
        };
        let cancel = Cancel::new(&ask);
        let started = Instant::now();
        assert_eq!(cancel.report_steps(u64::MAX), Ok(()));
        while cancel.report_steps(STEPS_PER_READING).is_ok() {}
        assert!(started.elapsed() >= INTERVAL);
        assert_eq!(asked.get(), 1);
    }
}
