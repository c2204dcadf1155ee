//! The Python functions that place items: conversion of jobs from Python, and of owners to Python.

use std::collections::{BTreeSet, HashMap};

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyString};

use super::calls::{guarded, number};
use super::errors::Raised;
use super::interrupts::{check_signals, interruptible};
use super::text::{each, list_of, push, string, strings, utf8};
use latchwork_core::balance::move_limit;
use latchwork_core::balance::replicas::{self, Replicas, MOST_PAIRS};
use latchwork_core::balance::strategy::Strategy;
use latchwork_core::error::Error;
use latchwork_core::input::{check_weights, Job, NO_OWNER};
use latchwork_core::rendezvous::Mode;

/// Positions are u32, and `NO_OWNER` is taken.
const MOST_ITEMS: usize = u32::MAX as usize - 1;

/// A job as Python gives it: id, items, able workers with their weights, previous owners.
type Given<'py> = (Bound<'py, PyString>, Bound<'py, PyAny>, Bound<'py, PyDict>, Bound<'py, PyDict>);

/// Assign the items of all jobs. `latchwork.assignment` does the same with types, moves and documentation.
///
/// Args:
///     strategy: "rendezvous", "evenly-rendezvous", "evenly-spread" or "balanced".
///     jobs: For each job its ID, its items, the weights of the workers that can run it, and the previous owner of each
///         item. Items and workers that no longer exist are allowed there.
///     mode: "fast" or "compat". Only the two rendezvous strategies use it.
/// Returns:
///     For each job, in the given order, a dict from item to worker in item order. It is empty if no worker can run the
///         job.
/// Raises:
///     ValueError: The strategy or mode is unknown, a job or an item is given twice, or a weight is not finite and
///         positive.
///     TypeError: An ID, item or worker is not a str.
#[pyfunction]
#[pyo3(signature = (strategy, jobs, mode = "fast"))]
pub fn place<'py>(
    py: Python<'py>,
    strategy: &str,
    jobs: &Bound<'py, PyAny>,
    mode: &str,
) -> PyResult<Bound<'py, PyList>> {
    guarded(|| {
        let (strategy, mode) = (Strategy::parse(strategy).raised()?, Mode::parse(mode).raised()?);
        let read: Vec<Read<'py>> = list_of("job", jobs, MOST_ITEMS, |job| job.extract::<Given<'py>>())?
            .into_iter()
            .map(Read::new)
            .collect::<PyResult<_>>()?;
        let texts: Vec<Texts<'_>> = read.iter().map(Texts::new).collect::<PyResult<_>>()?;
        let names: BTreeSet<&str> = texts.iter().flat_map(|text| text.workers.iter().copied()).collect();
        let names: Vec<&str> = names.into_iter().collect();
        let index: HashMap<&str, u32> = names.iter().zip(0..).map(|(name, at)| (*name, at)).collect();
        let mut order: Vec<usize> = (0..texts.len()).collect();
        order.sort_by_key(|&at| texts[at].id);
        check_distinct("job", order.iter().map(|&at| texts[at].id)).raised()?;
        let jobs: Vec<Job<'_>> = order.iter().map(|&at| texts[at].job(&read[at], &index)).collect::<PyResult<_>>()?;
        let placed = interruptible(py, |cancel| strategy.place(&names, &jobs, mode, cancel))?;
        let mut results = vec![None; read.len()];
        for (&at, owners) in order.iter().zip(placed) {
            results[at] = Some(read[at].owners(py, &owners)?);
        }
        PyList::new(py, results)
    })
}

/// Return for each move whether it is among the best `limit`; see `latchwork.assignment.Budgeted`.
///
/// Args:
///     moves: The numbers of job, giver and taker of each move.
///     limit: Maximum number of moves to make.
#[pyfunction]
pub fn choose_moves<'py>(
    py: Python<'py>,
    moves: &Bound<'py, PyAny>,
    #[pyo3(from_py_with = number)] limit: usize,
) -> PyResult<Bound<'py, PyList>> {
    guarded(|| {
        let moves = list_of("move", moves, MOST_ITEMS, number)?;
        let made = interruptible(py, |cancel| move_limit::choose(&moves, limit, cancel))?;
        PyList::new(py, made)
    })
}

/// Place replicas over zones. `latchwork.assignment.place_replicas` does the same with names.
///
/// Args:
///     copies: Number of workers that each item should have.
///     zone: The zone of each worker, a number below the number of workers.
///     weights: The weight of each worker, finite and greater than 0.
///     previous: The numbers of the workers that had each item, each once.
/// Returns:
///     The workers of each item, ascending.
/// Raises:
///     ValueError: A number or a weight is out of range.
#[pyfunction]
pub fn place_replicas<'py>(
    py: Python<'py>,
    #[pyo3(from_py_with = number)] copies: u32,
    zone: &Bound<'py, PyAny>,
    weights: &Bound<'py, PyAny>,
    previous: &Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyList>> {
    guarded(|| {
        let (zone, weights) =
            (list_of("zone", zone, MOST_PAIRS, number::<u32>)?, list_of("weight", weights, MOST_PAIRS, number::<f64>)?);
        let mut items: Vec<Vec<u32>> = Vec::new();
        each(previous, |owners| push(&mut items, list_of("previous owner", &owners, weights.len(), number)?))?;
        let previous = items;
        let strange = zone.iter().find(|zone| **zone as usize >= weights.len());
        let unknown = previous.iter().flatten().find(|worker| **worker as usize >= weights.len());
        if zone.len() != weights.len() || strange.is_some() || unknown.is_some() {
            return Err(PyValueError::new_err(
                "zones, weights and previous owners must number the same workers from 0",
            ));
        }
        let names: Vec<String> = (0..weights.len()).map(|worker| worker.to_string()).collect();
        check_weights(&names, &weights).raised()?;
        let placed =
            interruptible(py, |cancel| replicas::place(&Replicas { copies, zone, weights, previous }, cancel))?;
        let result = PyList::empty(py);
        for (at, owners) in placed.iter().enumerate() {
            result.append(PyList::new(py, owners)?)?;
            check_signals(py, at)?;
        }
        Ok(result)
    })
}

