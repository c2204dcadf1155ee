//! Errors of the core as exceptions.

use latchwork_core::codec::{etcd, zookeeper};
use latchwork_core::error::Error;
use pyo3::exceptions::{PyMemoryError, PyRuntimeError, PyValueError};
use pyo3::prelude::*;

/// An error of the core.
pub trait Failure {
    fn exception(self) -> PyErr;
}

impl Failure for Error {
    fn exception(self) -> PyErr {
        match self {
            Error::Invalid(text) => PyValueError::new_err(text),
            Error::OutOfMemory => PyMemoryError::new_err(self.to_string()),
            Error::Cancelled => PyRuntimeError::new_err(self.to_string()),
        }
    }
}

impl Failure for std::collections::TryReserveError {
    fn exception(self) -> PyErr {
        Error::from(self).exception()
    }
}

impl Failure for etcd::Malformed {
    fn exception(self) -> PyErr {
        PyValueError::new_err(format!("etcd's answer cannot be read: {self}"))
    }
}

impl Failure for zookeeper::Malformed {
    fn exception(self) -> PyErr {
        PyValueError::new_err(format!("ZooKeeper's answer cannot be read: {self}"))
    }
}

/// A result of the core as one for Python.
pub trait Raised<T> {
    fn raised(self) -> PyResult<T>;
}

impl<T, E: Failure> Raised<T> for Result<T, E> {
    fn raised(self) -> PyResult<T> {
        self.map_err(Failure::exception)
    }
}
