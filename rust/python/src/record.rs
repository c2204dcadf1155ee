//! Frozen msgspec structs, and frozen dataclasses with slots, made without running their `__init__`, which takes longer
//! than all the rest.
//!
//! Other modules with `unsafe` are `calls`, `numbers` and `assignment` (buffers). What must hold here, and why it does:
//!
//! 1. *A new object is complete before anyone sees it.* [`Record::make`] has a value for each slot of the class (the
//!    arrays have one length), and gives the object away only when all of them were set; unset slots are NULL, which
//!    Python takes for a missing attribute and frees without harm.
//! 2. *The setter is that of the slot's own type.* Both come from the descriptor found in the class by its name, which
//!    must be a `member_descriptor`; these check that the object is of their class, and take a reference of their own.
//! 3. *The descriptor and the class stay alive.* The record holds references to both.
//! 4. *What the garbage collector forgets is in no cycle.* A record whose values are all of no concern to it (text, bytes,
//!    numbers, other such records) is none either, because it is frozen; the collector does the same with tuples. [`Record::of`] takes only classes whose objects it knows at all.
//!
//! All functions used are part of the stable ABI of Python 3.11.

#![allow(unsafe_code)]

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::PyType;
use pyo3::{ffi, Bound};

/// A class with `N` slots, in the order in which values are given.
pub struct Record<const N: usize> {
    class: Py<PyType>,
    slots: [(Py<PyAny>, ffi::descrsetfunc); N],
}

impl<const N: usize> Record<N> {
    /// Finds the slots of the class. The class must have exactly these slots.
    pub fn of(class: &Bound<'_, PyType>, names: [&str; N]) -> PyResult<Self> {
        // SAFETY: the class is alive.
        if unsafe { ffi::PyType_GetFlags(class.as_type_ptr()) } & ffi::Py_TPFLAGS_HAVE_GC == 0 {
            return Err(PyTypeError::new_err(format!("{class} has no slots")));
        }
        // `msgspec.Struct` is a base without data: it is as small as `object`
        let size = |class: &Bound<'_, PyAny>| class.getattr("__basicsize__")?.extract::<usize>();
        if size(&class.getattr("__base__")?)? != size(class.py().get_type::<pyo3::PyAny>().as_any())? {
            return Err(PyTypeError::new_err(format!("{class} has a base with data of its own")));
        }
        let slots = names.iter().map(|name| slot(class, name)).collect::<PyResult<Vec<_>>>()?;
        let slots = slots.try_into().map_err(|_| PyTypeError::new_err("slots were lost"))?;
        Ok(Self { class: class.clone().unbind(), slots })
    }

    /// Creates an object of the class with these values, one for each slot.
    #[inline]
    pub fn make<'py>(&self, py: Python<'py>, values: [&Bound<'py, PyAny>; N]) -> PyResult<Bound<'py, PyAny>> {
        // SAFETY: the class is alive; the result is a new reference, or NULL with an error set.
        let made = unsafe {
            let object = ffi::PyType_GenericAlloc(self.class.as_ptr().cast(), 0);
            Bound::from_owned_ptr_or_err(py, object)?
        };
        let mut is_leaf = true;
        for ((descriptor, set), value) in self.slots.iter().zip(values) {
            // SAFETY: `set` belongs to the type of `descriptor`, and all three objects are alive; see above.
            if unsafe { set(descriptor.as_ptr(), made.as_ptr(), value.as_ptr()) } != 0 {
                return Err(PyErr::fetch(py));
            }
            // SAFETY: the value is alive; any object may be asked for.
            is_leaf &= unsafe { ffi::PyObject_GC_IsTracked(value.as_ptr()) } == 0;
        }
        if is_leaf {
            // SAFETY: the object is alive, and of a type that the collector knows.
            unsafe { ffi::PyObject_GC_UnTrack(made.as_ptr().cast()) };
        }
        Ok(made)
    }
}

fn slot(class: &Bound<'_, PyType>, name: &str) -> PyResult<(Py<PyAny>, ffi::descrsetfunc)> {
    let descriptor = class.getattr(name)?;
    let kind = descriptor.get_type();
    if kind.name()? != "member_descriptor" {
        return Err(PyTypeError::new_err(format!("{name} of {class} is no slot")));
    }
    // SAFETY: the type is alive. Since Python 3.10 slots of all types may be asked for; what is at this number is a
    // `descrsetfunc` or NULL.
    let set = unsafe {
        let found = ffi::PyType_GetSlot(kind.as_type_ptr(), ffi::Py_tp_descr_set);
        std::mem::transmute::<*mut std::ffi::c_void, Option<ffi::descrsetfunc>>(found)
    };
    let set = set.ok_or_else(|| PyTypeError::new_err(format!("{name} of {class} cannot be set")))?;
    Ok((descriptor.unbind(), set))
}
