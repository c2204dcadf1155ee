//! The Python class `ItemSet`.

use std::sync::Arc;

use pyo3::exceptions::{PyIndexError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyList, PyString};

use super::calls::{guarded, number};
use super::interrupts::{interruptible, interruptible_with_gil};
use super::text::{each_string, list_for, push, utf8};
use latchwork_core::cancel::Cancel;
use latchwork_core::error::Error;
use latchwork_core::input::NO_OWNER;
use latchwork_core::rendezvous::incremental::remove_at;
use latchwork_core::rendezvous::items::{first_repeated, locate, MOST_ITEMS};
use latchwork_core::rendezvous::score::fast_key;
use latchwork_core::rendezvous::{Keys, Mode};

/// Items in the order given: Python strings and the hashes of their keys.
pub struct Items {
    pub names: Vec<Py<PyString>>,
    pub hashes: Vec<u64>,
    /// The prefix of each item in its key.
    pub prefix: String,
}

impl Items {
    /// Reads and hashes items. Raises ValueError for more than `most`.
    pub fn read(values: &Bound<'_, PyAny>, prefix: &str, most: usize) -> PyResult<Self> {
        let (mut names, mut hashes) = (list_for(values)?, list_for(values)?);
        let mut key = prefix.to_owned();
        each_string("item", values, |name| {
            let text = utf8("item", &name)?;
            if names.len() == most {
                let what = format!("more than {most} items were given, {text:?} first; use several item sets");
                return Err(PyValueError::new_err(what));
            }
            push(&mut hashes, hashed(&mut key, prefix.len(), text))?;
            push(&mut names, name.unbind())
        })?;
        names.shrink_to_fit();
        hashes.shrink_to_fit();
        let items = Self { names, hashes, prefix: prefix.to_owned() };
        items.check_distinct(values.py())?;
        Ok(items)
    }

    fn check_distinct(&self, py: Python<'_>) -> PyResult<()> {
        let same = |a: u32, b: u32| text(&self.names[a as usize], py) == text(&self.names[b as usize], py);
        match interruptible_with_gil(py, |cancel| first_repeated(&self.hashes, same, cancel))? {
            None => Ok(()),
            Some(at) => {
                let name = text(&self.names[at as usize], py);
                Err(PyValueError::new_err(format!("item '{name}' is given twice; give each item once")))
            }
        }
    }

    /// Runs `work` with the keys and without the GIL. The texts are passed only if the mode needs them.
    pub fn with_keys<T: Send>(
        &self,
        py: Python<'_>,
        mode: Mode,
        work: impl FnOnce(Keys<'_>, &Cancel<'_>) -> Result<T, Error> + Send,
    ) -> PyResult<T> {
        let texts = match mode {
            Mode::Fast => Vec::new(),
            Mode::Compat => self.names.iter().map(|name| text(name, py)).collect(),
        };
        let keys = Keys { hashes: &self.hashes, prefix: &self.prefix, texts: &texts };
        interruptible(py, |cancel| work(keys, cancel))
    }

    /// Returns the positions of items, ascending. Raises ValueError if one does not exist. O(items).
    pub fn positions(&self, wanted: &Items, py: Python<'_>) -> PyResult<Vec<u32>> {
        let mut positions = self.locate(wanted, py)?;
        if let Some(at) = positions.iter().position(|&position| position == NO_OWNER) {
            let name = text(&wanted.names[at], py);
            return Err(PyValueError::new_err(format!("item '{name}' is not there; remove only items that are")));
        }
        positions.sort_unstable();
        Ok(positions)
    }

    /// Checks that none of these items exists, and that the number of items stays within the limit. O(items).
    pub fn check_absent(&self, new: &Items, py: Python<'_>) -> PyResult<()> {
        if let Some(at) = self.locate(new, py)?.iter().position(|&position| position != NO_OWNER) {
            let name = text(&new.names[at], py);
            return Err(PyValueError::new_err(format!("item '{name}' is there already; add only new items")));
        }
        if self.names.len() + new.names.len() > MOST_ITEMS {
            return Err(PyValueError::new_err(format!(
                "there would be more than {MOST_ITEMS} items; use several sets"
            )));
        }
        Ok(())
    }

