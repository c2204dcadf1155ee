//! `Assignment`.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyString};

use super::delta::{memory, Delta};
use super::items::{ItemSet, Items};
use super::text::{string, utf8};
use crate::assignment::{Assignment as State, Moves};
use crate::input::InputError;
use crate::items::MOST_ITEMS;
use crate::rendezvous::{Keys, Rendezvous};

/// The owners of items by rendezvous hashing, kept in Rust while workers and items come and go.
///
/// Made by `RendezvousHasher.assign` from an `ItemSet`; neither is ever changed by it. After any changes the owners are
/// those of a fresh assignment, and each change moves the fewest items that this allows. The job manager keeps one for
/// each job that `Rendezvous` places. Safe to share between threads: calls take turns. A change that raises changes
/// nothing. Beyond the item set it takes 8 bytes per item.
#[pyclass(frozen, module = "latchwork._core")]
pub struct Assignment {
    inner: Mutex<Inner>,
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
    /// The workers in name order: what `indices` count.
    #[getter]
    fn workers<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let inner = self.lock(py);
        PyList::new(py, inner.in_order().map(|name| name.bind(py)))
    }

    /// The weights of `workers`.
    #[getter]
    fn weights(&self, py: Python<'_>) -> Vec<f64> {
        self.lock(py).state.rendezvous().weights().to_vec()
    }

    /// The items, as they are now. Items that are added stand behind the others.
    #[getter]
    fn items(&self, py: Python<'_>) -> ItemSet {
        ItemSet { items: Arc::clone(&self.lock(py).items) }
    }

    /// The position in `workers` of each item's owner: a snapshot, in the order of `items`.
    ///
    /// It is a read-only memoryview of native u32, format "I", over a `bytes` object, so that
    /// `numpy.frombuffer(assignment.indices, numpy.uint32)` copies nothing. Making it takes O(items), some 0.3 ms per
    /// million; keep it rather than asking again. Later changes leave it as it is.
    #[getter]
    fn indices<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let inner = self.lock(py);
        if inner.state.is_in_order() {
            return memory(py, inner.state.owners().iter().copied(), None);
        }
        memory(py, inner.state.places(), None)
    }

    /// Return item to worker, in the order of `items`. O(items); some 0.15 s per million.
    fn to_dict<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let (copy, result) = (self.lock(py).copy(py), PyDict::new(py));
        for (item, &place) in copy.items.names.iter().zip(&copy.places) {
            result.set_item(item, &copy.workers[place as usize])?;
        }
        Ok(result)
    }

    /// Return worker to its items: all workers in name order, items in the order of `items`. O(items).
    fn by_worker<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let (copy, result) = (self.lock(py).copy(py), PyDict::new(py));
        let mut shares: Vec<Vec<&Py<PyString>>> = vec![Vec::new(); copy.workers.len()];
        for (item, &place) in copy.items.names.iter().zip(&copy.places) {
            shares[place as usize].push(item);
        }
        for (worker, share) in copy.workers.iter().zip(shares) {
            result.set_item(worker, PyList::new(py, share.into_iter().map(|item| item.bind(py)))?)?;
        }
        Ok(result)
    }

    /// Add a worker, which takes the items that it wins. O(items + workers).
    ///
    /// Raises:
    ///     ValueError: the worker is a member already, or the weight is not finite and greater than 0.
    #[pyo3(signature = (worker, weight = 1.0))]
    fn join(&self, py: Python<'_>, worker: &Bound<'_, PyAny>, weight: f64) -> PyResult<Delta> {
        let worker = string("worker", worker.clone())?;
        let name = utf8("worker", &worker)?;
        let mut inner = self.lock(py);
        let moves = inner.change(py, |state, keys| state.join(name, weight, keys))?;
        let slot = inner.state.slot(name).expect("the worker has joined") as usize;
        let slots = inner.state.slot_count();
        inner.names.resize_with(slots, || None);
        inner.names[slot] = Some(worker.clone().unbind());
        Ok(inner.delta(py, moves))
    }

    /// Remove a worker; each of its items goes to the next best. O(items + its items * workers).
    ///
    /// Raises:
    ///     ValueError: no such worker, or it is the last.
    fn leave(&self, py: Python<'_>, worker: &Bound<'_, PyAny>) -> PyResult<Delta> {
        let worker = string("worker", worker.clone())?;
        let name = utf8("worker", &worker)?;
        let mut inner = self.lock(py);
        let slot = inner.state.slot(name);
        let moves = inner.change(py, |state, keys| state.leave(name, keys))?;
        let delta = inner.delta(py, moves);
        inner.names[slot.expect("the worker has left") as usize] = None;
        Ok(delta)
    }

    /// Change a worker's weight. If it rises, items move only to it; if it falls, only from it.
    ///
    /// O(items + workers) for more, O(items + its items * workers) for less.
    ///
    /// Raises:
    ///     ValueError: no such worker, or the weight is not finite and greater than 0.
    fn reweigh(&self, py: Python<'_>, worker: &Bound<'_, PyAny>, weight: f64) -> PyResult<Delta> {
        let worker = string("worker", worker.clone())?;
        let name = utf8("worker", &worker)?;
        let mut inner = self.lock(py);
        let moves = inner.change(py, |state, keys| state.reweigh(name, weight, keys))?;
        Ok(inner.delta(py, moves))
    }

    /// Add items behind the others and assign them. O(items + new items * workers).
    ///
    /// Raises:
    ///     ValueError: an item is given twice or there already, or there would be more than 2**32 - 2.
    fn add_items(&self, py: Python<'_>, items: &Bound<'_, PyAny>) -> PyResult<Delta> {
        let prefix = self.lock(py).items.prefix.clone();
        // Reading runs Python code, which may use this very assignment: so not while it is locked.
        let new = Items::read(items, &prefix, MOST_ITEMS)?;
        let mut inner = self.lock(py);
        inner.items.check_absent(&new, py)?;
        let (mode, state) = (inner.state.rendezvous().mode(), &mut inner.state);
        let moves = new.with_keys(py, mode, |keys| state.add(keys, self.threads));
        let items = new.names.iter().map(|name| name.clone_ref(py)).collect();
        inner.own_items(py).extend(new);
        Ok(Delta { items, from: moves.from, to: moves.to, names: inner.copied_names(py) })
    }

    /// Remove items; the others keep their order and their owners. O(items).
    ///
    /// Raises:
    ///     ValueError: an item is given twice, or is not there.
    fn remove_items(&self, py: Python<'_>, items: &Bound<'_, PyAny>) -> PyResult<Delta> {
        let prefix = self.lock(py).items.prefix.clone();
        let gone = Items::read(items, &prefix, MOST_ITEMS)?;
        let mut inner = self.lock(py);
        let positions = inner.items.positions(&gone, py)?;
        let names = inner.own_items(py).remove(&positions, py);
        let moves = inner.state.remove(&positions);
        Ok(Delta { items: names, from: moves.from, to: moves.to, names: inner.copied_names(py) })
    }

    fn __len__(&self, py: Python<'_>) -> usize {
        self.lock(py).items.names.len()
    }

    fn __repr__(&self, py: Python<'_>) -> String {
        let inner = self.lock(py);
        let workers = inner.state.rendezvous().names().len();
        format!("<Assignment of {} items to {workers} workers>", inner.items.names.len())
    }
}

