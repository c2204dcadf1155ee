//! The Python class `ZooKeeperCodec`.

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PyString, PyType};

use super::calls::{guarded, number};
use super::errors::Raised;
use super::interrupts::check_signals;
use super::record::Record;
use latchwork_core::codec::zookeeper::{content, crc32, reads, Answer, Answers, Malformed, Znode};

const NO_NODE: i32 = -101;

/// The entries, the positions of those with children, and the first that was refused, with the error code.
type Found<'py> = (Vec<Bound<'py, PyAny>>, Vec<usize>, Option<(usize, i32)>);

/// The codec of reads of many keys below one root.
#[pyclass(frozen, module = "latchwork._core")]
pub struct ZooKeeperCodec {
    root: String,
    entry: Record<6>,
    version: Record<6>,
}

#[pymethods]
impl ZooKeeperCodec {
    #[new]
    #[pyo3(signature = (root, *, entry, version))]
    fn new(root: String, entry: &Bound<'_, PyType>, version: &Bound<'_, PyType>) -> PyResult<Self> {
        guarded(|| {
            Ok(Self {
                root,
                entry: Record::of(entry, ["key", "value", "version", "token", "created", "owner"])?,
                version: Record::of(version, ["mzxid", "data", "gen", "created", "owner", "born"])?,
            })
        })
    }

    /// Encodes a request for the data of the keys from `start` to `end`.
    fn reads<'py>(
        &self,
        keys: &Bound<'py, PyList>,
        #[pyo3(from_py_with = number)] start: usize,
        #[pyo3(from_py_with = number)] end: usize,
    ) -> PyResult<Bound<'py, PyBytes>> {
        guarded(|| {
            let texts = keys.get_slice(start, end);
            let texts = texts.iter().map(|key| Ok(key.cast_into::<PyString>()?)).collect::<PyResult<Vec<_>>>()?;
            let keys_of = texts.iter().map(|key| key.to_str()).collect::<PyResult<Vec<_>>>()?;
            Ok(PyBytes::new(keys.py(), &reads(&self.root, keys_of.into_iter())))
        })
    }

    /// Decodes the entries of the requested keys, beginning with the key at `start`.
    fn entries<'py>(
        &self,
        answer: &Bound<'py, PyBytes>,
        keys: &Bound<'py, PyList>,
        #[pyo3(from_py_with = number)] start: usize,
        gens: &Bound<'py, PyList>,
    ) -> PyResult<Found<'py>> {
        guarded(|| {
            let py = answer.py();
            let gens = gens.iter().collect::<Vec<_>>();
            let (mut entries, mut parents, mut refused) = (Vec::new(), Vec::new(), None);
            let mut owner: Option<(String, Bound<'py, PyAny>)> = None;
            let mut answers = Answers::of(answer.as_bytes());
            let mut at = start;
            while let Some(found) = answers.read_next().raised()? {
                check_signals(py, entries.len())?;
                let key = keys.get_item(at)?.cast_into::<PyString>()?;
                entries.push(match found {
                    Answer::Data(znode) if !znode.data.is_empty() => {
                        if znode.children != 0 {
                            parents.push(at);
                        }
                        let number = crc32(key.to_str()?.as_bytes()) as usize % gens.len().max(1);
                        let gen = gens.get(number).ok_or(Malformed("there are no guards")).raised()?;
                        self.entry_of(&key, &znode, gen, &mut owner)?
                    }
                    Answer::Error(code) if code != NO_NODE && code != 0 => {
                        refused = refused.or(Some((at, code)));
                        py.None().into_bound(py)
                    }
                    _ => py.None().into_bound(py),
                });
                at += 1;
            }
            Ok((entries, parents, refused))
        })
    }
}

impl ZooKeeperCodec {
    /// Creates the entry of a key. `known` caches the last owner with its name.
    fn entry_of<'py>(
        &self,
        key: &Bound<'py, PyString>,
        found: &Znode<'_>,
        gen: &Bound<'py, PyAny>,
        known: &mut Option<(String, Bound<'py, PyAny>)>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let py = key.py();
        let content = content(found.data, found.ephemeral);
        let owner = match content.owner {
            None => py.None().into_bound(py),
            Some(name) => {
                if known.as_ref().is_none_or(|(seen, _)| seen != name) {
                    *known = Some((name.to_owned(), PyString::new(py, name).into_any()));
                }
                known.as_ref().map_or_else(|| py.None().into_bound(py), |(_, name)| name.clone())
            }
        };
        let token = found.written.into_pyobject(py)?.into_any();
        let created = content.created.unwrap_or(found.created);
        let created = if created == found.written { token.clone() } else { created.into_pyobject(py)?.into_any() };
        let data = found.version.into_pyobject(py)?.into_any();
        let born = false.into_pyobject(py)?.to_owned().into_any();
        let version = self.version.make(py, [&token, &data, gen, &created, &owner, &born])?;
        let value = PyBytes::new(py, content.value).into_any();
        self.entry.make(py, [key.as_any(), &value, &version, &token, &created, &owner])
    }
}