    /// Appends items that were checked before.
    pub fn extend(&mut self, new: Items) {
        self.names.extend(new.names);
        self.hashes.extend(new.hashes);
    }

    /// Removes the items at ascending positions and returns their names. O(items).
    pub fn remove(&mut self, positions: &[u32], py: Python<'_>) -> Vec<Py<PyString>> {
        let gone = positions.iter().map(|&at| self.names[at as usize].clone_ref(py)).collect();
        remove_at(&mut self.names, positions);
        remove_at(&mut self.hashes, positions);
        gone
    }

    pub fn copy(&self, py: Python<'_>) -> Self {
        let names = self.names.iter().map(|name| name.clone_ref(py)).collect();
        Self { names, hashes: self.hashes.clone(), prefix: self.prefix.clone() }
    }

    fn locate(&self, wanted: &Items, py: Python<'_>) -> PyResult<Vec<u32>> {
        let same =
            |at: u32, number: u32| text(&self.names[at as usize], py) == text(&wanted.names[number as usize], py);
        interruptible_with_gil(py, |cancel| locate(&self.hashes, &wanted.hashes, same, cancel))
    }
}

/// Returns the hash of an item's key. `key` begins with the prefix, which has this length. The rest of it is scratch
/// space.
fn hashed(key: &mut String, length: usize, text: &str) -> u64 {
    if length == 0 {
        return fast_key(text.as_bytes());
    }
    key.truncate(length);
    key.push_str(text);
    fast_key(key.as_bytes())
}

/// Returns the text of a str that was read as UTF-8 before.
fn text<'a>(name: &'a Py<PyString>, py: Python<'_>) -> &'a str {
    name.to_str(py).expect("the string was read as UTF-8 before")
}

/// Items that are hashed once, to be assigned many times. Immutable and thread-safe.
///
/// It borrows the strings: beyond them it takes 16 bytes per item.
#[pyclass(frozen, module = "latchwork._core")]
pub struct ItemSet {
    pub items: Arc<Items>,
}

#[pymethods]
impl ItemSet {
    #[new]
    #[pyo3(signature = (items, prefix = None, *, most = None))]
    fn new(
        items: &Bound<'_, PyAny>,
        prefix: Option<&Bound<'_, PyString>>,
        #[pyo3(from_py_with = number)] most: Option<usize>,
    ) -> PyResult<Self> {
        guarded(|| {
            let prefix = prefix.map_or(Ok(""), |prefix| utf8("prefix", prefix))?;
            Ok(Self {
                items: Arc::new(Items::read(items, prefix, most.map_or(MOST_ITEMS, |most| most.min(MOST_ITEMS)))?),
            })
        })
    }

    /// The prefix of each item in its key, or "".
    #[getter]
    fn prefix(&self) -> &str {
        guarded(|| &self.items.prefix)
    }

    fn __len__(&self) -> usize {
        guarded(|| self.items.names.len())
    }

    fn __getitem__(&self, py: Python<'_>, #[pyo3(from_py_with = number)] index: isize) -> PyResult<Py<PyString>> {
        guarded(|| {
            let count = self.items.names.len();
            let at = usize::try_from(index).ok().or_else(|| count.checked_sub(index.unsigned_abs()));
            let name = at.and_then(|at| self.items.names.get(at));
            let missing = || PyIndexError::new_err(format!("item {index} of {count} was asked for"));
            name.map(|name| name.clone_ref(py)).ok_or_else(missing)
        })
    }

    /// Return the items in the given order. They are the given str objects. Faster than iterating.
    fn to_list<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        guarded(|| PyList::new(py, self.items.names.iter().map(|name| name.bind(py))))
    }

    fn __repr__(&self) -> String {
        guarded(|| format!("<ItemSet {} items, prefix {:?}>", self.items.names.len(), self.items.prefix))
    }
}
