//! Text that comes from Python, borrowed where it lies.

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyList, PyString};

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

/// Visits each string of an iterable with its text, borrowed. Lists and tuples are read where they lie.
pub fn each_text<'py>(
    what: &str,
    values: &Bound<'py, PyAny>,
    mut visit: impl FnMut(&Bound<'py, PyString>, &str) -> PyResult<()>,
) -> PyResult<()> {
    if values.is_instance_of::<PyString>() {
        return Err(PyTypeError::new_err(format!("one str was given where several {what}s are wanted; pass a list")));
    }
    let mut take = |value: Bound<'py, PyAny>| {
        let string = string(what, value)?;
        visit(&string, utf8(what, &string)?)
    };
    if let Ok(list) = values.cast::<PyList>() {
        return list.iter().try_for_each(take);
    }
    values.try_iter()?.try_for_each(|value| take(value?))
}

/// A value as a str.
pub fn string<'py>(what: &str, value: Bound<'py, PyAny>) -> PyResult<Bound<'py, PyString>> {
    value.cast_into::<PyString>().map_err(|error| {
        let value = error.into_inner();
        let kind = value.get_type().name().map_or_else(|_| "?".into(), |name| name.to_string());
        PyTypeError::new_err(format!("{what} {value} is a {kind}; it must be a str"))
    })
}
