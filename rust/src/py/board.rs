//! `Board` and `Moves`.

use std::sync::{Mutex, PoisonError};

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyString, PyTuple};

use super::text::{string, strings, utf8};
use crate::board;
use crate::input::NOBODY;
use crate::names::Names;
use crate::strategy::Strategy;

#[pyclass(frozen, module = "latchwork._core")]
pub struct Board {
    board: Mutex<board::Board>,
    strategy: String,
}

#[pymethods]
impl Board {
    #[new]
    #[pyo3(signature = (strategy = "balanced"))]
    fn new(strategy: &str) -> PyResult<Self> {
        let board = board::Board::new(Strategy::parse(strategy)?)?;
        Ok(Self { board: Mutex::new(board), strategy: strategy.to_owned() })
    }

    #[getter]
    fn strategy(&self) -> &str {
        &self.strategy
    }

    #[getter]
    fn jobs(&self, py: Python<'_>) -> Vec<String> {
        self.with(py, |board| board.jobs().map(str::to_owned).collect())
    }

    #[getter]
    fn workers(&self, py: Python<'_>) -> Vec<String> {
        self.with(py, |board| board.workers().map(str::to_owned).collect())
    }

    #[pyo3(signature = (job, items, previous = None))]
    fn add_job(
        &self,
        py: Python<'_>,
        job: &Bound<'_, PyAny>,
        items: &Bound<'_, PyAny>,
        previous: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<()> {
        let job = string("job id", job.clone())?;
        let job = utf8("job id", &job)?;
        let items = strings("work item", items)?;
        let owners = previous.map_or(Ok(Vec::new()), pairs)?;
        let owners: Vec<(&str, &str)> = owners
            .iter()
            .map(|(item, worker)| Ok((utf8("work item", item)?, utf8("previous owner", worker)?)))
            .collect::<PyResult<_>>()?;
        let texts = texts(&items)?;
        self.with(py, |board| {
            board.add_job(job, Names::new(&format!("job '{job}': work item"), texts)?)?;
            owners.into_iter().for_each(|(item, worker)| drop(board.hold(job, item, worker)));
            Ok(())
        })
    }

    fn remove_job(&self, py: Python<'_>, job: &str) -> PyResult<()> {
        self.with(py, |board| Ok(board.remove_job(job)?))
    }

    fn add_items(&self, py: Python<'_>, job: &str, items: &Bound<'_, PyAny>) -> PyResult<()> {
        let items = strings("work item", items)?;
        let texts = texts(&items)?;
        self.with(py, |board| Ok(board.add_items(job, &Names::new(&format!("job '{job}': work item"), texts)?)?))
    }

    fn remove_items(&self, py: Python<'_>, job: &str, items: &Bound<'_, PyAny>) -> PyResult<()> {
        let items = strings("work item", items)?;
        let texts = texts(&items)?;
        self.with(py, |board| Ok(board.remove_items(job, &Names::new(&format!("job '{job}': work item"), texts)?)?))
    }

    #[pyo3(signature = (worker, weight = 1.0, jobs = None))]
    fn join(
        &self,
        py: Python<'_>,
        worker: &Bound<'_, PyAny>,
        weight: f64,
        jobs: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let worker = string("worker", worker.clone())?;
        let worker = utf8("worker", &worker)?;
        let jobs = jobs.map(|jobs| strings("job id", jobs)).transpose()?;
        let owned = |job: &Bound<'_, PyString>| utf8("job id", job).map(str::to_owned);
        let runs = jobs.map(|jobs| jobs.iter().map(owned).collect::<PyResult<_>>()).transpose()?;
        self.with(py, |board| Ok(board.join(worker, weight, runs)?))
    }

    fn leave(&self, py: Python<'_>, worker: &str) -> PyResult<()> {
        self.with(py, |board| Ok(board.leave(worker)?))
    }

    fn reweigh(&self, py: Python<'_>, worker: &str, weight: f64) -> PyResult<()> {
        self.with(py, |board| Ok(board.reweigh(worker, weight)?))
    }

    #[pyo3(signature = (max_moves = None))]
    fn place(&self, py: Python<'_>, max_moves: Option<isize>) -> PyResult<Moves> {
        let limit = max_moves.map(usize::try_from).transpose().map_err(|_| {
            PyValueError::new_err(format!("max_moves is {}; it must be at least 0", max_moves.unwrap_or_default()))
        })?;
        Ok(Moves { delta: self.with(py, |board| board.place(limit)) })
    }

    fn owner<'py>(&self, py: Python<'py>, job: &str, item: &str) -> PyResult<Option<Bound<'py, PyString>>> {
        let owner = self.with(py, |board| board.owner(job, item).map(|owner| owner.map(str::to_owned)))?;
        Ok(owner.map(|owner| PyString::new(py, &owner)))
    }

    fn owners<'py>(&self, py: Python<'py>, job: &str) -> PyResult<Bound<'py, PyDict>> {
        let (view, result) = (self.with(py, |board| board.view(job))?, PyDict::new(py));
        let workers: Vec<_> = view.workers.iter().map(|name| PyString::new(py, name)).collect();
        for (item, &owner) in view.names.iter().zip(&view.owners).filter(|(_, owner)| **owner != NOBODY) {
            result.set_item(item, &workers[owner as usize])?;
        }
        Ok(result)
    }

    fn by_worker<'py>(&self, py: Python<'py>, job: &str) -> PyResult<Bound<'py, PyDict>> {
        let view = self.with(py, |board| board.view(job))?;
        let shares: Vec<_> = view.workers.iter().map(|name| (name, PyList::empty(py))).collect();
        for (item, &owner) in view.names.iter().zip(&view.owners).filter(|(_, owner)| **owner != NOBODY) {
            shares[owner as usize].1.append(item)?;
        }
        let (mut filled, result) = (shares, PyDict::new(py));
        filled.retain(|(_, items)| !items.is_empty());
        filled.sort_unstable_by_key(|(name, _)| *name);
        filled.into_iter().try_for_each(|(name, items)| result.set_item(name, items))?;
        Ok(result)
    }

    fn shares<'py>(&self, py: Python<'py>, job: &str, items: &Bound<'py, PyTuple>) -> PyResult<Bound<'py, PyDict>> {
        let view = self.with(py, |board| board.view(job))?;
        if items.len() != view.names.len() {
            let found = (items.len(), view.names.len());
            return Err(PyValueError::new_err(format!("{} items are given, job '{job}' has {}", found.0, found.1)));
        }
        let mut filled: Vec<_> = view.workers.iter().map(|name| (name, Vec::new())).collect();
        for ((item, name), &owner) in items.iter_borrowed().zip(view.names.iter()).zip(&view.owners) {
            if item.cast::<PyString>()?.to_str()? != name {
                let message = format!("{} stands where job '{job}' has {name:?}", item.repr()?);
                return Err(PyValueError::new_err(message));
            }
            if owner != NOBODY {
                filled[owner as usize].1.push(item.to_owned());
            }
        }
        filled.retain(|(_, items)| !items.is_empty());
        filled.sort_unstable_by_key(|(name, _)| *name);
        let result = PyDict::new(py);
        filled.into_iter().try_for_each(|(name, items)| result.set_item(name, PyTuple::new(py, items)?))?;
        Ok(result)
    }

    fn unplaced(&self, py: Python<'_>, job: &str) -> PyResult<Vec<String>> {
        self.with(py, |board| {
            let view = board.view(job)?;
            let none = view.names.iter().zip(&view.owners).filter(|(_, owner)| **owner == NOBODY);
            Ok(none.map(|(item, _)| item.to_owned()).collect())
        })
    }

    fn __repr__(&self, py: Python<'_>) -> String {
        let (jobs, workers) = self.with(py, |board| (board.jobs().count(), board.workers().count()));
        format!("<Board {jobs} jobs, {workers} workers, strategy {}>", self.strategy)
    }
}

