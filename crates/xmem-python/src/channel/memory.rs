// SPDX-License-Identifier: MPL-2.0

//! Memory for arrays that are sent without a copy, and views of plain bytes.
#![allow(unsafe_code)] // the buffer protocol

use std::ffi::{c_int, c_void};
use std::sync::Arc;

use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;
use xmem_core::ProcessId;

use super::message::ALIGN;
use crate::fork::check_process;
use crate::own_slot::OwnSlot;

/// Memory for an array that will be sent without a copy.
#[pyclass(frozen, module = "xmem._xmem", name = "_Room")]
#[derive(Debug)]
pub(crate) struct Room {
    slot: Arc<OwnSlot>,
    process: ProcessId,
}

impl Room {
    pub(super) fn new(slot: Arc<OwnSlot>) -> Self {
        Self {
            slot,
            process: ProcessId::current(),
        }
    }
}

#[pymethods]
impl Room {
    /// # Safety
    ///
    /// `view` is the argument of `__getbuffer__`.
    unsafe fn __getbuffer__(
        slf: Bound<'_, Self>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        let Self { slot, process } = slf.get();
        let bytes = check_process(*process).map(|()| (slot.start(), slot.len(), slot.is_sent()));
        // SAFETY: promised by the caller. The slot stays claimed while this object lives, and the view keeps the object.
        unsafe { fill_bytes(view, flags, slf.as_any(), bytes) }
    }
}

/// Initialises a view of plain bytes: an address, a size, and whether they are read-only.
///
/// # Safety
///
/// `view` is the argument of `__getbuffer__`, and the bytes live as long as the owner.
pub(super) unsafe fn fill_bytes(
    view: *mut ffi::Py_buffer,
    flags: c_int,
    owner: &Bound<'_, PyAny>,
    bytes: PyResult<(usize, usize, bool)>,
) -> PyResult<()> {
    // SAFETY: promised by the caller. Python requires a null owner if the call fails.
    unsafe { (*view).obj = std::ptr::null_mut() };
    let (start, len, readonly) = bytes?;
    // An address that is never read, because there are no bytes.
    let start = if len == 0 { ALIGN } else { start };
    // SAFETY: promised by the caller.
    let result = unsafe {
        ffi::PyBuffer_FillInfo(
            view,
            owner.as_ptr(),
            start as *mut c_void,
            len.cast_signed(),
            c_int::from(readonly),
            flags,
        )
    };
    if result == 0 {
        return Ok(());
    }
    Err(PyErr::take(owner.py()).unwrap_or_else(|| {
        PyBufferError::new_err("this memory cannot be viewed in the requested form")
    }))
}
