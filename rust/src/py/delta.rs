//! `Delta`, and columns of numbers for Python.

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PyMemoryView, PyString, PyTuple};

use crate::input::NOBODY;

/// What a change moved. Immutable; each column is made when it is asked for.
///
/// Iterating gives a tuple of item, source and target per move, in the order of the items: source is None for an item
/// that is new, target is None for one that is gone.
#[pyclass(frozen, module = "latchwork._core")]
pub struct Delta {
    pub items: Vec<Py<PyString>>,
    pub from: Vec<u32>,
    pub to: Vec<u32>,
    /// Names by the numbers in `from` and `to`.
    pub names: Vec<Option<Py<PyString>>>,
}

#[pymethods]
impl Delta {
    /// The items that moved.
    #[getter]
    fn items<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        PyList::new(py, self.items.iter().map(|name| name.bind(py)))
    }

    /// Their owners before.
    #[getter]
    fn sources<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        PyList::new(py, self.from.iter().map(|&slot| self.name(slot)))
    }

    /// Their owners after.
    #[getter]
    fn targets<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        PyList::new(py, self.to.iter().map(|&slot| self.name(slot)))
    }

    fn __len__(&self) -> usize {
        self.items.len()
    }

    fn __iter__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let rows: Vec<Bound<'py, PyTuple>> =
            (0..self.items.len()).map(|at| self.row(py, at)).collect::<PyResult<_>>()?;
        Ok(PyList::new(py, rows)?.try_iter()?.into_any())
    }

    fn __repr__(&self) -> String {
        format!("<Delta {} moves>", self.items.len())
    }
}

impl Delta {
    fn name(&self, slot: u32) -> Option<&Py<PyString>> {
        if slot == NOBODY {
            None
        } else {
            self.names[slot as usize].as_ref()
        }
    }

    fn row<'py>(&self, py: Python<'py>, at: usize) -> PyResult<Bound<'py, PyTuple>> {
        (&self.items[at], self.name(self.from[at]), self.name(self.to[at])).into_pyobject(py)
    }
}

/// A read-only memoryview of native 32-bit unsigned numbers, of one dimension or of rows of `columns`.
///
/// The buffer protocol is no part of the limited API before Python 3.11, so that a class of ours cannot export one.
/// A `bytes` object can: the numbers are written into one once, and readers share it without any further copy. As
/// nobody can change it, what a reader sees stays as it was, whatever becomes of the assignment.
pub fn memory<'py>(
    py: Python<'py>,
    numbers: impl ExactSizeIterator<Item = u32>,
    columns: Option<usize>,
) -> PyResult<Bound<'py, PyAny>> {
    let count = numbers.len();
    let bytes = PyBytes::new_with(py, count * 4, |bytes| {
        for (place, number) in bytes.chunks_exact_mut(4).zip(numbers) {
            place.copy_from_slice(&number.to_ne_bytes());
        }
        Ok(())
    })?;
    let view = PyMemoryView::from(bytes.as_any())?;
    match columns {
        // memoryview refuses shapes with a zero in them, so nothing is one-dimensional.
        Some(columns) if count > 0 => view.call_method1("cast", ("I", (count / columns, columns))),
        _ => view.call_method1("cast", ("I",)),
    }
}