impl Board {
    /// Python code never runs while the lock is held, and nothing waits for it with the GIL in hand.
    fn with<R: Send>(&self, py: Python<'_>, work: impl FnOnce(&mut board::Board) -> R + Send) -> R {
        py.detach(|| work(&mut self.board.lock().unwrap_or_else(PoisonError::into_inner)))
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

/// What one placement changed.
#[pyclass(frozen, module = "latchwork._core")]
pub struct Moves {
    delta: board::Delta,
}

#[pymethods]
impl Moves {
    #[getter]
    fn deferred(&self) -> usize {
        self.delta.deferred
    }

    fn __len__(&self) -> usize {
        self.delta.jobs.iter().map(|job| job.moves.len()).sum()
    }

    #[getter]
    fn jobs(&self) -> Vec<&str> {
        self.delta.jobs.iter().map(|changes| changes.job.as_str()).collect()
    }

    fn of(slf: Bound<'_, Self>, job: &str) -> MoveRows {
        let jobs = &slf.get().delta.jobs;
        let from = jobs.partition_point(|changes| changes.job.as_str() < job);
        let till = from + usize::from(jobs.get(from).is_some_and(|changes| changes.job == job));
        MoveRows::new(slf, from, till)
    }

    fn __iter__(slf: Bound<'_, Self>) -> MoveRows {
        let till = slf.get().delta.jobs.len();
        MoveRows::new(slf, 0, till)
    }

    fn __repr__(&self) -> String {
        format!("<Moves {} moved, {} deferred>", self.__len__(), self.delta.deferred)
    }
}

/// The rows of some jobs, each made when its turn comes: there may be a million.
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
        let workers = moves.get().delta.workers.iter().map(|name| PyString::new(py, name).unbind()).collect();
        Self { moves: moves.unbind(), workers, job, till, next: 0, name: None }
    }
}

#[pymethods]
impl MoveRows {
    fn __iter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    fn __next__<'py>(&mut self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyTuple>>> {
        while self.job < self.till {
            let changes = &self.moves.get().delta.jobs[self.job];
            let Some(change) = changes.moves.get(self.next) else {
                (self.job, self.next, self.name) = (self.job + 1, 0, None);
                continue;
            };
            self.next += 1;
            let job = self.name.get_or_insert_with(|| PyString::new(py, &changes.job).unbind()).bind(py);
            let item = changes.names.get(change.item as usize);
            let worker = |number: u32| if number == NOBODY { None } else { self.workers.get(number as usize) };
            return (job, item, worker(change.from), worker(change.to)).into_pyobject(py).map(Some);
        }
        Ok(None)
    }
}
