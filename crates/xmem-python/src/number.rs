// SPDX-License-Identifier: MPL-2.0

//! Whole numbers as Python has them, which know no range.

use pyo3::exceptions::{PyOverflowError, PyValueError};
use pyo3::prelude::*;

/// A type of numbers from 0 on, as far as anybody means them.
pub(crate) trait Count: for<'a, 'py> FromPyObject<'a, 'py, Error = PyErr> {
    const MOST: u64;
}

impl Count for i32 {
    const MOST: u64 = Self::MAX as u64;
}

impl Count for u32 {
    const MOST: u64 = Self::MAX as u64;
}

impl Count for u64 {
    const MOST: u64 = Self::MAX;
}

impl Count for usize {
    const MOST: u64 = Self::MAX as u64;
}

/// A number of a type that has a range. `ValueError` if it is outside of that; PyO3 adds to it which argument it is.
pub(crate) fn count<T: Count>(number: &Bound<'_, PyAny>) -> PyResult<T> {
    number.extract().map_err(|error: PyErr| {
        if !error.is_instance_of::<PyOverflowError>(number.py()) {
            return error;
        }
        PyValueError::new_err(format!("{number} is not between 0 and {}", T::MOST))
    })
}

/// The same where None says that it is not for the caller to say.
pub(crate) fn count_or_none<T: Count>(number: &Bound<'_, PyAny>) -> PyResult<Option<T>> {
    if number.is_none() {
        return Ok(None);
    }
    count(number).map(Some)
}

/// A time in nanoseconds, which may be negative; `None` if it is not said.
pub(crate) fn time_or_none(number: &Bound<'_, PyAny>) -> PyResult<Option<i64>> {
    number.extract().map_err(|error: PyErr| {
        if !error.is_instance_of::<PyOverflowError>(number.py()) {
            return error;
        }
        PyValueError::new_err(format!(
            "{number} is not between {} and {}, in nanoseconds",
            i64::MIN,
            i64::MAX
        ))
    })
}
