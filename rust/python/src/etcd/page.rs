//! The Python class `EtcdPage`: the answer to a range request.

use std::ops::Range;

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PyString};

use super::super::calls::{guarded, number};
use super::super::errors::Raised;
use super::super::interrupts::check_signals;
use super::EtcdCodec;
use latchwork_core::codec::etcd::answer::{self, KeyValue};
use latchwork_core::codec::etcd::Malformed;
use latchwork_core::codec::key::is_key;

/// The answer to a range request, decoded on demand.
#[pyclass(frozen, module = "latchwork._core")]
pub struct EtcdPage {
    codec: Py<EtcdCodec>,
    answer: Py<PyBytes>,
    keys: Vec<(Range<usize>, bool)>, // and whether it is one of ours
    /// Whether there are more keys than were asked for.
    #[pyo3(get)]
    more: bool,
    /// The revision of the store.
    #[pyo3(get)]
    revision: i64,
}

impl EtcdPage {
    /// Decodes the positions of the keys in an answer. O(keys).
    pub fn of(codec: Py<EtcdCodec>, answer: Bound<'_, PyBytes>) -> PyResult<Self> {
        let whole = answer.as_bytes();
        let found = answer::Range::read(whole).raised()?;
        let start = |part: &[u8]| part.as_ptr() as usize - whole.as_ptr() as usize;
        let root = codec.get().root.len();
        let mut keys = Vec::with_capacity(found.keys.len());
        for (at, message) in found.keys.iter().enumerate() {
            check_signals(answer.py(), at)?;
            let is_ours = KeyValue::read(message).raised()?.key.get(root..).is_some_and(is_key);
            keys.push((start(message)..start(message) + message.len(), is_ours));
        }
        let (more, revision) = (found.more, found.revision);
        Ok(Self { codec, more, revision, keys, answer: answer.unbind() })
    }

    /// Returns the keys of the page that have the syntax of latchwork keys, or the other keys.
    fn each<'a>(&'a self, py: Python<'a>, ours: bool) -> impl Iterator<Item = PyResult<KeyValue<'a>>> {
        let whole = self.answer.as_bytes(py);
        self.keys.iter().filter(move |(_, is_ours)| *is_ours == ours).enumerate().map(move |(at, (place, _))| {
            check_signals(py, at)?;
            KeyValue::read(&whole[place.clone()]).raised()
        })
    }
}

#[pymethods]
impl EtcdPage {
    fn __len__(&self) -> usize {
        guarded(|| self.keys.len())
    }

    /// The size of the answer in bytes.
    #[getter]
    fn size(&self, py: Python<'_>) -> usize {
        guarded(|| self.answer.as_bytes(py).len())
    }

    /// Returns the keys of the page, relative to the root.
    fn names<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        guarded(|| {
            let root = self.codec.get().root.len();
            let name = |key: &[u8]| PyString::new(py, &String::from_utf8_lossy(&key[root..])); // all of them are ASCII
            let names =
                self.each(py, true).map(|found| found.map(|found| name(found.key))).collect::<PyResult<Vec<_>>>()?;
            PyList::new(py, names)
        })
    }

    /// Returns the raw keys that do not have the syntax of latchwork keys.
    fn strangers<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        guarded(|| {
            let keys = self
                .each(py, false)
                .map(|found| found.map(|found| PyBytes::new(py, found.key)))
                .collect::<PyResult<Vec<_>>>()?;
            PyList::new(py, keys)
        })
    }

    /// Returns the last raw key of the page, whatever its syntax.
    fn last<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        guarded(|| {
            let (place, _) = self.keys.last().ok_or(Malformed("it has no keys")).raised()?;
            Ok(PyBytes::new(py, KeyValue::read(&self.answer.as_bytes(py)[place.clone()]).raised()?.key))
        })
    }

    /// Returns the number of keys of the page: all of them, or only those without a slash after `skip` bytes.
    #[pyo3(signature = (skip = None))]
    fn count(&self, py: Python<'_>, #[pyo3(from_py_with = number)] skip: Option<usize>) -> PyResult<usize> {
        guarded(|| {
            let mut count = 0;
            for found in self.each(py, true) {
                let found = found?;
                count += usize::from(skip.is_none_or(|skip| is_direct(found.key, skip)));
            }
            Ok(count)
        })
    }

    /// Returns the entries of the page: all of them, or only those whose keys have no slash after `skip` bytes.
    #[pyo3(signature = (skip = None))]
    fn entries<'py>(
        &self,
        py: Python<'py>,
        #[pyo3(from_py_with = number)] skip: Option<usize>,
    ) -> PyResult<Bound<'py, PyList>> {
        guarded(|| {
            let (codec, mut owner) = (self.codec.get(), None);
            let mut entries = Vec::with_capacity(self.keys.len());
            for found in self.each(py, true) {
                let found = found?;
                if skip.is_none_or(|skip| is_direct(found.key, skip)) {
                    entries.push(codec.entry_of(py, &found, &mut owner)?);
                }
            }
            PyList::new(py, entries)
        })
    }
}

fn is_direct(key: &[u8], skip: usize) -> bool {
    !key.get(skip..).unwrap_or_default().contains(&b'/')
}
