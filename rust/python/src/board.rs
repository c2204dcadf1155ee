//! The Python classes `Board` and `Moves`.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyString, PyTuple};

use super::calls::{guarded, number, repr_or_question_mark};
use super::errors::Raised;
use super::interrupts::{check_signals, interruptible, Shared};
use super::text::{string, strings, utf8};
use latchwork_core::balance::names::Names;
use latchwork_core::balance::planner;
use latchwork_core::balance::strategy::Strategy;
use latchwork_core::cancel::Cancel;
use latchwork_core::error::Error;
use latchwork_core::input::NO_OWNER;

/// Jobs, workers and the owners of items, kept in Rust from one placement to the next.
///
/// Changes are recorded and cheap. `place` computes one new placement for all of them: the one that the strategy makes
/// of the whole problem with the present owners as the previous ones. A worker that leaves and joins again before the
/// next placement keeps its items. Thread-safe: one call works at a time, without the GIL.
#[pyclass(frozen, module = "latchwork._core")]
pub struct Board {
    board: Shared<planner::Board>,
    strategy: String,
}

#[pymethods]
impl Board {
    #[new]
    #[pyo3(signature = (strategy = "balanced"))]
    fn new(strategy: &str) -> PyResult<Self> {
        guarded(|| {
            let board = planner::Board::new(Strategy::parse(strategy).raised()?).raised()?;
            Ok(Self { board: Shared::new(board), strategy: strategy.to_owned() })
        })
    }

    /// The name of the strategy.
    #[getter]
    fn strategy(&self) -> &str {
        guarded(|| &self.strategy)
    }

