//! What has to hold when an interrupt comes at any bytecode: entered and left here, where no bytecode is between.

use std::sync::{Condvar, Mutex as Inner, MutexGuard, PoisonError};
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

use pyo3::exceptions::{PyException, PyRuntimeError};
use pyo3::prelude::*;
use pyo3::types::{PyTuple, PyType};

/// How long a thread waits before it looks whether a signal came.
const LOOK: Duration = Duration::from_millis(50);

/// A mutex that knows its thread.
#[pyclass(frozen, module = "latchwork._core")]
pub struct Mutex {
    owner: Inner<Option<ThreadId>>,
    freed: Condvar,
}

impl Mutex {
    fn owner(&self) -> MutexGuard<'_, Option<ThreadId>> {
        self.owner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Take it if it is free; whether it was.
    fn try_take(&self, me: ThreadId) -> Result<bool, Reentrant> {
        let mut owner = self.owner();
        match *owner {
            None => {
                *owner = Some(me);
                Ok(true)
            }
            Some(thread) if thread == me => Err(Reentrant),
            Some(_) => Ok(false),
        }
    }

    /// Wait a moment until it is free, and take it; whether it was.
    fn wait(&self, me: ThreadId, limit: Duration) -> bool {
        let guard = self.owner();
        let (mut owner, _) =
            self.freed.wait_timeout_while(guard, limit, |owner| owner.is_some()).unwrap_or_else(PoisonError::into_inner);
        if owner.is_none() {
            *owner = Some(me);
            return true;
        }
        false
    }

    fn take(&self, py: Python<'_>, limit: Option<Duration>) -> PyResult<bool> {
        let me = thread::current().id();
        if self.try_take(me).map_err(|Reentrant| reentrant(py))? {
            return Ok(true);
        }
        let until = limit.map(|limit| Instant::now() + limit);
        loop {
            let left = until.map_or(LOOK, |until| until.saturating_duration_since(Instant::now()).min(LOOK));
            if left.is_zero() {
                return Ok(false);
            }
            if py.detach(|| self.wait(me, left)) {
                return Ok(true);
            }
            py.check_signals()?;
        }
    }

    /// Let it go; false if this thread does not hold it.
    fn free(&self) -> bool {
        let mut owner = self.owner();
        let is_mine = *owner == Some(thread::current().id());
        if is_mine {
            *owner = None;
            drop(owner);
            self.freed.notify_one();
        }
        is_mine
    }

    fn refuse_foreign(is_mine: bool) -> PyResult<()> {
        if is_mine {
            Ok(())
        } else {
            Err(PyRuntimeError::new_err("release of a mutex that this thread does not hold"))
        }
    }
}

struct Reentrant;

fn reentrant(py: Python<'_>) -> PyErr {
    let message = "this thread is inside a call of the same object already: a signal handler or a finalizer may not \
                   make another one; set a flag there, and call when the thread has returned";
    py.import("latchwork.errors")
        .and_then(|errors| errors.getattr("ReentrantCall"))
        .and_then(|error| Ok(error.cast_into::<PyType>()?))
        .map_or_else(|error| error, |error| PyErr::from_type(error, message))
}

#[pymethods]
impl Mutex {
    #[new]
    fn new() -> Self {
        Self { owner: Inner::new(None), freed: Condvar::new() }
    }

    fn __enter__(&self, py: Python<'_>) -> PyResult<bool> {
        self.take(py, None)
    }

    /// A wait for a condition that an interrupt cut short may have let it go already: then that is what is raised.
    #[pyo3(signature = (*raised))]
    fn __exit__(&self, raised: &Bound<'_, PyTuple>) -> PyResult<()> {
        let is_mine = self.free();
        if raised.is_empty() || raised.get_item(0)?.is_none() {
            Self::refuse_foreign(is_mine)?;
        }
        Ok(())
    }

    #[pyo3(signature = (blocking = true, timeout = -1.0))]
    fn acquire(&self, py: Python<'_>, blocking: bool, timeout: f64) -> PyResult<bool> {
        let limit = if !blocking {
            Some(Duration::ZERO)
        } else if timeout < 0.0 {
            None
        } else {
            Duration::try_from_secs_f64(timeout).ok()
        };
        self.take(py, limit)
    }

    fn release(&self) -> PyResult<()> {
        Self::refuse_foreign(self.free())
    }

    fn locked(&self) -> bool {
        self.owner().is_some()
    }

    /// For `threading.Condition`.
    fn _is_owned(&self) -> bool {
        *self.owner() == Some(thread::current().id())
    }
}

/// Calls something at the end of a block, and once more if an interrupt cut that short.
#[pyclass(frozen, module = "latchwork._core")]
pub struct Finally {
    cleanup: Py<PyAny>,
}

#[pymethods]
impl Finally {
    #[new]
    fn new(cleanup: Py<PyAny>) -> Self {
        Self { cleanup }
    }

    fn __enter__(&self) {}

    #[pyo3(signature = (*_raised))]
    fn __exit__(&self, py: Python<'_>, _raised: &Bound<'_, PyTuple>) -> PyResult<()> {
        let Err(error) = self.cleanup.call0(py) else {
            return Ok(());
        };
        if !error.is_instance_of::<PyException>(py) {
            self.cleanup.call0(py)?;
        }
        Err(error)
    }
}
