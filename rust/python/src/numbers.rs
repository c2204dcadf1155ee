//! Arrays of numbers that Python reads without a copy.

use std::ffi::c_int;
use std::sync::Arc;

use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyMemoryView;

use super::calls::guarded;

/// Immutable numbers, exported by the buffer protocol.
#[pyclass(frozen, module = "latchwork._core")]
pub struct Numbers {
    values: Arc<Vec<u32>>,
}

impl Numbers {
    pub fn new(values: impl Into<Arc<Vec<u32>>>) -> Self {
        Self { values: values.into() }
    }
}

#[pymethods]
impl Numbers {
    /// Exports the numbers as a read-only buffer of bytes.
    #[allow(unsafe_code)]
    unsafe fn __getbuffer__(slf: &Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        guarded(|| {
            let values = &slf.get().values;
            let bytes = isize::try_from(values.len() * size_of::<u32>())?;
            // SAFETY: `view` is a buffer for us to fill in. It keeps a reference to `slf`, which nothing changes and which keeps
            // the numbers alive; readers get no right to write.
            let filled = unsafe {
                ffi::PyBuffer_FillInfo(view, slf.as_ptr(), values.as_ptr().cast_mut().cast(), bytes, 1, flags)
            };
            if filled == 0 {
                Ok(())
            } else {
                Err(PyErr::fetch(slf.py()))
            }
        })
    }
}

/// Returns a read-only memoryview of native u32 numbers, with one dimension or with rows of `columns` numbers. Copies
/// nothing.
pub fn memory(py: Python<'_>, values: impl Into<Arc<Vec<u32>>>, columns: Option<usize>) -> PyResult<Bound<'_, PyAny>> {
    let values = values.into();
    let count = values.len();
    let view = PyMemoryView::from(Bound::new(py, Numbers { values })?.as_any())?;
    match columns {
        // memoryview refuses shapes with a zero in them, so nothing is one-dimensional.
        Some(columns) if count > 0 => view.call_method1("cast", ("I", (count / columns, columns))),
        _ => view.call_method1("cast", ("I",)),
    }
}
