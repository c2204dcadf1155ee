//! Text and lists from Python, read without copies where possible.

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyList, PyString, PyTuple};
use pyo3::CastIntoError;

use super::calls::{self, repr_or_question_mark};
use super::errors::Raised;
use super::interrupts::check_signals;

/// Returns a str as UTF-8. Raises ValueError for lone surrogates. `what` names the value in the error.
pub fn utf8<'a>(what: &str, string: &'a Bound<'_, PyString>) -> PyResult<&'a str> {
    string.to_str().map_err(|_| {
        let shown = repr_or_question_mark(string);
        PyValueError::new_err(format!("{what} {shown} holds a lone surrogate; use text that UTF-8 can encode"))
    })
}

/// Returns all strings of an iterable.
pub fn strings<'py>(what: &str, values: &Bound<'py, PyAny>) -> PyResult<Vec<Bound<'py, PyString>>> {
    if values.is_instance_of::<PyString>() {
        return Err(PyTypeError::new_err(format!("one str was given where several {what}s are wanted; pass a list")));
    }
    let mut strings = list_for(values)?;
    each(values, |value| push(&mut strings, string(what, value)?))?;
    Ok(strings)
}

/// Calls `visit` for each string of an iterable. This is faster than indexing a list.
pub fn each_string<'py>(
    what: &str,
    values: &Bound<'py, PyAny>,
    mut visit: impl FnMut(Bound<'py, PyString>) -> PyResult<()>,
) -> PyResult<()> {
    if values.is_instance_of::<PyString>() {
        return Err(PyTypeError::new_err(format!("one str was given where several {what}s are wanted; pass a list")));
    }
    each(values, |value| visit(string(what, value)?))
}

/// Returns all values of an iterable, converted by `read`. Raises ValueError for more than `most` values. Memory grows
/// with the values that arrive, whatever length the iterable reports.
pub fn list_of<'py, T>(
    what: &str,
    values: &Bound<'py, PyAny>,
    most: usize,
    read: impl Fn(&Bound<'py, PyAny>) -> PyResult<T>,
) -> PyResult<Vec<T>> {
    let mut list = list_for(values)?;
    each(values, |value| {
        if list.len() == most {
            return Err(PyValueError::new_err(format!("more than {most} {what}s are given; give fewer")));
        }
        push(&mut list, read(&value)?)
    })?;
    Ok(list)
}

/// Calls `visit` for each value of an iterable, and checks for signals.
pub fn each<'py>(values: &Bound<'py, PyAny>, mut visit: impl FnMut(Bound<'py, PyAny>) -> PyResult<()>) -> PyResult<()> {
    let iterator = calls::iterate(values)?;
    for at in 0.. {
        let Some(value) = calls::next(&iterator) else { break };
        visit(value?)?;
        check_signals(values.py(), at)?;
    }
    Ok(())
}

/// Returns an empty list with capacity for the values of a list or tuple. The length of other iterables is unknown.
pub fn list_for<T>(values: &Bound<'_, PyAny>) -> PyResult<Vec<T>> {
    let mut list = Vec::new();
    let known = values.cast_exact::<PyList>().map(|list| list.len());
    let known = known.or_else(|_| values.cast_exact::<PyTuple>().map(|tuple| tuple.len()));
    list.try_reserve_exact(known.unwrap_or(0)).raised()?;
    Ok(list)
}

/// Appends a value to a list. Raises MemoryError if there is not enough memory.
#[inline]
pub fn push<T>(list: &mut Vec<T>, value: T) -> PyResult<()> {
    list.try_reserve(1).raised()?;
    list.push(value);
    Ok(())
}

/// Returns a value as a str. Raises TypeError for another type.
pub fn string<'py>(what: &str, value: Bound<'py, PyAny>) -> PyResult<Bound<'py, PyString>> {
    // Hardly ever is it a subclass, and to look at the type alone is faster.
    let kind_of = |error: CastIntoError<'py>| error.into_inner().cast_into::<PyString>();
    value.cast_into_exact::<PyString>().or_else(kind_of).map_err(|error| {
        let value = error.into_inner();
        let kind = value.get_type().name().map_or_else(|_| "?".into(), |name| name.to_string());
        PyTypeError::new_err(format!("{what} {value} is of type {kind}; it must be a str, so convert it"))
    })
}
