//! The Python class `Assignment`.

use std::ffi::c_int;
use std::mem;
use std::sync::Arc;

use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyString};

use super::calls::{guarded, number};
use super::delta::Delta;
use super::errors::Raised;
use super::interrupts::{check_signals, Borrowed, Shared};
use super::items::{ItemSet, Items};
use super::numbers::{memory, Numbers};
use super::text::{string, utf8};
use latchwork_core::cancel::Cancel;
use latchwork_core::error::Error;
use latchwork_core::rendezvous::incremental::{self, Assignment as State};
use latchwork_core::rendezvous::items::MOST_ITEMS;
use latchwork_core::rendezvous::{Keys, Rendezvous};

/// The owners of items by rendezvous hashing, kept in Rust while workers and items come and go.
///
/// Made by `RendezvousHasher.assign` from an `ItemSet`; neither is ever changed by it. After any changes the owners are
/// those of a fresh assignment, and each change moves the fewest items that this allows. The job manager keeps one for
/// each job that `Rendezvous` places. Safe to share between threads: calls take turns. A change that raises changes
/// nothing. Beyond the item set it takes 8 bytes per item.
#[pyclass(frozen, module = "latchwork._core")]
pub struct Assignment {
    inner: Shared<Inner>,
    threads: usize,
}

struct Inner {
    items: Arc<Items>,
    state: State,
    /// Slot to name; None for free slots.
    names: Vec<Option<Py<PyString>>>,
}

