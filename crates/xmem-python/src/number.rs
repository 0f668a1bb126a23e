// SPDX-License-Identifier: MPL-2.0

//! Python's integers, which are unbounded.

use pyo3::exceptions::{PyOverflowError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyByteArray, PyBytes, PyString};
use xmem_core::{can_be_meant, monotonic_ns};

/// A type of numbers from 0 to `MOST`.
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

/// An integer of a bounded type. `ValueError` if it is out of range. PyO3 adds the name of the argument.
pub(crate) fn count<T: Count>(number: &Bound<'_, PyAny>) -> PyResult<T> {
    number.extract().map_err(|error: PyErr| {
        if !error.is_instance_of::<PyOverflowError>(number.py()) {
            return error;
        }
        PyValueError::new_err(format!("{number} is not between 0 and {}", T::MOST))
    })
}

/// Like `count`, or None.
pub(crate) fn count_or_none<T: Count>(number: &Bound<'_, PyAny>) -> PyResult<Option<T>> {
    if number.is_none() {
        return Ok(None);
    }
    count(number).map(Some)
}

/// Like `count`, for each number of a list.
pub(crate) fn counts<T: Count>(numbers: &Bound<'_, PyAny>) -> PyResult<Vec<T>> {
    let is_text = numbers.is_instance_of::<PyBytes>()
        || numbers.is_instance_of::<PyByteArray>()
        || numbers.is_instance_of::<PyString>();
    if is_text {
        return Err(PyTypeError::new_err(format!(
            "{} is not a list of numbers",
            numbers.repr()?
        )));
    }
    let numbers = numbers.try_iter()?;
    numbers.map(|number| count(&number?)).collect()
}

/// A time in nanoseconds, which may be negative, or None.
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

/// A time on CLOCK_MONOTONIC in nanoseconds, or None. `ValueError` for a time that no program can mean: of another clock, such as
/// the wall clock, or in another unit.
pub(crate) fn present_or_none(number: &Bound<'_, PyAny>) -> PyResult<Option<i64>> {
    let time = time_or_none(number)?;
    if time.is_none_or(can_be_meant) {
        return Ok(time);
    }
    let now = monotonic_ns();
    Err(PyValueError::new_err(format!(
        "{number} isn't a valid time of CLOCK_MONOTONIC in nanoseconds, which is now {now}: use time.monotonic_ns(), not \
         time.time_ns() or seconds"
    )))
}