    /// The IDs of the jobs, in name order.
    #[getter]
    fn jobs<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        guarded(|| {
            let jobs: Vec<String> = self.board.borrow(py)?.jobs().map(str::to_owned).collect();
            PyList::new(py, jobs)
        })
    }

    /// The workers, in name order.
    #[getter]
    fn workers<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        guarded(|| {
            let workers: Vec<String> = self.board.borrow(py)?.workers().map(str::to_owned).collect();
            PyList::new(py, workers)
        })
    }

    /// Add a job.
    ///
    /// Args:
    ///     job: ID of a new job.
    ///     items: Its items, unique, in any order.
    ///     previous: The worker that owns each item now. Items and workers that do not exist are ignored, so add the
    ///         workers first.
    /// Raises:
    ///     ValueError: The job already exists, or an item is given twice.
    #[pyo3(signature = (job, items, previous = None))]
    fn add_job(
        &self,
        py: Python<'_>,
        job: &Bound<'_, PyAny>,
        items: &Bound<'_, PyAny>,
        previous: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<()> {
        guarded(|| {
            let job = string("job id", job.clone())?;
            let job = utf8("job id", &job)?;
            let items = strings("work item", items)?;
            let owners = previous.map_or(Ok(Vec::new()), pairs)?;
            let owners: Vec<(&str, &str)> = owners
                .iter()
                .map(|(item, worker)| Ok((utf8("work item", item)?, utf8("previous owner", worker)?)))
                .collect::<PyResult<_>>()?;
            let texts = texts(&items)?;
            self.change(py, |board, _| {
                board.add_job(job, Names::new(&format!("job '{job}': work item"), texts)?)?;
                owners.into_iter().for_each(|(item, worker)| drop(board.set_owner(job, item, worker)));
                Ok(())
            })
        })
    }

    /// Remove a job and its items. Raises ValueError if the job does not exist.
    fn remove_job(&self, py: Python<'_>, job: &str) -> PyResult<()> {
        guarded(|| self.board.borrow(py)?.remove_job(job).raised())
    }

    /// Add items to a job. They have no owner until the next placement. Raises ValueError if an item already exists.
    fn add_items(&self, py: Python<'_>, job: &str, items: &Bound<'_, PyAny>) -> PyResult<()> {
        guarded(|| {
            let items = strings("work item", items)?;
            let texts = texts(&items)?;
            self.change(py, |board, _| board.add_items(job, &Names::new(&format!("job '{job}': work item"), texts)?))
        })
    }

    /// Remove items from a job. Raises ValueError if an item does not exist.
    fn remove_items(&self, py: Python<'_>, job: &str, items: &Bound<'_, PyAny>) -> PyResult<()> {
        guarded(|| {
            let items = strings("work item", items)?;
            let texts = texts(&items)?;
            self.change(py, |board, _| board.remove_items(job, &Names::new(&format!("job '{job}': work item"), texts)?))
        })
    }

    /// Add a worker. O(jobs).
    ///
    /// Args:
    ///     worker: ID of a new worker.
    ///     weight: Finite and greater than 0.
    ///     jobs: IDs of the jobs that it can run. They may be added later. None means all jobs.
    /// Raises:
    ///     ValueError: The worker already exists, or the weight is bad.
    #[pyo3(signature = (worker, weight = 1.0, jobs = None))]
    fn join(
        &self,
        py: Python<'_>,
        worker: &Bound<'_, PyAny>,
        #[pyo3(from_py_with = number)] weight: f64,
        jobs: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        guarded(|| {
            let worker = string("worker", worker.clone())?;
            let worker = utf8("worker", &worker)?;
            let jobs = jobs.map(|jobs| strings("job id", jobs)).transpose()?;
            let owned = |job: &Bound<'_, PyString>| utf8("job id", job).map(str::to_owned);
            let runs = jobs.map(|jobs| jobs.iter().map(owned).collect::<PyResult<_>>()).transpose()?;
            self.board.borrow(py)?.join(worker, weight, runs).raised()
        })
    }

    /// Remove a worker. The next placement assigns its items to other workers. Raises ValueError if it does not exist.
    fn leave(&self, py: Python<'_>, worker: &str) -> PyResult<()> {
        guarded(|| self.board.borrow(py)?.leave(worker).raised())
    }

    /// Change the weight of a worker. Raises ValueError if the worker does not exist or the weight is bad.
    fn reweigh(&self, py: Python<'_>, worker: &str, #[pyo3(from_py_with = number)] weight: f64) -> PyResult<()> {
        guarded(|| self.board.borrow(py)?.reweigh(worker, weight).raised())
    }

    /// Assign all items again.
    ///
    /// Args:
    ///     max_moves: Maximum number of items to take from a worker that can run them, at least 0. None means no limit.
    ///         An item without such an owner is always assigned. The best moves are made first, see
    ///         docs/reference/assignment.md. The next call makes more.
    /// Returns:
    ///     The moves.
    /// Raises:
    ///     ValueError: max_moves is negative.
    #[pyo3(signature = (max_moves = None))]
    fn place(&self, py: Python<'_>, #[pyo3(from_py_with = number)] max_moves: Option<isize>) -> PyResult<Moves> {
        guarded(|| {
            let limit = max_moves.map(usize::try_from).transpose().map_err(|_| {
                PyValueError::new_err(format!("max_moves is {}; it must be at least 0", max_moves.unwrap_or_default()))
            })?;
            Ok(Moves { placed: self.change(py, |board, cancel| board.place(limit, cancel))? })
        })
    }

    /// Return the owner of an item after the last placement, or None if it has none. O(log items).
    ///
    /// Raises:
    ///     ValueError: The job or the item does not exist.
    fn owner<'py>(&self, py: Python<'py>, job: &str, item: &str) -> PyResult<Option<Bound<'py, PyString>>> {
        guarded(|| {
            let owner = self.board.borrow(py)?.owner(job, item).raised()?.map(str::to_owned);
            Ok(owner.map(|owner| PyString::new(py, &owner)))
        })
    }

    /// Return a dict from item to worker, in name order, without items that have no owner. Raises ValueError if the job
    /// does not exist.
    fn owners<'py>(&self, py: Python<'py>, job: &str) -> PyResult<Bound<'py, PyDict>> {
        guarded(|| {
            let (view, result) = (self.board.borrow(py)?.view(job).raised()?, PyDict::new(py));
            let workers: Vec<_> = view.workers.iter().map(|name| PyString::new(py, name)).collect();
            for (at, (item, &owner)) in view.names.iter().zip(&view.owners).enumerate() {
                if owner != NO_OWNER {
                    result.set_item(item, &workers[owner as usize])?;
                }
                check_signals(py, at)?;
            }
            Ok(result)
        })
    }

    /// Return a dict from each worker that owns items to its items, both in name order. Raises ValueError if the job
    /// does not exist.
    fn by_worker<'py>(&self, py: Python<'py>, job: &str) -> PyResult<Bound<'py, PyDict>> {
        guarded(|| {
            let view = self.board.borrow(py)?.view(job).raised()?;
            let shares: Vec<_> = view.workers.iter().map(|name| (name, PyList::empty(py))).collect();
            for (at, (item, &owner)) in view.names.iter().zip(&view.owners).enumerate() {
                if owner != NO_OWNER {
                    shares[owner as usize].1.append(item)?;
                }
                check_signals(py, at)?;
            }
            let (mut filled, result) = (shares, PyDict::new(py));
            filled.retain(|(_, items)| !items.is_empty());
            filled.sort_unstable_by_key(|(name, _)| *name);
            filled.into_iter().try_for_each(|(name, items)| result.set_item(name, items))?;
            Ok(result)
        })
    }

    /// Return a dict from each worker that owns items to its items, both in name order. The items are the given str
    /// objects.
    ///
    /// Args:
    ///     job: ID of the job.
    ///     items: All items of the job, in name order.
    /// Raises:
    ///     ValueError: The job does not exist, or these are not its items in name order.
    fn shares<'py>(&self, py: Python<'py>, job: &str, items: &Bound<'py, PyTuple>) -> PyResult<Bound<'py, PyDict>> {
        guarded(|| {
            let view = self.board.borrow(py)?.view(job).raised()?;
            if items.len() != view.names.len() {
                let found = (items.len(), view.names.len());
                return Err(PyValueError::new_err(format!("{} items are given, job '{job}' has {}", found.0, found.1)));
            }
            let mut filled: Vec<_> = view.workers.iter().map(|name| (name, Vec::new())).collect();
            for ((item, name), &owner) in items.iter_borrowed().zip(view.names.iter()).zip(&view.owners) {
                if item.cast::<PyString>()?.to_str()? != name {
                    let message = format!("{} stands where job '{job}' has {name:?}", repr_or_question_mark(&item));
                    return Err(PyValueError::new_err(message));
                }
                if owner != NO_OWNER {
                    filled[owner as usize].1.push(item.to_owned());
                }
            }
            filled.retain(|(_, items)| !items.is_empty());
            filled.sort_unstable_by_key(|(name, _)| *name);
            let result = PyDict::new(py);
            filled.into_iter().try_for_each(|(name, items)| result.set_item(name, PyTuple::new(py, items)?))?;
            Ok(result)
        })
    }

    /// Return the items without an owner, in name order. Raises ValueError if the job does not exist.
    fn unplaced<'py>(&self, py: Python<'py>, job: &str) -> PyResult<Bound<'py, PyList>> {
        guarded(|| {
            let view = self.board.borrow(py)?.view(job).raised()?;
            let none = view.names.iter().zip(&view.owners).filter(|(_, owner)| **owner == NO_OWNER);
            PyList::new(py, none.map(|(item, _)| item).collect::<Vec<_>>())
        })
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        guarded(|| {
            let board = self.board.borrow(py)?;
            let (jobs, workers) = (board.jobs().count(), board.workers().count());
            Ok(format!("<Board {jobs} jobs, {workers} workers, strategy {}>", self.strategy))
        })
    }
}