#[pymethods]
impl Assignment {
    /// The workers in name order. `indices` contains positions in this list.
    #[getter]
    fn workers<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        guarded(|| {
            let workers = self.inner.borrow(py)?.workers(py);
            PyList::new(py, workers)
        })
    }

    /// The weight of each worker, in the order of `workers`.
    #[getter]
    fn weights<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        guarded(|| {
            let weights = self.inner.borrow(py)?.state.rendezvous().weights().to_vec();
            PyList::new(py, weights)
        })
    }

    /// The current items. Items that are added later are at the end.
    #[getter]
    fn items(&self, py: Python<'_>) -> PyResult<ItemSet> {
        guarded(|| Ok(ItemSet { items: Arc::clone(&self.inner.borrow(py)?.items) }))
    }

    /// The owner of each item, as a position in `workers`, in the order of `items`. A snapshot, which later changes do
    /// not affect.
    ///
    /// It is a read-only memoryview of native u32 numbers, format "I". `numpy.frombuffer(assignment, numpy.uint32)`
    /// reads the same numbers. Neither copies them. Takes O(1) if no worker has joined or left since the last call,
    /// else O(items).
    #[getter]
    fn indices<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        guarded(|| {
            let places = self.inner.borrow(py)?.state.places().raised()?;
            memory(py, places, None)
        })
    }

    /// The bytes of `indices`, read-only and without a copy, so that `numpy.frombuffer` accepts an assignment.
    #[allow(unsafe_code)]
    unsafe fn __getbuffer__(&self, py: Python<'_>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        guarded(|| {
            let places = self.inner.borrow(py)?.state.places().raised()?;
            let numbers = Bound::new(py, Numbers::new(places))?;
            // SAFETY: `view` is a buffer to be filled in; the other exporter does that, and keeps itself alive for it.
            let filled = unsafe { ffi::PyObject_GetBuffer(numbers.as_ptr(), view, flags) };
            if filled == 0 {
                Ok(())
            } else {
                Err(PyErr::fetch(py))
            }
        })
    }

    /// Return a dict from each item to its worker, in the order of `items`. O(items), about 0.1 s per million.
    fn to_dict<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        guarded(|| {
            let (copy, result) = (self.copy(py)?, PyDict::new(py));
            // A dict that had a key that is no str stores the hashes. It then grows without a look at each string, which
            // is most of the time for a million of them.
            result.set_item(0, 0)?;
            for (at, (item, &place)) in copy.items.names.iter().zip(copy.places.iter()).enumerate() {
                result.set_item(item, &copy.workers[place as usize])?;
                check_signals(py, at)?;
            }
            result.del_item(0)?;
            Ok(result)
        })
    }

    /// Return a dict from each worker to its items: workers in name order, items in the order of `items`. O(items).
    fn by_worker<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        guarded(|| {
            let (copy, result) = (self.copy(py)?, PyDict::new(py));
            let mut shares: Vec<Vec<&Py<PyString>>> = vec![Vec::new(); copy.workers.len()];
            for (at, (item, &place)) in copy.items.names.iter().zip(copy.places.iter()).enumerate() {
                shares[place as usize].push(item);
                check_signals(py, at)?;
            }
            for (worker, share) in copy.workers.iter().zip(shares) {
                result.set_item(worker, PyList::new(py, share.into_iter().map(|item| item.bind(py)))?)?;
            }
            Ok(result)
        })
    }

    /// Add a worker, and move to it the items for which it scores highest. O(items + workers).
    ///
    /// Raises:
    ///     ValueError: The worker is already a member, or the weight is not finite and greater than 0.
    #[pyo3(signature = (worker, weight = 1.0))]
    fn join(
        &self,
        py: Python<'_>,
        worker: &Bound<'_, PyAny>,
        #[pyo3(from_py_with = number)] weight: f64,
    ) -> PyResult<Delta> {
        guarded(|| {
            let worker = string("worker", worker.clone())?;
            let name = utf8("worker", &worker)?;
            let mut inner = self.inner.borrow(py)?;
            let moves = inner.change(py, |state, keys, cancel| state.join(name, weight, keys, cancel))?;
            let slot = inner.state.slot(name).expect("the worker has joined") as usize;
            let slots = inner.state.slot_count();
            inner.names.resize_with(slots, || None);
            inner.names[slot] = Some(worker.clone().unbind());
            Ok(inner.delta(py, moves))
        })
    }

    /// Remove a worker, and move each of its items to the next best worker. O(items + its items * workers).
    ///
    /// Raises:
    ///     ValueError: The worker is not a member, or it is the last one.
    fn leave(&self, py: Python<'_>, worker: &Bound<'_, PyAny>) -> PyResult<Delta> {
        guarded(|| {
            let worker = string("worker", worker.clone())?;
            let name = utf8("worker", &worker)?;
            let mut inner = self.inner.borrow(py)?;
            let slot = inner.state.slot(name);
            let moves = inner.change(py, |state, keys, cancel| state.leave(name, keys, cancel))?;
            let delta = inner.delta(py, moves);
            let name = mem::take(&mut inner.names[slot.expect("the worker has left") as usize]);
            drop(inner);
            drop(name); // runs code of a subclass of str, which may use this very assignment
            Ok(delta)
        })
    }

    /// Change the weight of a worker. If it rises, items move only to this worker. If it falls, items move only away
    /// from it.
    ///
    /// O(items + workers) for a greater weight, O(items + its items * workers) for a smaller one.
    ///
    /// Raises:
    ///     ValueError: The worker is not a member, or the weight is not finite and greater than 0.
    fn reweigh(
        &self,
        py: Python<'_>,
        worker: &Bound<'_, PyAny>,
        #[pyo3(from_py_with = number)] weight: f64,
    ) -> PyResult<Delta> {
        guarded(|| {
            let worker = string("worker", worker.clone())?;
            let name = utf8("worker", &worker)?;
            let mut inner = self.inner.borrow(py)?;
            let moves = inner.change(py, |state, keys, cancel| state.reweigh(name, weight, keys, cancel))?;
            Ok(inner.delta(py, moves))
        })
    }

    /// Append items and assign them. O(items + new items * workers).
    ///
    /// Raises:
    ///     ValueError: An item is given twice or already exists, or there would be more than 2**32 - 2 items.
    fn add_items(&self, py: Python<'_>, items: &Bound<'_, PyAny>) -> PyResult<Delta> {
        guarded(|| {
            let prefix = self.inner.borrow(py)?.items.prefix.clone();
            // Reading runs Python code, which may use this very assignment: so not while it is locked.
            let new = Items::read(items, &prefix, MOST_ITEMS)?;
            let mut inner = self.inner.borrow(py)?;
            inner.items.check_absent(&new, py)?;
            let (mode, state) = (inner.state.rendezvous().mode(), &mut inner.state);
            let moves = new.with_keys(py, mode, |keys, cancel| state.add(keys, self.threads, cancel))?;
            let items = new.names.iter().map(|name| name.clone_ref(py)).collect();
            inner.own_items(py).extend(new);
            Ok(Delta { items, from: moves.from, to: moves.to, names: inner.copied_names(py) })
        })
    }

    /// Remove items. The other items keep their order and their owners. O(items).
    ///
    /// Raises:
    ///     ValueError: An item is given twice or does not exist.
    fn remove_items(&self, py: Python<'_>, items: &Bound<'_, PyAny>) -> PyResult<Delta> {
        guarded(|| {
            let prefix = self.inner.borrow(py)?.items.prefix.clone();
            let gone = Items::read(items, &prefix, MOST_ITEMS)?;
            let mut inner = self.inner.borrow(py)?;
            let positions = inner.items.positions(&gone, py)?;
            let names = inner.own_items(py).remove(&positions, py);
            let moves = inner.state.remove(&positions);
            Ok(Delta { items: names, from: moves.from, to: moves.to, names: inner.copied_names(py) })
        })
    }

    fn __len__(&self, py: Python<'_>) -> PyResult<usize> {
        guarded(|| Ok(self.inner.borrow(py)?.items.names.len()))
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        guarded(|| {
            let inner = self.inner.borrow(py)?;
            let workers = inner.state.rendezvous().names().len();
            Ok(format!("<Assignment of {} items to {workers} workers>", inner.items.names.len()))
        })
    }
}

