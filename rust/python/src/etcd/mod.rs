//! The Python class `EtcdCodec`. Its pages are in `page`.

mod page;

pub use page::EtcdPage;

use pyo3::exceptions::PyValueError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PySet, PyString, PyTuple, PyType};

use super::calls::{attribute, guarded, iterate, next, number};
use super::errors::{Failure, Raised};
use super::record::Record;
use super::text::strings;
use latchwork_core::codec::etcd::answer::{self, Done, KeyValue};
use latchwork_core::codec::etcd::request::{self, Condition, Guard, Operation, Target};
use latchwork_core::codec::etcd::Malformed;

/// The classes of the records that are returned.
struct Made {
    entry: Record<6>,
    version: Record<1>,
    committed: Record<3>,
}

/// The classes of checks and operations.
struct Kinds {
    version: Py<PyType>,
    at: Py<PyType>,
    absent: Py<PyType>,
    exists: Py<PyType>,
    alive: Py<PyType>,
    put: Py<PyType>,
    create: Py<PyType>,
    delete: Py<PyType>,
}

/// The codec of the keys below one root.
#[pyclass(frozen, module = "latchwork._core")]
pub struct EtcdCodec {
    root: Vec<u8>,
    most_conditions: usize,
    most_ops: usize,
    made: Made,
    kinds: Kinds,
}

/// An operation that borrows from Python. Writes also say whether they bind the key to the session.
enum Op<'py> {
    Put(Bound<'py, PyString>, Bound<'py, PyBytes>, bool),
    Create(Bound<'py, PyString>, Bound<'py, PyBytes>, bool),
    Delete(Bound<'py, PyString>),
}

impl Op<'_> {
    /// Converts the operation for the encoder. A write that is bound to the session gets the lease of the session.
    fn borrowed(&self, session: u64) -> PyResult<Operation<'_>> {
        let lease = |is_bound| if is_bound { session } else { 0 };
        Ok(match self {
            Self::Put(key, value, is_bound) => Operation::Put(key.to_str()?, value.as_bytes(), lease(*is_bound)),
            Self::Create(key, value, is_bound) => Operation::Create(key.to_str()?, value.as_bytes(), lease(*is_bound)),
            Self::Delete(key) => Operation::Delete(key.to_str()?),
        })
    }
}

/// The session of a transaction, which binds keys to one at most.
struct Session<'py> {
    id: Bound<'py, PyString>,
    lease: u64,
}

impl<'py> Session<'py> {
    /// Returns the session of an operation, or None if its ID cannot belong to a session on etcd.
    fn of(session: &Bound<'py, PyAny>) -> PyResult<Option<Self>> {
        let id = attribute(session, intern!(session.py(), "id"))?.cast_into::<PyString>()?;
        let text = id.to_str()?;
        let lease = u64::from_str_radix(text, 16).ok();
        let lease = lease.filter(|&lease| 0 < lease && lease < 1 << 63 && text == format!("{lease:x}"));
        Ok(lease.map(|lease| Self { id, lease }))
    }
}

/// The operations of a transaction.
struct Ops<'py> {
    all: Vec<Op<'py>>,
    session: Option<Session<'py>>,
}

/// A check, as the compare of a key.
struct Check<'py> {
    target: Target,
    folder: &'static str,
    key: Bound<'py, PyString>,
    operand: u64,
    greater: bool,
}

#[pymethods]
impl EtcdCodec {
    #[new]
    #[pyo3(signature = (root, limits, *, entry, version, committed, checks, ops))]
    fn new(
        root: &[u8],
        #[pyo3(from_py_with = number)] limits: (usize, usize),
        entry: &Bound<'_, PyType>,
        version: &Bound<'_, PyType>,
        committed: &Bound<'_, PyType>,
        checks: (Py<PyType>, Py<PyType>, Py<PyType>, Py<PyType>),
        ops: (Py<PyType>, Py<PyType>, Py<PyType>),
    ) -> PyResult<Self> {
        guarded(|| {
            let (at, absent, exists, alive) = checks;
            let (put, create, delete) = ops;
            Ok(Self {
                root: root.to_vec(),
                most_conditions: limits.0,
                most_ops: limits.1,
                made: Made {
                    entry: Record::of(entry, ["key", "value", "version", "token", "created", "owner"])?,
                    version: Record::of(version, ["token"])?,
                    committed: Record::of(committed, ["token", "entries", "deleted"])?,
                },
                kinds: Kinds { version: version.clone().unbind(), at, absent, exists, alive, put, create, delete },
            })
        })
    }

