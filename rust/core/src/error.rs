//! The errors of this crate.

use std::collections::TryReserveError;
use std::fmt;

/// The reason why a call failed. A call that fails leaves its inputs unchanged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Error {
    /// The input has no meaning. The text names the value and says what to do.
    Invalid(String),
    /// The result or its working memory does not fit into memory.
    OutOfMemory,
    /// The caller ended the work early, see [`crate::cancel`].
    Cancelled,
}

impl Error {
    /// Returns the error for an invalid input, with this message.
    pub fn invalid(text: impl Into<String>) -> Self {
        Self::Invalid(text.into())
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Invalid(text) => f.write_str(text),
            Self::OutOfMemory => f.write_str("there is not enough memory"),
            Self::Cancelled => f.write_str("the caller ended the work"),
        }
    }
}

impl std::error::Error for Error {}

impl From<TryReserveError> for Error {
    fn from(_: TryReserveError) -> Self {
        Self::OutOfMemory
    }
}

/// Returns a vector with `count` copies of a value.
///
/// # Errors
/// [`Error::OutOfMemory`], where `vec![value; count]` would abort the process.
pub fn filled<T: Clone>(value: T, count: usize) -> Result<Vec<T>, Error> {
    let mut values = Vec::new();
    values.try_reserve_exact(count)?;
    values.resize(count, value);
    Ok(values)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_that_nobody_has_is_an_error() {
        assert_eq!(filled(0u64, usize::MAX / 32), Err(Error::OutOfMemory));
        assert_eq!(filled(7u8, 3), Ok(vec![7; 3]));
    }
}
