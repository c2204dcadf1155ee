//! `EtcdRequest`: compares, operations and transactions, encoded one by one.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::PyBytes;

use super::super::calls::{guarded, number};
use super::super::text::list_of;
use latchwork_core::codec::etcd::request::{self, Target};

/// A namespace: nobody makes one.
#[pyclass(frozen, module = "latchwork._core")]
pub struct EtcdRequest;

const MOST_PARTS: usize = 1 << 20;
const NO_END: &[u8] = b"";

#[pymethods]
impl EtcdRequest {
    /// What must hold for a key, or for every key of a range.
    #[staticmethod]
    #[pyo3(signature = (target, key, operand, end = NO_END, *, greater = false))]
    fn compare<'py>(
        py: Python<'py>,
        target: &str,
        key: &[u8],
        #[pyo3(from_py_with = number)] operand: u64,
        end: &[u8],
        greater: bool,
    ) -> PyResult<Bound<'py, PyBytes>> {
        guarded(|| {
            let target = match target {
                "create" => Target::Created,
                "mod" => Target::Written,
                "lease" => Target::Lease,
                other => return Err(PyValueError::new_err(format!("nothing is compared by {other:?}"))),
            };
            Ok(made(py, key.len() + end.len() + 32, |out| {
                request::compare(out, target, &[key], &parts(end), operand, greater);
            }))
        })
    }

    /// A write of one key.
    #[staticmethod]
    #[pyo3(signature = (key, value, lease = 0, *, ignore_lease = false))]
    fn put<'py>(
        py: Python<'py>,
        key: &[u8],
        value: &[u8],
        #[pyo3(from_py_with = number)] lease: u64,
        ignore_lease: bool,
    ) -> Bound<'py, PyBytes> {
        guarded(|| made(py, key.len() + value.len() + 40, |out| request::put(out, &[key], value, lease, ignore_lease)))
    }

    /// A deletion of one key, or of a range.
    #[staticmethod]
    #[pyo3(signature = (key, end = NO_END))]
    fn delete<'py>(py: Python<'py>, key: &[u8], end: &[u8]) -> Bound<'py, PyBytes> {
        guarded(|| made(py, key.len() + end.len() + 24, |out| request::delete(out, &[key], &parts(end))))
    }

    /// A read of one key.
    #[staticmethod]
    fn read<'py>(py: Python<'py>, key: &[u8]) -> Bound<'py, PyBytes> {
        guarded(|| made(py, key.len() + 24, |out| request::read(out, &[key])))
    }

    /// A read of one key, or of the first in a range, without its value.
    #[staticmethod]
    #[pyo3(signature = (key, end = NO_END))]
    fn peek<'py>(py: Python<'py>, key: &[u8], end: &[u8]) -> Bound<'py, PyBytes> {
        guarded(|| made(py, key.len() + end.len() + 24, |out| request::peek(out, &[key], &parts(end))))
    }

    /// A transaction as an operation of another one.
    #[staticmethod]
    fn nested<'py>(py: Python<'py>, transaction: &[u8]) -> Bound<'py, PyBytes> {
        guarded(|| made(py, transaction.len() + 16, |out| request::nested(out, transaction)))
    }

    /// A request for a transaction of encoded compares and operations.
    #[staticmethod]
    #[pyo3(signature = (compares, success = None, failure = None))]
    fn txn<'py>(
        py: Python<'py>,
        compares: &Bound<'py, PyAny>,
        success: Option<&Bound<'py, PyAny>>,
        failure: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyBytes>> {
        guarded(|| {
            let parts = |given: Option<&Bound<'py, PyAny>>| {
                given.map_or(Ok(Vec::new()), |given| list_of("part", given, MOST_PARTS, |part| Ok(part.extract()?)))
            };
            let parts = [
                list_of("compare", compares, MOST_PARTS, |part| Ok(part.extract::<PyBackedBytes>()?))?,
                parts(success)?,
                parts(failure)?,
            ];
            Ok(PyBytes::new(py, &request::joined_transaction(parts)))
        })
    }
}

fn made<'py>(py: Python<'py>, size: usize, append: impl FnOnce(&mut Vec<u8>)) -> Bound<'py, PyBytes> {
    let mut out = Vec::with_capacity(size);
    append(&mut out);
    PyBytes::new(py, &out)
}

fn parts(end: &[u8]) -> Vec<&[u8]> {
    if end.is_empty() {
        Vec::new()
    } else {
        vec![end]
    }
}
