// SPDX-License-Identifier: MPL-2.0

//! Checks of memory from another process, and errors of system calls.

use std::io;

use crate::error::{RegionError, SystemError};

/// Checks that the memory of another process has at least the stated size. Returns its real size.
pub(super) fn check_len(
    actual: Result<usize, &'static str>,
    len: usize,
) -> Result<usize, RegionError> {
    actual
        .and_then(|actual| match actual {
            0 => Err("it is empty"),
            _ if actual < len => Err("it is smaller than its producer states"),
            _ => Ok(actual),
        })
        .map_err(RegionError::Untrusted)
}

pub(super) fn system(what: &'static str) -> impl FnOnce(io::Error) -> RegionError {
    move |error| SystemError { what, error }.into()
}