/// One job with its Python strings in name order.
struct Read<'py> {
    id: Bound<'py, PyString>,
    items: Vec<Bound<'py, PyString>>,
    workers: Vec<Bound<'py, PyString>>,
    weights: Vec<f64>,
    previous: Bound<'py, PyDict>,
}

impl<'py> Read<'py> {
    fn new((id, items, able, previous): Given<'py>) -> PyResult<Self> {
        let items = sorted("work item", strings("work item", &items)?)?;
        let workers = sorted("worker", strings("worker", &able.keys().into_any())?)?;
        let weight = |worker: &Bound<'py, PyString>| match able.get_item(worker)? {
            Some(weight) => number(&weight),
            None => Err(PyValueError::new_err(format!("worker '{worker}' left the mapping while it was read"))),
        };
        let weights = workers.iter().map(weight).collect::<PyResult<_>>()?;
        Ok(Self { id, items, workers, weights, previous })
    }

    /// Returns a dict from item to worker, in name order, without items that no worker can run.
    fn owners(&self, py: Python<'py>, owners: &[u32]) -> PyResult<Bound<'py, PyDict>> {
        let result = PyDict::new(py);
        for (at, (item, &owner)) in self.items.iter().zip(owners).enumerate() {
            if owner != NO_OWNER {
                result.set_item(item, &self.workers[owner as usize])?;
            }
            check_signals(py, at)?;
        }
        Ok(result)
    }
}

/// The same job as borrowed text.
struct Texts<'a> {
    id: &'a str,
    items: Vec<&'a str>,
    workers: Vec<&'a str>,
}

impl<'a> Texts<'a> {
    fn new(read: &'a Read<'_>) -> PyResult<Self> {
        let all = |what, strings: &'a [Bound<'_, PyString>]| -> PyResult<Vec<&'a str>> {
            strings.iter().map(|string| utf8(what, string)).collect()
        };
        let id = utf8("job id", &read.id)?;
        let (items, workers) = (all("work item", &read.items)?, all("worker", &read.workers)?);
        check_distinct(&format!("job '{id}': work item"), items.iter().copied()).raised()?;
        check_weights(&workers, &read.weights).raised()?;
        if items.len() > MOST_ITEMS {
            return Err(PyValueError::new_err(format!("job '{id}' has {} work items; split it", items.len())));
        }
        Ok(Self { id, items, workers })
    }

    fn job(&self, read: &Read<'_>, index: &HashMap<&str, u32>) -> PyResult<Job<'a>> {
        let position: HashMap<&str, u32> = self.workers.iter().zip(0..).map(|(name, at)| (*name, at)).collect();
        Ok(Job {
            id: self.id,
            items: self.items.clone(),
            able: self.workers.iter().map(|name| index[name]).collect(),
            weights: read.weights.clone(),
            previous: previous(read, &position)?,
        })
    }
}

/// Returns the position of the previous owner of each item, if it can still run the job.
fn previous(read: &Read<'_>, position: &HashMap<&str, u32>) -> PyResult<Vec<u32>> {
    let mut owners = vec![NO_OWNER; read.items.len()];
    if read.previous.is_empty() {
        return Ok(owners);
    }
    for (owner, item) in owners.iter_mut().zip(&read.items) {
        if let Some(worker) = read.previous.get_item(item)? {
            let worker = string("previous owner", worker)?;
            *owner = *position.get(utf8("previous owner", &worker)?).unwrap_or(&NO_OWNER);
        }
    }
    Ok(owners)
}

/// Sorts strings in name order, which for valid text is the order of Python.
fn sorted<'py>(what: &str, strings: Vec<Bound<'py, PyString>>) -> PyResult<Vec<Bound<'py, PyString>>> {
    let texts: Vec<&str> = strings.iter().map(|string| utf8(what, string)).collect::<PyResult<_>>()?;
    if texts.is_sorted() {
        return Ok(strings);
    }
    let mut order: Vec<usize> = (0..texts.len()).collect();
    order.sort_by_key(|&at| texts[at]);
    Ok(order.into_iter().map(|at| strings[at].clone()).collect())
}

/// Checks that an ascending sequence contains no value twice.
fn check_distinct<'a>(what: &str, ascending: impl Iterator<Item = &'a str>) -> Result<(), Error> {
    let mut last = None;
    for value in ascending {
        if last == Some(value) {
            return Err(Error::Invalid(format!("{what} '{value}' is given twice; give it once")));
        }
        last = Some(value);
    }
    Ok(())
}