impl Assignment {
    pub fn new(
        py: Python<'_>,
        rendezvous: &Rendezvous<String>,
        names: &[Py<PyString>],
        items: &Arc<Items>,
        threads: usize,
    ) -> Self {
        let rendezvous = rendezvous.clone();
        let state = items.with_keys(py, rendezvous.mode(), |keys| State::new(rendezvous, keys, threads));
        let names = names.iter().map(|name| Some(name.clone_ref(py))).collect();
        Self { inner: Mutex::new(Inner { items: Arc::clone(items), state, names }), threads }
    }

    /// Waits for another thread's change without the GIL, which that thread may need to finish.
    fn lock(&self, py: Python<'_>) -> MutexGuard<'_, Inner> {
        if let Ok(guard) = self.inner.try_lock() {
            return guard;
        }
        py.detach(|| drop(self.inner.lock().unwrap_or_else(PoisonError::into_inner)));
        self.lock(py)
    }
}

/// What a reader works on after the lock is gone: building Python's objects can run the code of a subclass of str.
struct Copy {
    items: Arc<Items>,
    /// Item to place in `workers`.
    places: Vec<u32>,
    workers: Vec<Py<PyString>>,
}

impl Inner {
    fn copy(&self, py: Python<'_>) -> Copy {
        let workers = self.in_order().map(|name| name.clone_ref(py)).collect();
        Copy { items: Arc::clone(&self.items), places: self.state.places().collect(), workers }
    }

    fn in_order(&self) -> impl ExactSizeIterator<Item = &Py<PyString>> {
        self.state.slots().iter().map(|&slot| self.name(slot))
    }

    fn name(&self, slot: u32) -> &Py<PyString> {
        self.names[slot as usize].as_ref().expect("an owner has a name")
    }

    fn change(
        &mut self,
        py: Python<'_>,
        work: impl FnOnce(&mut State, Keys<'_>) -> Result<Moves, InputError> + Send,
    ) -> Result<Moves, InputError> {
        let (mode, state) = (self.state.rendezvous().mode(), &mut self.state);
        self.items.with_keys(py, mode, |keys| work(state, keys))
    }

    /// The items, to be changed: a copy if an `ItemSet` shares them.
    fn own_items(&mut self, py: Python<'_>) -> &mut Items {
        if Arc::get_mut(&mut self.items).is_none() {
            self.items = Arc::new(self.items.copy(py));
        }
        Arc::get_mut(&mut self.items).expect("nobody shares the copy")
    }

    fn copied_names(&self, py: Python<'_>) -> Vec<Option<Py<PyString>>> {
        self.names.iter().map(|name| name.as_ref().map(|name| name.clone_ref(py))).collect()
    }

    fn delta(&self, py: Python<'_>, moves: Moves) -> Delta {
        let items = moves.items.iter().map(|&at| self.items.names[at as usize].clone_ref(py)).collect();
        Delta { items, from: moves.from, to: moves.to, names: self.copied_names(py) }
    }
}
