//! The Python class `RendezvousHasher`.

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyList, PyMapping, PyString};

use super::assignment::Assignment;
use super::calls::{guarded, number, repr_or_question_mark};
use super::errors::Raised;
use super::interrupts::interruptible;
use super::items::ItemSet;
use super::numbers::memory;
use super::text::{each, each_string, list_for, push, string, strings, utf8};
use latchwork_core::cancel::Cancel;
use latchwork_core::error::{filled, Error};
use latchwork_core::input::check_weights;
use latchwork_core::rendezvous::bounded::{seat, share_of};
use latchwork_core::rendezvous::score::fast_key;
use latchwork_core::rendezvous::{Keys, Mode, Rendezvous};

/// Rendezvous hashing over a fixed set of workers.
///
/// Every key goes to the worker that scores highest for it; ties go to the first worker in name order. Loads are even
/// statistically, not exactly. Immutable, so safe to share between threads.
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
    fn new(workers: &Bound<'_, PyAny>, weights: Option<&Bound<'_, PyAny>>, mode: &str) -> PyResult<Self> {
        guarded(|| {
            if weights.is_none() && workers.cast::<PyMapping>().is_ok() {
                let told =
                    "workers is a mapping, and weights are not given; give its keys as workers, its values as weights";
                return Err(PyTypeError::new_err(told));
            }
            let workers = strings("worker", workers)?;
            let names: Vec<&str> = workers.iter().map(|name| utf8("worker", name)).collect::<PyResult<_>>()?;
            let weights = weights.map_or_else(|| Ok(vec![1.0; names.len()]), |given| weights_of(&names, given))?;
            check_weights(&names, &weights).raised()?;
            let mut order: Vec<usize> = (0..names.len()).collect();
            order.sort_by_key(|&at| names[at]);
            let sorted = order.iter().map(|&at| names[at].to_owned()).collect();
            let weights: Vec<f64> = order.iter().map(|&at| weights[at]).collect();
            Ok(Self {
                rendezvous: Rendezvous::new(sorted, &weights, Mode::parse(mode).raised()?).raised()?,
                names: order.iter().map(|&at| workers[at].clone().unbind()).collect(),
                mode: mode.to_owned(),
            })
        })
    }

    /// The workers, in name order.
    #[getter]
    fn workers<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        guarded(|| PyList::new(py, &self.names))
    }

    /// The mode: "fast" or "compat".
    #[getter]
    fn mode(&self) -> &str {
        guarded(|| &self.mode)
    }

    /// Return the worker that owns a key. O(workers).
    fn owner(&self, py: Python<'_>, key: &Bound<'_, PyAny>) -> PyResult<Py<PyString>> {
        guarded(|| {
            let key = string("key", key.clone())?;
            let key = self.rendezvous.key(utf8("key", &key)?);
            Ok(self.names[self.rendezvous.owner(key, &mut Vec::new())].clone_ref(py))
        })
    }

    /// Return the best k workers for a key, best first, or all workers if there are fewer. O(workers).
    ///
    /// Raises:
    ///     ValueError: k is less than 1.
    fn owners<'py>(
        &self,
        py: Python<'py>,
        key: &Bound<'py, PyAny>,
        #[pyo3(from_py_with = number)] k: isize,
    ) -> PyResult<Bound<'py, PyAny>> {
        guarded(|| {
            let Some(k) = usize::try_from(k).ok().filter(|&k| k > 0) else {
                return Err(PyValueError::new_err(format!("k is {k}; ask for at least one owner")));
            };
            let k = k.min(self.names.len());
            if let Ok(set) = key.cast::<ItemSet>() {
                let top = |keys: Keys<'_>, cancel: &Cancel<'_>| self.rendezvous.top_of(keys, k, cancel);
                let best = set.get().items.with_keys(py, self.rendezvous.mode(), top)?;
                return memory(py, best, Some(k));
            }
            let key = string("key", key.clone())?;
            let key = self.rendezvous.key(utf8("key", &key)?);
            let owners = self.rendezvous.owners(key, k, &mut Vec::new());
            Ok(PyList::new(py, owners.into_iter().map(|owner| self.names[owner].bind(py)))?.into_any())
        })
    }

    /// Assign the items, and keep their owners in Rust. O(items * workers), without the GIL.
    ///
    /// Args:
    ///     keys: The items, which an `ItemSet` has hashed before.
    ///     threads: Maximum number of threads, at least 1. None means one per processor. A thread is started only for
    ///         each 8 million pairs ("compat": 200,000). The result does not depend on it.
    #[pyo3(signature = (keys, *, threads = None))]
    fn assign<'py>(
        &self,
        py: Python<'py>,
        keys: &Bound<'py, PyAny>,
        #[pyo3(from_py_with = number)] threads: Option<isize>,
    ) -> PyResult<Bound<'py, PyAny>> {
        guarded(|| {
            let threads = thread_count(threads)?;
            if let Ok(set) = keys.cast::<ItemSet>() {
                let assignment = Assignment::new(py, &self.rendezvous, &self.names, &set.get().items, threads)?;
                return Ok(Bound::new(py, assignment)?.into_any());
            }
            let owners = match self.rendezvous.mode() {
                Mode::Fast => self.owners_by_hash(py, keys, threads)?,
                Mode::Compat => self.owners_by_text(py, keys, threads)?,
            };
            let owners = owners.into_iter().map(|owner| self.names[owner as usize].bind(py));
            Ok(PyList::new(py, owners)?.into_any())
        })
    }

    /// Assign each item, in the order of the set, to the highest-scoring worker that is not full.
    ///
    /// A worker is full when it has its share: its part of the items by weight, rounded down, and one of the remaining
    /// items as long as there are any. `EvenlyRendezvous` does this with items in name order.
    ///
    /// Returns:
    ///     The position in `workers` of the owner of each item: a read-only memoryview of native u32 numbers, format
    ///         "I".
    #[pyo3(signature = (items, *, threads = None))]
    fn assign_evenly<'py>(
        &self,
        py: Python<'py>,
        items: &Bound<'py, ItemSet>,
        #[pyo3(from_py_with = number)] threads: Option<isize>,
    ) -> PyResult<Bound<'py, PyAny>> {
        guarded(|| {
            let (threads, items) = (thread_count(threads)?, &items.get().items);
            let count = u32::try_from(items.names.len()).expect("an item set has fewer than 2^32 items");
            let share = share_of(count, self.rendezvous.weights());
            let mode = self.rendezvous.mode();
            let owners =
                items.with_keys(py, mode, |keys, cancel| seat(&self.rendezvous, &share, keys, threads, cancel))?;
            memory(py, owners, None)
        })
    }

    fn __len__(&self) -> usize {
        guarded(|| self.names.len())
    }

    fn __repr__(&self) -> String {
        guarded(|| format!("<RendezvousHasher {} workers, mode {}>", self.names.len(), self.mode))
    }
}