impl Assignment {
    pub fn new(
        py: Python<'_>,
        rendezvous: &Rendezvous<String>,
        names: &[Py<PyString>],
        items: &Arc<Items>,
        threads: usize,
    ) -> PyResult<Self> {
        let (rendezvous, mode) = (rendezvous.clone(), rendezvous.mode());
        let assign = |keys: Keys<'_>, cancel: &Cancel<'_>| State::new(rendezvous, keys, threads, cancel);
        let state = items.with_keys(py, mode, assign)?;
        let names = names.iter().map(|name| Some(name.clone_ref(py))).collect();
        Ok(Self { inner: Shared::new(Inner { items: Arc::clone(items), state, names }), threads })
    }

    fn copy(&self, py: Python<'_>) -> PyResult<Copy> {
        let inner: Borrowed<'_, Inner> = self.inner.borrow(py)?;
        Ok(Copy { items: Arc::clone(&inner.items), places: inner.state.places().raised()?, workers: inner.workers(py) })
    }
}

/// What a reader works on after it gave back the assignment: making Python's objects can run any Python code, of the
/// garbage collector's finalizers or of a subclass of str, which may use this very assignment.
struct Copy {
    items: Arc<Items>,
    /// Item to place in `workers`.
    places: Arc<Vec<u32>>,
    workers: Vec<Py<PyString>>,
}

impl Inner {
    fn workers(&self, py: Python<'_>) -> Vec<Py<PyString>> {
        let name = |&slot: &u32| self.names[slot as usize].as_ref().expect("an owner has a name").clone_ref(py);
        self.state.slots().iter().map(name).collect()
    }

    fn change(
        &mut self,
        py: Python<'_>,
        work: impl FnOnce(&mut State, Keys<'_>, &Cancel<'_>) -> Result<incremental::Delta, Error> + Send,
    ) -> PyResult<incremental::Delta> {
        let (mode, state) = (self.state.rendezvous().mode(), &mut self.state);
        self.items.with_keys(py, mode, |keys, cancel| work(state, keys, cancel))
    }

    /// Returns the items for a change. Copies them first if an `ItemSet` shares them.
    fn own_items(&mut self, py: Python<'_>) -> &mut Items {
        if Arc::get_mut(&mut self.items).is_none() {
            self.items = Arc::new(self.items.copy(py));
        }
        Arc::get_mut(&mut self.items).expect("nobody shares the copy")
    }

    fn copied_names(&self, py: Python<'_>) -> Vec<Option<Py<PyString>>> {
        self.names.iter().map(|name| name.as_ref().map(|name| name.clone_ref(py))).collect()
    }

    fn delta(&self, py: Python<'_>, moves: incremental::Delta) -> Delta {
        let items = moves.items.iter().map(|&at| self.items.names[at as usize].clone_ref(py)).collect();
        Delta { items, from: moves.from, to: moves.to, names: self.copied_names(py) }
    }
}
