//! Text that comes from Python, borrowed where it lies.

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyString;
use pyo3::CastIntoError;

/// The UTF-8 form of a str; lone surrogates have none. `what` names the value in the error.
pub fn utf8<'a>(what: &str, string: &'a Bound<'_, PyString>) -> PyResult<&'a str> {
    string.to_str().map_err(|_| {
        let shown = string.repr().map_or_else(|_| "?".into(), |repr| repr.to_string());
        PyValueError::new_err(format!("{what} {shown} holds a lone surrogate; use text that UTF-8 can encode"))
    })
}

/// All strings of an iterable.
pub fn strings<'py>(what: &str, values: &Bound<'py, PyAny>) -> PyResult<Vec<Bound<'py, PyString>>> {
    if values.is_instance_of::<PyString>() {
        return Err(PyTypeError::new_err(format!("one str was given where several {what}s are wanted; pass a list")));
    }
    values.try_iter()?.map(|value| string(what, value?)).collect()
}

/// Visits each string of an iterable. Its own iterator takes fewer calls than asking a list for each of its places.
pub fn each_string<'py>(
    what: &str,
    values: &Bound<'py, PyAny>,
    mut visit: impl FnMut(Bound<'py, PyString>) -> PyResult<()>,
) -> PyResult<()> {
    if values.is_instance_of::<PyString>() {
        return Err(PyTypeError::new_err(format!("one str was given where several {what}s are wanted; pass a list")));
    }
    values.try_iter()?.try_for_each(|value| visit(string(what, value?)?))
}

/// A value as a str.
pub fn string<'py>(what: &str, value: Bound<'py, PyAny>) -> PyResult<Bound<'py, PyString>> {
    // Hardly ever is it a subclass, and to look at the type alone is faster.
    let kind_of = |error: CastIntoError<'py>| error.into_inner().cast_into::<PyString>();
    value.cast_into_exact::<PyString>().or_else(kind_of).map_err(|error| {
        let value = error.into_inner();
        let kind = value.get_type().name().map_or_else(|_| "?".into(), |name| name.to_string());
        PyTypeError::new_err(format!("{what} {value} is of type {kind}; it must be a str, so convert it"))
    })
}