impl Board {
    /// Runs a change of the board that may take long. It can be interrupted.
    fn change<R: Send>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&mut planner::Board, &Cancel<'_>) -> Result<R, Error> + Send,
    ) -> PyResult<R> {
        let mut board = self.board.borrow(py)?;
        interruptible(py, |cancel| work(&mut board, cancel))
    }
}

fn texts<'a>(items: &'a [Bound<'_, PyString>]) -> PyResult<Vec<&'a str>> {
    items.iter().map(|item| utf8("work item", item)).collect()
}

type Pair<'py> = (Bound<'py, PyString>, Bound<'py, PyString>);

fn pairs<'py>(previous: &Bound<'py, PyDict>) -> PyResult<Vec<Pair<'py>>> {
    let pair = |(item, worker)| Ok((string("work item", item)?, string("previous owner", worker)?));
    previous.iter().map(pair).collect()
}

/// What one placement changed: rows (job, item, source, target), sorted by job, then item.
///
/// `source` is None for an item that had no owner, `target` is None for one that no worker can run any more. Rows are
/// built one at a time.
#[pyclass(frozen, module = "latchwork._core")]
pub struct Moves {
    placed: planner::Moves,
}

#[pymethods]
impl Moves {
    /// The number of items that should move as well, but did not because of `max_moves`.
    #[getter]
    fn deferred(&self) -> usize {
        guarded(|| self.placed.deferred)
    }

