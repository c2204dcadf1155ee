//! Long calls: they stop for signals, and wait for each other.

use std::cell::Cell;
use std::mem;
use std::ops::{Deref, DerefMut};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;

use super::calls::{self, detached};
use super::errors::Raised;
use latchwork_core::cancel::Cancel;
use latchwork_core::error::Error;

/// Values that are read between two looks for a signal.
const VALUES_PER_CHECK: usize = 4096;
/// A call that waits for another one looks for a signal this often.
const WAIT: Duration = Duration::from_millis(50);

/// Run work without the GIL. It ends early when a signal handler raises, and that exception is raised here.
pub fn long<R: Send>(py: Python<'_>, work: impl FnOnce(&Cancel<'_>) -> Result<R, Error> + Send) -> PyResult<R> {
    detached(py, |check| asking(check, work))
}

/// Run work with the GIL, to the same effect.
pub fn long_attached<R>(py: Python<'_>, work: impl FnOnce(&Cancel<'_>) -> Result<R, Error>) -> PyResult<R> {
    asking(&|| calls::check_signals(py), work)
}

fn asking<R>(check: &dyn Fn() -> PyResult<()>, work: impl FnOnce(&Cancel<'_>) -> Result<R, Error>) -> PyResult<R> {
    let raised = Cell::new(None);
    let goes_on = || check().map_err(|error| raised.set(Some(error))).is_ok();
    let result = work(&Cancel::new(&goes_on));
    raised.take().map_or_else(|| result.raised(), Err)
}

/// Look for a signal once in so many values, `at` being the number of the value.
#[inline]
pub fn check_signals(py: Python<'_>, at: usize) -> PyResult<()> {
    if at % VALUES_PER_CHECK == VALUES_PER_CHECK - 1 {
        calls::check_signals(py)?;
    }
    Ok(())
}

/// A value that one call at a time works on.
///
/// The mutex is only held to take the value out and to put it back, never while Python code may run. So a short call
/// takes it with the GIL in hand, and a call that waits for a long one lets go of the GIL and stops for signals.
pub struct Shared<T> {
    state: Mutex<State<T>>,
    returned: Condvar,
}

enum State<T> {
    Here(T),
    Lent,
    /// A call panicked while it had the value.
    Broken,
}

impl<T: Send> Shared<T> {
    pub fn new(value: T) -> Self {
        Self { state: Mutex::new(State::Here(value)), returned: Condvar::new() }
    }

    /// Take the value until the result is dropped. Whoever has it makes no Python objects and drops none.
    pub fn lend(&self, py: Python<'_>) -> PyResult<Lent<'_, T>> {
        loop {
            if let Some(lent) = self.try_lend()? {
                return Ok(lent);
            }
            detached(py, |_| {
                let state = locked(&self.state);
                if matches!(*state, State::Lent) {
                    drop(self.returned.wait_timeout(state, WAIT));
                }
            });
            calls::check_signals(py)?;
        }
    }

    fn try_lend(&self) -> PyResult<Option<Lent<'_, T>>> {
        let mut state = locked(&self.state);
        match mem::replace(&mut *state, State::Lent) {
            State::Here(value) => Ok(Some(Lent { shared: self, value: Some(value) })),
            State::Lent => Ok(None),
            State::Broken => {
                *state = State::Broken;
                Err(PyRuntimeError::new_err("an earlier call panicked while it changed this object; make a new one"))
            }
        }
    }
}

/// The value of a [`Shared`], which it goes back to.
pub struct Lent<'a, T> {
    shared: &'a Shared<T>,
    value: Option<T>,
}

impl<T> Deref for Lent<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.value.as_ref().expect("the value is only taken by drop")
    }
}

impl<T> DerefMut for Lent<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.value.as_mut().expect("the value is only taken by drop")
    }
}

impl<T> Drop for Lent<'_, T> {
    fn drop(&mut self) {
        let value = self.value.take().filter(|_| !thread::panicking());
        *locked(&self.shared.state) = value.map_or(State::Broken, State::Here);
        self.shared.returned.notify_one();
    }
}

/// Nothing that is done under these mutexes panics.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
