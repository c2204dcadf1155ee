//! Calls of functions of Python's C API that run Python code or wait for the GIL.
//!
//! CPython before 3.14 ends daemon threads at shutdown with `pthread_exit`, which unwinds their stacks. pyo3 catches
//! panics at each entry, and an unwinding that is not a panic aborts the process there. Therefore only this module
//! calls these functions. If the interpreter ends a thread in one of them, the thread parks forever in the calling
//! frame, before any of our values is dropped. pyo3 declares the same functions as ones that never unwind, and then it
//! depends on inlining whether a frame can stop the unwinding. CPython 3.14 parks such threads itself.

#![allow(unsafe_code)]

use std::cell::Cell;
use std::ffi::c_int;
use std::mem;
use std::panic::{catch_unwind, resume_unwind, AssertUnwindSafe};
use std::thread;

use pyo3::ffi::{self, PyObject, PyThreadState};
use pyo3::prelude::*;
use pyo3::types::{PyFloat, PyInt, PyString};

extern "C-unwind" {
    fn PyEval_RestoreThread(state: *mut PyThreadState);
    fn PyErr_CheckSignals() -> c_int;
    fn PyObject_GetIter(object: *mut PyObject) -> *mut PyObject;
    fn PyIter_Next(object: *mut PyObject) -> *mut PyObject;
    fn PyNumber_Index(object: *mut PyObject) -> *mut PyObject;
    fn PyNumber_Float(object: *mut PyObject) -> *mut PyObject;
    fn PyObject_Repr(object: *mut PyObject) -> *mut PyObject;
    fn PyObject_GetAttr(object: *mut PyObject, name: *mut PyObject) -> *mut PyObject;
}

struct Park;

impl Drop for Park {
    fn drop(&mut self) {
        while !thread::panicking() {
            thread::park();
        }
    }
}

/// Runs `work`, during which the interpreter may end this thread. The thread then parks forever.
#[inline(always)]
pub fn guarded<R>(work: impl FnOnce() -> R) -> R {
    let park = Park;
    let result = work();
    mem::forget(park);
    result
}

/// Calls a C function that returns a new reference, or NULL with or without an exception.
fn reference<'py>(
    function: unsafe extern "C-unwind" fn(*mut PyObject) -> *mut PyObject,
    object: &Bound<'py, PyAny>,
) -> Option<PyResult<Bound<'py, PyAny>>> {
    let py = object.py();
    // SAFETY: the functions given here take a live object and return a new reference or NULL.
    let made = unsafe { Bound::from_owned_ptr_or_opt(py, guarded(|| function(object.as_ptr()))) };
    made.map_or_else(|| PyErr::take(py).map(Err), |made| Some(Ok(made)))
}

/// Calls a C function that returns a new reference, or NULL with an exception.
fn new_reference<'py>(
    function: unsafe extern "C-unwind" fn(*mut PyObject) -> *mut PyObject,
    object: &Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyAny>> {
    reference(function, object).unwrap_or_else(|| Err(PyErr::fetch(object.py())))
}

/// Returns `iter(object)`.
pub fn iterate<'py>(object: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    new_reference(PyObject_GetIter, object)
}

/// Returns `next(iterator)`, or None at the end.
#[inline]
pub fn next<'py>(iterator: &Bound<'py, PyAny>) -> Option<PyResult<Bound<'py, PyAny>>> {
    reference(PyIter_Next, iterator)
}

/// Returns `repr(object)`, or "?" if that raises.
pub fn repr_or_question_mark(object: &Bound<'_, PyAny>) -> String {
    new_reference(PyObject_Repr, object).map_or_else(|_| "?".into(), |repr| repr.to_string())
}

/// Returns `getattr(object, name)`.
pub fn attribute<'py>(object: &Bound<'py, PyAny>, name: &Bound<'py, PyString>) -> PyResult<Bound<'py, PyAny>> {
    // SAFETY: both are alive; the result is a new reference, or NULL with an exception.
    unsafe {
        let found = guarded(|| PyObject_GetAttr(object.as_ptr(), name.as_ptr()));
        Bound::from_owned_ptr_or_err(object.py(), found)
    }
}

/// Runs the Python handlers of signals that have arrived, if this is the main thread.
pub fn check_signals(py: Python<'_>) -> PyResult<()> {
    // SAFETY: this thread has the GIL, as `py` shows.
    match unsafe { guarded(|| PyErr_CheckSignals()) } {
        0 => Ok(()),
        _ => Err(PyErr::fetch(py)),
    }
}

/// Runs `work` without the GIL. `work` may call its argument to check for signals, and must return when that fails.
pub fn detached<R: Send>(py: Python<'_>, work: impl FnOnce(&dyn Fn() -> PyResult<()>) -> R) -> R {
    // SAFETY, here and below: this thread has the GIL exactly when it is to be released, and takes it with its own state.
    let state = Cell::new(unsafe { ffi::PyEval_SaveThread() });
    let take = || unsafe { guarded(|| PyEval_RestoreThread(state.get())) };
    let check = || {
        take();
        let checked = check_signals(py);
        state.set(unsafe { ffi::PyEval_SaveThread() });
        checked
    };
    let result = catch_unwind(AssertUnwindSafe(|| work(&check)));
    take();
    result.unwrap_or_else(|panic| resume_unwind(panic))
}

/// A number that Python converts by `__index__` or `__float__`.
pub trait Number: Sized {
    fn read(value: &Bound<'_, PyAny>) -> PyResult<Self>;
}

/// Converts a Python number. For arguments: `#[pyo3(from_py_with = number)]`.
pub fn number<T: Number>(value: &Bound<'_, PyAny>) -> PyResult<T> {
    T::read(value)
}

impl Number for f64 {
    fn read(value: &Bound<'_, PyAny>) -> PyResult<Self> {
        if value.is_exact_instance_of::<PyFloat>() || value.is_instance_of::<PyString>() {
            return value.extract();
        }
        new_reference(PyNumber_Float, value)?.extract()
    }
}

macro_rules! integers {
    ($($integer:ty),*) => {$(
        impl Number for $integer {
            fn read(value: &Bound<'_, PyAny>) -> PyResult<Self> {
                if value.is_exact_instance_of::<PyInt>() {
                    return value.extract();
                }
                new_reference(PyNumber_Index, value)?.extract()
            }
        }
    )*};
}

integers!(u32, u64, usize, isize);

impl<T: Number> Number for Option<T> {
    fn read(value: &Bound<'_, PyAny>) -> PyResult<Self> {
        if value.is_none() {
            Ok(None)
        } else {
            T::read(value).map(Some)
        }
    }
}

impl<T: Number> Number for (T, T) {
    fn read(value: &Bound<'_, PyAny>) -> PyResult<Self> {
        let (a, b): (Bound<'_, PyAny>, Bound<'_, PyAny>) = value.extract()?;
        Ok((T::read(&a)?, T::read(&b)?))
    }
}

impl<T: Number> Number for (T, T, T) {
    fn read(value: &Bound<'_, PyAny>) -> PyResult<Self> {
        let (a, b, c): (Bound<'_, PyAny>, Bound<'_, PyAny>, Bound<'_, PyAny>) = value.extract()?;
        Ok((T::read(&a)?, T::read(&b)?, T::read(&c)?))
    }
}