    fn __len__(&self) -> usize {
        guarded(|| self.placed.jobs.iter().map(|job| job.moves.len()).sum())
    }

    /// The IDs of the jobs in which an item moved, in name order.
    #[getter]
    fn jobs<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        guarded(|| PyList::new(py, self.placed.jobs.iter().map(|changes| &changes.job)))
    }

    /// Return the moves of one job. O(workers), and O(1) for each move.
    fn of(slf: Bound<'_, Self>, job: &str) -> MoveRows {
        guarded(|| {
            let jobs = &slf.get().placed.jobs;
            let from = jobs.partition_point(|changes| changes.job.as_str() < job);
            let till = from + usize::from(jobs.get(from).is_some_and(|changes| changes.job == job));
            MoveRows::new(slf, from, till)
        })
    }

    fn __iter__(slf: Bound<'_, Self>) -> MoveRows {
        guarded(|| {
            let till = slf.get().placed.jobs.len();
            MoveRows::new(slf, 0, till)
        })
    }

    fn __repr__(&self) -> String {
        guarded(|| format!("<Moves {} moved, {} deferred>", self.__len__(), self.placed.deferred))
    }
}

/// The rows of some jobs, built one at a time: there may be a million.
#[pyclass(module = "latchwork._core")]
pub struct MoveRows {
    moves: Py<Moves>,
    workers: Vec<Py<PyString>>,
    /// The job at hand, and the end of those to go through, by place in the outcome.
    job: usize,
    till: usize,
    /// The next move of the job at hand.
    next: usize,
    name: Option<Py<PyString>>,
}

impl MoveRows {
    fn new(moves: Bound<'_, Moves>, job: usize, till: usize) -> Self {
        let py = moves.py();
        let workers = moves.get().placed.workers.iter().map(|name| PyString::new(py, name).unbind()).collect();
        Self { moves: moves.unbind(), workers, job, till, next: 0, name: None }
    }
}

#[pymethods]
impl MoveRows {
    fn __iter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        guarded(|| slf)
    }

    fn __next__<'py>(&mut self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyTuple>>> {
        guarded(|| {
            while self.job < self.till {
                let changes = &self.moves.get().placed.jobs[self.job];
                let Some(change) = changes.moves.get(self.next) else {
                    (self.job, self.next, self.name) = (self.job + 1, 0, None);
                    continue;
                };
                self.next += 1;
                let job = self.name.get_or_insert_with(|| PyString::new(py, &changes.job).unbind()).bind(py);
                let item = changes.names.get(change.item as usize);
                let worker = |number: u32| if number == NO_OWNER { None } else { self.workers.get(number as usize) };
                return (job, item, worker(change.from), worker(change.to)).into_pyobject(py).map(Some);
            }
            Ok(None)
        })
    }
}
