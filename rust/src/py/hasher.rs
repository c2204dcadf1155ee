//! `RendezvousHasher`.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyList, PyString};

use super::text::{string, strings, utf8};
use crate::input::check_weights;
use crate::rendezvous::{Mode, Rendezvous};

#[pyclass(frozen, module = "latchwork._core")]
pub struct RendezvousHasher {
    rendezvous: Rendezvous<String>,
    /// The same names as Python objects, so that results share them.
    names: Vec<Py<PyString>>,
    mode: String,
}

#[pymethods]
impl RendezvousHasher {
    #[new]
    #[pyo3(signature = (workers, weights = None, mode = "fast"))]
    fn new(workers: &Bound<'_, PyAny>, weights: Option<Vec<f64>>, mode: &str) -> PyResult<Self> {
        let workers = strings("worker", workers)?;
        let names: Vec<&str> = workers.iter().map(|name| utf8("worker", name)).collect::<PyResult<_>>()?;
        let weights = weights.unwrap_or_else(|| vec![1.0; names.len()]);
        check_weights(&names, &weights)?;
        let mut order: Vec<usize> = (0..names.len()).collect();
        order.sort_by_key(|&at| names[at]);
        let sorted = order.iter().map(|&at| names[at].to_owned()).collect();
        let weights: Vec<f64> = order.iter().map(|&at| weights[at]).collect();
        Ok(Self {
            rendezvous: Rendezvous::new(sorted, &weights, Mode::parse(mode)?)?,
            names: order.iter().map(|&at| workers[at].clone().unbind()).collect(),
            mode: mode.to_owned(),
        })
    }

    #[getter]
    fn workers(&self, py: Python<'_>) -> Vec<Py<PyString>> {
        self.names.iter().map(|name| name.clone_ref(py)).collect()
    }

    #[getter]
    fn mode(&self) -> &str {
        &self.mode
    }

    fn owner(&self, py: Python<'_>, key: &Bound<'_, PyAny>) -> PyResult<Py<PyString>> {
        let key = string("key", key.clone())?;
        let key = self.rendezvous.key(utf8("key", &key)?);
        Ok(self.names[self.rendezvous.owner(key, &mut Vec::new())].clone_ref(py))
    }

    fn owners(&self, py: Python<'_>, key: &Bound<'_, PyAny>, k: isize) -> PyResult<Vec<Py<PyString>>> {
        if k < 1 {
            return Err(PyValueError::new_err(format!("k is {k}; ask for at least one owner")));
        }
        let key = string("key", key.clone())?;
        let key = self.rendezvous.key(utf8("key", &key)?);
        let owners = self.rendezvous.owners(key, k as usize, &mut Vec::new());
        Ok(owners.into_iter().map(|owner| self.names[owner].clone_ref(py)).collect())
    }

    fn assign<'py>(&self, py: Python<'py>, keys: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyList>> {
        let keys = strings("key", keys)?;
        let texts: Vec<&str> = keys.iter().map(|key| utf8("key", key)).collect::<PyResult<_>>()?;
        let owners = py.detach(|| self.owners_of(&texts));
        PyList::new(py, owners.into_iter().map(|owner| self.names[owner as usize].bind(py)))
    }

    fn __len__(&self) -> usize {
        self.names.len()
    }

    fn __repr__(&self) -> String {
        format!("<RendezvousHasher {} workers, mode {}>", self.names.len(), self.mode)
    }
}

impl RendezvousHasher {
    fn owners_of(&self, keys: &[&str]) -> Vec<u32> {
        let mut buffer = Vec::new();
        let owner = |key: &&str| self.rendezvous.owner(self.rendezvous.key(key), &mut buffer) as u32;
        keys.iter().map(owner).collect()
    }
}