    /// Encodes a request for one key.
    fn get<'py>(&self, py: Python<'py>, key: &str, stale_ok: bool) -> Bound<'py, PyBytes> {
        guarded(|| PyBytes::new(py, &request::get(&self.root, key, stale_ok)))
    }

    /// Encodes a request for several keys, as a transaction of reads.
    fn get_many<'py>(&self, keys: &Bound<'py, PyAny>, stale_ok: bool) -> PyResult<Bound<'py, PyBytes>> {
        guarded(|| {
            let found = strings("key", keys)?;
            let borrowed = found.iter().map(|key| key.to_str()).collect::<PyResult<Vec<_>>>()?;
            Ok(PyBytes::new(keys.py(), &request::get_many(&self.root, &borrowed, stale_ok)))
        })
    }

    /// Encodes a transaction. Returns None if it needs the `Compiler` in Python.
    fn transaction<'py>(
        &self,
        checks: &Bound<'py, PyAny>,
        ops: &Bound<'py, PyAny>,
        ended: &Bound<'py, PySet>,
        key: &[u8],
        #[pyo3(from_py_with = number)] revision: u64,
        #[pyo3(from_py_with = number)] lease: u64,
    ) -> PyResult<Option<Bound<'py, PyBytes>>> {
        guarded(|| {
            let py = ops.py();
            let (Some(checks), Some(Ops { all, session })) = (self.checks(checks)?, self.ops(ops)?) else {
                return Ok(None);
            };
            if let Some(session) = &session {
                if ended.contains(&session.id)? {
                    return Ok(None);
                }
            }
            let bound_to = session.as_ref().map_or(0, |session| session.lease);
            let ops = all.iter().map(|op| op.borrowed(bound_to)).collect::<PyResult<Vec<_>>>()?;
            let session = session.as_ref().map(|session| session.id.to_str()).transpose()?;
            let Some(conditions) = self.conditions(&checks, &ops, session)? else { return Ok(None) };
            let puts = ops.iter().filter(|op| matches!(op, Operation::Put(..))).count(); // each is followed by a read
            let nests_puts = ops.len() + puts > self.most_ops;
            let guard = Guard { key, revision, lease };
            Ok(Some(PyBytes::new(py, &request::transaction(&self.root, &guard, &conditions, &ops, nests_puts))))
        })
    }

    /// Decodes the result of a transaction and its revision. Returns None if its compares did not hold.
    fn committed<'py>(
        &self,
        answer: &Bound<'py, PyBytes>,
        ops: &Bound<'py, PyAny>,
    ) -> PyResult<Option<(i64, Bound<'py, PyAny>)>> {
        guarded(|| {
            let py = answer.py();
            let found = answer::Transaction::read(answer.as_bytes()).raised()?;
            if !found.succeeded {
                return Ok(None);
            }
            let sent_otherwise = || PyValueError::new_err("these operations were not encoded by transaction()");
            let Ops { all, session } = self.ops(ops)?.ok_or_else(sent_otherwise)?;
            let nobody = py.None().into_bound(py);
            let owner = session.as_ref().map_or(&nobody, |session| session.id.as_any());
            let mut answers = found.answers.iter().skip(1);
            let revision = found.revision.into_pyobject(py)?.into_any();
            let version = self.made.version.make(py, [&revision])?;
            let (mut entries, mut deleted) = (Vec::with_capacity(all.len()), Vec::new());
            for op in &all {
                let done = answers.next().ok_or(TOO_FEW).raised()?;
                let (key, value, is_bound, created) = match op {
                    Op::Delete(key) => {
                        if matches!(done, Done::Deleted(1..)) {
                            deleted.push(key);
                        }
                        continue;
                    }
                    Op::Create(key, value, is_bound) => (key, value, is_bound, revision.clone()),
                    Op::Put(key, value, is_bound) => {
                        let created = match done {
                            Done::Nested(both) => answer::Transaction::read(both)
                                .and_then(|both| created(both.answers.get(1)))
                                .raised()?,
                            _ => created(answers.next()).raised()?,
                        };
                        (key, value, is_bound, created.into_pyobject(py)?.into_any())
                    }
                };
                let owner = if *is_bound { owner } else { &nobody };
                entries.push(
                    self.made.entry.make(py, [key.as_any(), value.as_any(), &version, &revision, &created, owner])?,
                );
            }
            let token =
                if entries.is_empty() && deleted.is_empty() { 0i64.into_pyobject(py)?.into_any() } else { revision };
            let entries = PyTuple::new(py, entries)?.into_any();
            let deleted = PyTuple::new(py, deleted)?.into_any();
            Ok(Some((found.revision, self.made.committed.make(py, [&token, &entries, &deleted])?)))
        })
    }

    /// Decodes the entry that a read of one key found.
    fn entry<'py>(&self, answer: &Bound<'py, PyBytes>) -> PyResult<Option<Bound<'py, PyAny>>> {
        guarded(|| match answer::Range::read(answer.as_bytes()).raised()?.keys.first() {
            None => Ok(None),
            Some(message) => self.entry_of(answer.py(), &KeyValue::read(message).raised()?, &mut None).map(Some),
        })
    }

    /// Decodes the entries that a transaction of reads found.
    fn found<'py>(&self, answer: &Bound<'py, PyBytes>) -> PyResult<Bound<'py, PyList>> {
        guarded(|| {
            let (py, mut owner) = (answer.py(), None);
            let answers = answer::Transaction::read(answer.as_bytes()).raised()?.answers;
            let mut entries = Vec::with_capacity(answers.len());
            for done in &answers {
                let Done::Read(range) = done else { return Err(Malformed("it answers what is no read").exception()) };
                entries.push(match answer::Range::read(range).raised()?.keys.first() {
                    None => py.None().into_bound(py),
                    Some(message) => self.entry_of(py, &KeyValue::read(message).raised()?, &mut owner)?,
                });
            }
            PyList::new(py, entries)
        })
    }

    /// Decodes a page of a list request.
    fn page(slf: Py<Self>, answer: Bound<'_, PyBytes>) -> PyResult<EtcdPage> {
        guarded(|| EtcdPage::of(slf, answer))
    }
}

