//! The Python class `Delta`: the items that a change moved.

use pyo3::prelude::*;
use pyo3::types::{PyList, PyString, PyTuple};

use super::calls::{guarded, iterate};
use latchwork_core::input::NO_OWNER;

/// The items that a change moved. Immutable; each column is built on demand.
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
        guarded(|| PyList::new(py, self.items.iter().map(|name| name.bind(py))))
    }

    /// The previous owner of each item in `items`.
    #[getter]
    fn sources<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        guarded(|| PyList::new(py, self.from.iter().map(|&slot| self.name(slot))))
    }

    /// The new owner of each item in `items`.
    #[getter]
    fn targets<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        guarded(|| PyList::new(py, self.to.iter().map(|&slot| self.name(slot))))
    }

    fn __len__(&self) -> usize {
        guarded(|| self.items.len())
    }

    fn __iter__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        guarded(|| {
            let rows: Vec<Bound<'py, PyTuple>> =
                (0..self.items.len()).map(|at| self.row(py, at)).collect::<PyResult<_>>()?;
            iterate(PyList::new(py, rows)?.as_any())
        })
    }

    fn __repr__(&self) -> String {
        guarded(|| format!("<Delta {} moves>", self.items.len()))
    }
}

impl Delta {
    fn name(&self, slot: u32) -> Option<&Py<PyString>> {
        if slot == NO_OWNER {
            None
        } else {
            self.names[slot as usize].as_ref()
        }
    }

    fn row<'py>(&self, py: Python<'py>, at: usize) -> PyResult<Bound<'py, PyTuple>> {
        (&self.items[at], self.name(self.from[at]), self.name(self.to[at])).into_pyobject(py)
    }
}
