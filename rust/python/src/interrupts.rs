//! Long calls from Python, which signals can interrupt, and values that only one call at a time can use.

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

/// How many values are read between two checks for signals.
const VALUES_PER_CHECK: usize = 4096;
/// How often a call that waits for another one checks for signals.
const WAIT: Duration = Duration::from_millis(50);

/// Runs `work` without the GIL. It ends early if a signal handler raises an exception, which is then raised here.
pub fn interruptible<R: Send>(
    py: Python<'_>,
    work: impl FnOnce(&Cancel<'_>) -> Result<R, Error> + Send,
) -> PyResult<R> {
    detached(py, |check| run_with_checks(check, work))
}

/// Runs `work` with the GIL. It ends early if a signal handler raises an exception, which is then raised here.
pub fn interruptible_with_gil<R>(py: Python<'_>, work: impl FnOnce(&Cancel<'_>) -> Result<R, Error>) -> PyResult<R> {
    run_with_checks(&|| calls::check_signals(py), work)
}

fn run_with_checks<R>(
    check: &dyn Fn() -> PyResult<()>,
    work: impl FnOnce(&Cancel<'_>) -> Result<R, Error>,
) -> PyResult<R> {
    let raised = Cell::new(None);
    let may_continue = || check().map_err(|error| raised.set(Some(error))).is_ok();
    let result = work(&Cancel::new(&may_continue));
    raised.take().map_or_else(|| result.raised(), Err)
}

/// Checks for signals after every few thousand values. `at` is the number of the current value.
#[inline]
pub fn check_signals(py: Python<'_>, at: usize) -> PyResult<()> {
    if at % VALUES_PER_CHECK == VALUES_PER_CHECK - 1 {
        calls::check_signals(py)?;
    }
    Ok(())
}

/// A value that only one call at a time uses.
///
/// The mutex is held only to take the value out and to put it back, never while Python code may run. A short call
/// therefore takes it without releasing the GIL. A call that waits for a long one releases the GIL and checks for
/// signals.
pub struct Shared<T> {
    state: Mutex<State<T>>,
    returned: Condvar,
}

enum State<T> {
    Here(T),
    Borrowed,
    /// A call panicked while it had the value.
    Broken,
}

impl<T: Send> Shared<T> {
    pub fn new(value: T) -> Self {
        Self { state: Mutex::new(State::Here(value)), returned: Condvar::new() }
    }

    /// Waits until no other call uses the value, and takes it until the result is dropped. Meanwhile, the caller must
    /// not create or drop Python objects.
    pub fn borrow(&self, py: Python<'_>) -> PyResult<Borrowed<'_, T>> {
        loop {
            if let Some(lent) = self.try_borrow()? {
                return Ok(lent);
            }
            detached(py, |_| {
                let state = locked(&self.state);
                if matches!(*state, State::Borrowed) {
                    drop(self.returned.wait_timeout(state, WAIT));
                }
            });
            calls::check_signals(py)?;
        }
    }

    fn try_borrow(&self) -> PyResult<Option<Borrowed<'_, T>>> {
        let mut state = locked(&self.state);
        match mem::replace(&mut *state, State::Borrowed) {
            State::Here(value) => Ok(Some(Borrowed { shared: self, value: Some(value) })),
            State::Borrowed => Ok(None),
            State::Broken => {
                *state = State::Broken;
                Err(PyRuntimeError::new_err("an earlier call panicked while it changed this object; make a new one"))
            }
        }
    }
}

/// The value of a [`Shared`], to which it returns when this is dropped.
pub struct Borrowed<'a, T> {
    shared: &'a Shared<T>,
    value: Option<T>,
}

impl<T> Deref for Borrowed<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.value.as_ref().expect("the value is only taken by drop")
    }
}

impl<T> DerefMut for Borrowed<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.value.as_mut().expect("the value is only taken by drop")
    }
}

impl<T> Drop for Borrowed<'_, T> {
    fn drop(&mut self) {
        let value = self.value.take().filter(|_| !thread::panicking());
        *locked(&self.shared.state) = value.map_or(State::Broken, State::Here);
        self.shared.returned.notify_one();
    }
}

/// Locks a mutex. No code panics while it holds such a lock, so a poisoned mutex is used as it is.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