/// Where the markers of sessions are, below the root.
const SESSIONS: &str = "@s/";
const TOO_FEW: Malformed = Malformed("it answers fewer operations than were asked");

/// Decodes the revision at which a key was created, from the answer to the read that follows a put.
fn created(done: Option<&Done<'_>>) -> Result<i64, Malformed> {
    let Some(Done::Read(range)) = done else { return Err(TOO_FEW) };
    let range = answer::Range::read(range)?;
    Ok(KeyValue::read(range.keys.first().ok_or(TOO_FEW)?)?.created)
}

impl EtcdCodec {
    /// Converts the operations. Returns None if `transaction` cannot encode one of them.
    fn ops<'py>(&self, ops: &Bound<'py, PyAny>) -> PyResult<Option<Ops<'py>>> {
        let (py, mut found, mut session) = (ops.py(), Vec::with_capacity(1), None::<Session<'py>>);
        let ops = iterate(ops)?;
        while let Some(op) = next(&ops) {
            let (op, kinds) = (op?, &self.kinds);
            let kind = op.get_type();
            let key = attribute(&op, intern!(py, "key"))?.cast_into::<PyString>()?;
            if kind.is(&kinds.delete) {
                found.push(Op::Delete(key));
                continue;
            }
            let value = attribute(&op, intern!(py, "value"))?.cast_into::<PyBytes>()?;
            let binding = attribute(&op, intern!(py, "session"))?;
            let is_bound = !binding.is_none();
            if is_bound {
                let Some(named) = Session::of(&binding)? else { return Ok(None) };
                if session.as_ref().is_some_and(|session| session.lease != named.lease) {
                    return Ok(None);
                }
                session = Some(named);
            }
            found.push(if kind.is(&kinds.put) {
                Op::Put(key, value, is_bound)
            } else if kind.is(&kinds.create) {
                Op::Create(key, value, is_bound)
            } else {
                return Ok(None);
            });
        }
        Ok((found.len() <= self.most_ops).then_some(Ops { all: found, session }))
    }

    fn checks<'py>(&self, checks: &Bound<'py, PyAny>) -> PyResult<Option<Vec<Check<'py>>>> {
        let mut found = Vec::new();
        let checks = iterate(checks)?;
        while let Some(check) = next(&checks) {
            match self.check(&check?)? {
                Some(check) => found.push(check),
                None => return Ok(None),
            }
        }
        Ok(Some(found))
    }

    fn check<'py>(&self, check: &Bound<'py, PyAny>) -> PyResult<Option<Check<'py>>> {
        let (py, kind, kinds) = (check.py(), check.get_type(), &self.kinds);
        let text = |name| -> PyResult<_> { Ok(attribute(check, name)?.cast_into::<PyString>()?) };
        let key = || text(intern!(py, "key"));
        let exists = |folder, key| Check { target: Target::Created, folder, key, operand: 0, greater: true };
        Ok(if kind.is(&kinds.at) {
            let version = attribute(check, intern!(py, "version"))?;
            if !version.get_type().is(&kinds.version) {
                return Ok(None);
            }
            let operand = attribute(&version, intern!(py, "token"))?.extract()?;
            Some(Check { target: Target::Written, folder: "", key: key()?, operand, greater: false })
        } else if kind.is(&kinds.absent) {
            Some(Check { greater: false, ..exists("", key()?) })
        } else if kind.is(&kinds.exists) {
            Some(exists("", key()?))
        } else if kind.is(&kinds.alive) {
            Some(exists(SESSIONS, text(intern!(py, "session_id"))?))
        } else {
            None
        })
    }

    /// Returns the conditions of a transaction: the checks, the requirements of each operation, that the session
    /// exists, that no ancestor of a key is bound to a session, and that no key exists below a key that is bound. If
    /// the transaction is refused, the reads in the answer have the same order. Returns None if there are too many
    /// conditions, or if a key below a bound key is deleted.
    fn conditions<'a>(
        &self,
        checks: &'a [Check<'_>],
        ops: &[Operation<'a>],
        session: Option<&'a str>,
    ) -> PyResult<Option<Vec<Condition<'a>>>> {
        let mut found = Vec::with_capacity(checks.len() + 2 * ops.len());
        let mut known = Vec::new();
        for Check { target, folder, key, operand, greater } in checks {
            let (target, folder, key, operand, greater) = (*target, *folder, key.to_str()?, *operand, *greater);
            if folder.is_empty() && (greater || target == Target::Written) {
                known.push(key);
            }
            found.push(Condition { target, folder, key, operand, greater, below: false });
        }
        let zero = |target, key| Condition { target, folder: "", key, operand: 0, greater: false, below: false };
        let (mut above, mut bound): (Vec<&str>, Vec<&str>) = (Vec::new(), Vec::new());
        for op in ops {
            let (key, lease) = match *op {
                Operation::Put(key, _, 0) => {
                    found.push(zero(Target::Lease, key));
                    (key, 0)
                }
                Operation::Put(key, _, lease) => (key, lease),
                Operation::Create(key, _, lease) => {
                    found.push(zero(Target::Created, key));
                    (key, lease)
                }
                Operation::Delete(_) => continue,
            };
            if lease != 0 {
                bound.push(key);
            }
            if known.contains(&key) {
                continue;
            }
            for (at, _) in key.match_indices('/') {
                if !above.contains(&&key[..at]) {
                    above.push(&key[..at]);
                }
            }
            if above.len() > self.most_conditions {
                return Ok(None);
            }
        }
        found.extend(session.map(|key| Condition { folder: SESSIONS, greater: true, ..zero(Target::Created, key) }));
        let deleted = ops.iter().filter_map(|op| if let Operation::Delete(key) = op { Some(*key) } else { None });
        for gone in deleted {
            above.retain(|folder| *folder != gone);
            if bound.iter().any(|key| gone.strip_prefix(key).is_some_and(|rest| rest.starts_with('/'))) {
                return Ok(None);
            }
        }
        found.extend(above.into_iter().map(|key| zero(Target::Lease, key)));
        found.extend(bound.into_iter().map(|key| Condition { below: true, ..zero(Target::Created, key) }));
        Ok((found.len() <= self.most_conditions).then_some(found))
    }

    /// Creates the entry of a key. `owner` caches the last lease with the name of its session.
    fn entry_of<'py>(
        &self,
        py: Python<'py>,
        found: &KeyValue<'_>,
        owner: &mut Option<(i64, Bound<'py, PyAny>)>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let key = found.key.get(self.root.len()..).and_then(|key| std::str::from_utf8(key).ok());
        let key = PyString::new(py, key.ok_or(Malformed("a key is no text below the root")).raised()?).into_any();
        let value = PyBytes::new(py, found.value).into_any();
        let token = found.written.into_pyobject(py)?.into_any();
        let created =
            if found.created == found.written { token.clone() } else { found.created.into_pyobject(py)?.into_any() };
        let version = self.made.version.make(py, [&token])?;
        if owner.as_ref().is_none_or(|(lease, _)| *lease != found.lease) {
            let name = match found.lease {
                0 => py.None().into_bound(py),
                lease => PyString::new(py, &format!("{lease:x}")).into_any(),
            };
            *owner = Some((found.lease, name));
        }
        let name = owner.as_ref().map_or_else(|| py.None().into_bound(py), |(_, name)| name.clone());
        self.made.entry.make(py, [&key, &value, &version, &token, &created, &name])
    }
}
