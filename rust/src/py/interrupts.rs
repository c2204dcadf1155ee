//! What has to hold when an interrupt comes at any bytecode: entered and left here, where no bytecode is between.

use std::cell::Cell;
use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex as Inner, MutexGuard, PoisonError};
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

use pyo3::exceptions::{PyException, PyRuntimeError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyTuple, PyType};

/// How long a thread waits before it looks whether a signal came.
const LOOK: Duration = Duration::from_millis(50);

thread_local! {
    /// How many mutexes this thread holds, and sections it is inside of. Nothing of ours calls a store in there, so who
    /// does is a signal handler or a finalizer.
    static INSIDE: Cell<usize> = const { Cell::new(0) };
}

fn enters() {
    INSIDE.set(INSIDE.get() + 1);
}

fn leaves() {
    INSIDE.set(INSIDE.get().saturating_sub(1));
}

/// Refuse a call that is made while its thread holds a ``Mutex`` or is inside of a ``OncePerThread``.
///
/// No code of ours makes a call there, so a signal handler or a finalizer does, and the answer may need what its thread
/// holds: the call would wait for itself.
///
/// Raises:
///     ReentrantCall: the thread holds one, or is inside of one.
#[pyfunction]
pub fn refuse_inside(py: Python<'_>) -> PyResult<()> {
    if INSIDE.get() == 0 {
        Ok(())
    } else {
        Err(reentrant(py))
    }
}

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
                enters();
                Ok(true)
            }
            Some(thread) if thread == me => Err(Reentrant),
            Some(_) => Ok(false),
        }
    }

    /// Wait a moment until it is free, and take it; whether it was.
    fn wait(&self, me: ThreadId, limit: Duration) -> bool {
        let guard = self.owner();
        let (mut owner, _) = self
            .freed
            .wait_timeout_while(guard, limit, |owner| owner.is_some())
            .unwrap_or_else(PoisonError::into_inner);
        if owner.is_none() {
            *owner = Some(me);
            enters();
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
            leaves();
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

    /// Take it; False if the time, in seconds, is over first. A negative time is for ever.
    #[pyo3(signature = (blocking = true, timeout = -1.0), text_signature = "($self, blocking=True, timeout=-1.0)")]
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

    /// Let it go.
    ///
    /// Raises:
    ///     RuntimeError: this thread does not hold it.
    fn release(&self) -> PyResult<()> {
        Self::refuse_foreign(self.free())
    }

    /// For a ``with`` that holds it if nobody does, this thread included; its value says so. Used once.
    fn trying(slf: Py<Self>) -> Trying {
        Trying { mutex: slf, has_it: AtomicBool::new(false) }
    }

    /// Whether somebody holds it.
    fn locked(&self) -> bool {
        self.owner().is_some()
    }

    /// For `threading.Condition`.
    fn _is_owned(&self) -> bool {
        *self.owner() == Some(thread::current().id())
    }
}

/// A mutex for a block that goes on without it.
#[pyclass(frozen, module = "latchwork._core")]
pub struct Trying {
    mutex: Py<Mutex>,
    has_it: AtomicBool,
}

#[pymethods]
impl Trying {
    fn __enter__(&self) -> bool {
        let has_it = self.mutex.get().try_take(thread::current().id()).unwrap_or(false);
        self.has_it.store(has_it, Ordering::Relaxed);
        has_it
    }

    #[pyo3(signature = (*_raised))]
    fn __exit__(&self, _raised: &Bound<'_, PyTuple>) -> PyResult<()> {
        Mutex::refuse_foreign(!self.has_it.swap(false, Ordering::Relaxed) || self.mutex.get().free())
    }
}

/// Refuses a thread that is inside already.
#[pyclass(frozen, module = "latchwork._core")]
pub struct OncePerThread {
    inside: Inner<HashSet<ThreadId>>,
}

impl OncePerThread {
    fn inside(&self) -> MutexGuard<'_, HashSet<ThreadId>> {
        self.inside.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[pymethods]
impl OncePerThread {
    #[new]
    fn new() -> Self {
        Self { inside: Inner::new(HashSet::new()) }
    }

    fn __enter__(&self, py: Python<'_>) -> PyResult<()> {
        let is_first = self.inside().insert(thread::current().id());
        if is_first {
            enters();
            Ok(())
        } else {
            Err(reentrant(py))
        }
    }

    #[pyo3(signature = (*_raised))]
    fn __exit__(&self, _raised: &Bound<'_, PyTuple>) {
        if self.inside().remove(&thread::current().id()) {
            leaves();
        }
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
        if is_interrupt(py, &error) {
            self.cleanup.call0(py)?;
        }
        Err(error)
    }
}

/// Whether a call was cut short by what is no `Exception`: Ctrl-C, `SystemExit`.
fn is_interrupt(py: Python<'_>, error: &PyErr) -> bool {
    !error.is_instance_of::<PyException>(py)
}

/// Function and instance as a bound method.
fn bound<'py>(
    py: Python<'py>,
    function: Bound<'py, PyAny>,
    instance: &Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyAny>> {
    static METHOD: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    METHOD.import(py, "types", "MethodType")?.call1((function, instance))
}

/// What undoes a call that an interrupt ends.
#[pyclass(frozen, module = "latchwork._core")]
pub struct Attempt {
    undos: Inner<Vec<Py<PyAny>>>,
}

impl Attempt {
    fn undos(&self) -> MutexGuard<'_, Vec<Py<PyAny>>> {
        self.undos.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[pymethods]
impl Attempt {
    #[new]
    fn new() -> Self {
        Self { undos: Inner::new(Vec::new()) }
    }

    /// Have this called by ``undo``; returns how many there were before. It must be quick, and may be repeated.
    fn add(&self, undo: Py<PyAny>) -> usize {
        let mut undos = self.undos();
        undos.push(undo);
        undos.len() - 1
    }

    /// Forget all but the first so many: what they undo is over.
    fn settle(&self, count: usize) {
        let mut undos = self.undos();
        let settled = if count < undos.len() { undos.split_off(count) } else { Vec::new() };
        drop(undos); // what is dropped next may run a finalizer, which may add to them
        drop(settled);
    }

    /// Call and forget them all, the newest first; one that raises goes to ``sys.unraisablehook``.
    fn undo(&self, py: Python<'_>) {
        loop {
            let Some(undo) = self.undos().pop() else {
                return;
            };
            let mut done = undo.call0(py);
            if done.as_ref().is_err_and(|error| is_interrupt(py, error)) {
                done = undo.call0(py);
            }
            if let Err(error) = done {
                error.write_unraisable(py, Some(undo.bind(py)));
            }
        }
    }
}

/// A protocol as a method; see `_core.pyi`.
#[pyclass(frozen, dict, module = "latchwork._core")]
pub struct Driven {
    protocol: Py<PyAny>,
    run: Py<PyAny>,
    ends: bool,
}

impl Driven {
    /// Drive it once; undone, if an interrupt ended it. With an interrupt: whether it had begun anything.
    fn drive(
        &self,
        py: Python<'_>,
        args: &Bound<'_, PyTuple>,
        options: Option<&Bound<'_, PyDict>>,
    ) -> Result<Py<PyAny>, (PyErr, bool)> {
        // Making the steps runs lines of Python too: whatever ends that has begun nothing.
        let steps = self.protocol.call(py, args, options).map_err(|error| {
            let is_refused = !is_interrupt(py, &error); // wrong arguments: they are wrong the second time too
            (error, is_refused)
        })?;
        let attempt = Bound::new(py, Attempt::new()).map_err(|error| (error, true))?;
        self.run.call1(py, (steps.bind(py), &attempt)).map_err(|error| {
            if !is_interrupt(py, &error) {
                return (error, true);
            }
            let had_begun = !attempt.get().undos().is_empty();
            attempt.get().undo(py);
            let _ = steps.call_method0(py, "close"); // one that was not even started would warn
            (error, had_begun)
        })
    }
}

#[pymethods]
impl Driven {
    #[new]
    #[pyo3(signature = (protocol, run, ends = false))]
    fn new(protocol: Py<PyAny>, run: Py<PyAny>, ends: bool) -> Self {
        Self { protocol, run, ends }
    }

    fn __get__<'py>(
        slf: &Bound<'py, Self>,
        instance: Option<&Bound<'py, PyAny>>,
        _owner: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        match instance {
            None => Ok(slf.clone().into_any()),
            Some(instance) => bound(slf.py(), slf.clone().into_any(), instance),
        }
    }

    #[pyo3(signature = (*args, **options))]
    fn __call__(
        &self,
        py: Python<'_>,
        args: &Bound<'_, PyTuple>,
        options: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Py<PyAny>> {
        self.drive(py, args, options).map_err(|(error, had_begun)| {
            if self.ends && !had_begun {
                if let Err((again, _)) = self.drive(py, args, options) {
                    again.write_unraisable(py, Some(self.protocol.bind(py)));
                }
            }
            error
        })
    }
}

/// A method that can be begun again from its start, and is if an interrupt cut it short.
#[pyclass(frozen, dict, module = "latchwork._core")]
pub struct Surely {
    function: Py<PyAny>,
}

#[pymethods]
impl Surely {
    #[new]
    fn new(function: Py<PyAny>) -> Self {
        Self { function }
    }

    fn __get__<'py>(
        slf: &Bound<'py, Self>,
        instance: Option<&Bound<'py, PyAny>>,
        _owner: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        match instance {
            None => Ok(slf.clone().into_any()),
            Some(instance) => bound(slf.py(), slf.clone().into_any(), instance),
        }
    }

    #[pyo3(signature = (*args, **options))]
    fn __call__(
        &self,
        py: Python<'_>,
        args: &Bound<'_, PyTuple>,
        options: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Py<PyAny>> {
        self.function.call(py, args, options).inspect_err(|error| {
            if is_interrupt(py, error) {
                match self.function.call(py, args, options) {
                    Err(again) if !is_interrupt(py, &again) => {
                        again.write_unraisable(py, Some(self.function.bind(py)));
                    }
                    _ => {}
                }
            }
        })
    }
}

/// A method that returns its object: an `__enter__` with no bytecode at which an interrupt would skip `__exit__`.
#[pyclass(frozen, module = "latchwork._core")]
pub struct Itself;

#[pymethods]
impl Itself {
    #[new]
    fn new() -> Self {
        Self
    }

    fn __get__<'py>(
        slf: &Bound<'py, Self>,
        instance: Option<&Bound<'py, PyAny>>,
        _owner: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        match instance {
            None => Ok(slf.clone().into_any()),
            Some(instance) => bound(slf.py(), slf.clone().into_any(), instance),
        }
    }

    #[allow(clippy::unused_self)] // called as a method
    fn __call__(&self, instance: Py<PyAny>) -> Py<PyAny> {
        instance
    }
}