impl RendezvousHasher {
    fn owners_by_hash(&self, py: Python<'_>, keys: &Bound<'_, PyAny>, threads: usize) -> PyResult<Vec<u32>> {
        let mut hashes = list_for(keys)?;
        each_string("key", keys, |key| push(&mut hashes, fast_key(utf8("key", &key)?.as_bytes())))?;
        interruptible(py, |cancel| self.owners_of(Keys { hashes: &hashes, ..Keys::default() }, threads, cancel))
    }

    fn owners_by_text(&self, py: Python<'_>, keys: &Bound<'_, PyAny>, threads: usize) -> PyResult<Vec<u32>> {
        let keys = strings("key", keys)?;
        let texts: Vec<&str> = keys.iter().map(|key| utf8("key", key)).collect::<PyResult<_>>()?;
        interruptible(py, |cancel| self.owners_of(Keys { texts: &texts, ..Keys::default() }, threads, cancel))
    }

    fn owners_of(&self, keys: Keys<'_>, threads: usize, cancel: &Cancel<'_>) -> Result<Vec<u32>, Error> {
        let (mut owners, mut scores) = (filled(0, keys.len())?, filled(0, keys.len())?);
        self.rendezvous.owners_of(keys, threads, &mut owners, &mut scores, cancel)?;
        Ok(owners)
    }
}

/// Returns the number of threads, or 0 for None: as many as the work needs.
fn thread_count(threads: Option<isize>) -> PyResult<usize> {
    let Some(threads) = threads else { return Ok(0) };
    let refused = || PyValueError::new_err(format!("threads is {threads}; give at least 1, or None"));
    usize::try_from(threads).ok().filter(|&threads| threads > 0).ok_or_else(refused)
}

/// Returns one weight per worker, in the order of the workers. An error names the worker.
fn weights_of(names: &[&str], given: &Bound<'_, PyAny>) -> PyResult<Vec<f64>> {
    if given.cast::<PyMapping>().is_ok() {
        let told = "weights is a mapping; give one weight per worker, in the order of the workers";
        return Err(PyTypeError::new_err(told));
    }
    let mut weights = Vec::new();
    each(given, |value| {
        let weight = number::<f64>(&value).map_err(|_| {
            let shown: String = repr_or_question_mark(&value).chars().take(60).collect();
            let name = names.get(weights.len()).copied().unwrap_or("?");
            let told = "a weight must be a finite number greater than 0";
            PyTypeError::new_err(format!("worker '{name}' has weight {shown}; {told}"))
        })?;
        push(&mut weights, weight)
    })?;
    Ok(weights)
}
