//! `EtcdPage`: the answer to a range request.

use std::ops::Range;

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};

use super::EtcdCodec;
use crate::etcd::answer::{self, KeyValue};
use crate::etcd::Malformed;

/// The answer to a range request, decoded as far as is asked for.
#[pyclass(frozen, module = "latchwork._core")]
pub struct EtcdPage {
    codec: Py<EtcdCodec>,
    answer: Py<PyBytes>,
    keys: Vec<Range<usize>>,
    /// There are more keys than were asked for.
    #[pyo3(get)]
    more: bool,
    /// Of the store.
    #[pyo3(get)]
    revision: i64,
}

impl EtcdPage {
    /// The page that an answer is. O(keys).
    pub fn of(codec: Py<EtcdCodec>, answer: Bound<'_, PyBytes>) -> PyResult<Self> {
        let whole = answer.as_bytes();
        let found = answer::Range::read(whole)?;
        let start = |part: &[u8]| part.as_ptr() as usize - whole.as_ptr() as usize;
        let keys = found.keys.iter().map(|key| start(key)..start(key) + key.len()).collect();
        let (more, revision) = (found.more, found.revision);
        Ok(Self { codec, more, revision, keys, answer: answer.unbind() })
    }

    fn each<'a>(&'a self, py: Python<'a>) -> impl DoubleEndedIterator<Item = Result<KeyValue<'a>, Malformed>> {
        let whole = self.answer.as_bytes(py);
        self.keys.iter().map(|place| KeyValue::read(&whole[place.clone()]))
    }
}

#[pymethods]
impl EtcdPage {
    fn __len__(&self) -> usize {
        self.keys.len()
    }

    /// Of the answer, in bytes.
    #[getter]
    fn size(&self, py: Python<'_>) -> usize {
        self.answer.as_bytes(py).len()
    }

    /// Where the keys lie in etcd.
    fn keys<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let keys = self.each(py).map(|found| Ok(PyBytes::new(py, found?.key))).collect::<PyResult<Vec<_>>>()?;
        PyList::new(py, keys)
    }

    /// Where the last key lies in etcd.
    fn last<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        let found = self.each(py).next_back().unwrap_or(Err(Malformed("it has no keys")))?;
        Ok(PyBytes::new(py, found.key))
    }

    /// How many keys have no slash from a place on.
    fn direct(&self, py: Python<'_>, skip: usize) -> PyResult<usize> {
        let mut count = 0;
        for found in self.each(py) {
            count += usize::from(is_direct(found?.key, skip));
        }
        Ok(count)
    }

    /// The entries, all of them or those whose keys have no slash from a place on.
    #[pyo3(signature = (skip = None))]
    fn entries<'py>(&self, py: Python<'py>, skip: Option<usize>) -> PyResult<Bound<'py, PyList>> {
        let (codec, mut owner) = (self.codec.get(), None);
        let mut entries = Vec::with_capacity(self.keys.len());
        for found in self.each(py) {
            let found = found?;
            if skip.is_none_or(|skip| is_direct(found.key, skip)) {
                entries.push(codec.entry_of(py, &found, &mut owner)?);
            }
        }
        PyList::new(py, entries)
    }
}

fn is_direct(key: &[u8], skip: usize) -> bool {
    !key.get(skip..).unwrap_or_default().contains(&b'/')
}
