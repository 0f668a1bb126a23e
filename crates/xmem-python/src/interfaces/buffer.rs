// SPDX-License-Identifier: MPL-2.0

//! Python's buffer protocol.
#![allow(unsafe_code)] // its C structure

use std::ffi::c_int;
use std::ptr;

use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;

use crate::array::Array;
use crate::dtype;
use crate::keeper::Export;

fn wants(flags: c_int, what: c_int) -> bool {
    flags & what == what
}

/// The state of a view, kept until it is released.
struct View {
    array: Array,
    _export: Export,
}

/// Initialises a view of `array` for `owner`.
///
/// # Safety
///
/// `view` is the argument of `__getbuffer__`.
pub(crate) unsafe fn fill(
    view: *mut ffi::Py_buffer,
    flags: c_int,
    array: PyResult<Array>,
    owner: &Bound<'_, PyAny>,
) -> PyResult<()> {
    // SAFETY: promised by the caller. Python requires a null owner if the call fails.
    unsafe { (*view).obj = ptr::null_mut() };
    let array = array?;
    if let Some(reason) = array.on_device() {
        return Err(PyBufferError::new_err(reason));
    }
    let format = dtype::format(array.dtype).ok_or_else(|| {
        PyBufferError::new_err("the buffer protocol has no bfloat16: use torch.from_dlpack instead")
    })?;
    let (c_contiguous, f_contiguous) = (array.is_c_contiguous(), array.is_f_contiguous());
    let fits = if wants(flags, ffi::PyBUF_C_CONTIGUOUS) {
        c_contiguous
    } else if wants(flags, ffi::PyBUF_F_CONTIGUOUS) {
        f_contiguous
    } else if wants(flags, ffi::PyBUF_ANY_CONTIGUOUS) {
        c_contiguous || f_contiguous
    } else {
        wants(flags, ffi::PyBUF_STRIDES) || c_contiguous
    };
    if !fits {
        return Err(PyBufferError::new_err(if c_contiguous {
            "the array is in C order, and Fortran order was asked for: use numpy.asfortranarray, a copy"
        } else {
            "rows of this frame have padding between them, and contiguous memory was asked for: \
             use numpy.asarray(frame), or frame.copy()"
        }));
    }
    // A reader gets a writable view if the memory may be written, like a view of a NumPy array.
    let export = Export::new(&array.keeper)?;
    if wants(flags, ffi::PyBUF_WRITABLE) && !export.is_writable() {
        return Err(PyBufferError::new_err(array.keeper.why_read_only()));
    }
    let is_writable = export.is_writable();
    let kept = Box::new(View {
        array,
        _export: export,
    });
    let array = &kept.array;
    // SAFETY: promised by the caller. The view points into the box, which `release` frees, and to static names of formats.
    unsafe {
        (*view).buf = array.ptr().cast_mut().cast();
        (*view).len = array.nbytes();
        (*view).readonly = c_int::from(!is_writable);
        (*view).itemsize = array.itemsize();
        (*view).format = if wants(flags, ffi::PyBUF_FORMAT) {
            format.as_ptr().cast_mut()
        } else {
            ptr::null_mut()
        };
        (*view).ndim = array.shape.len() as c_int;
        (*view).shape = if wants(flags, ffi::PyBUF_ND) {
            array.shape.as_ptr().cast_mut()
        } else {
            ptr::null_mut()
        };
        (*view).strides = if wants(flags, ffi::PyBUF_STRIDES) {
            array.strides.as_ptr().cast_mut()
        } else {
            ptr::null_mut()
        };
        (*view).suboffsets = ptr::null_mut();
        (*view).internal = Box::into_raw(kept).cast();
        (*view).obj = owner.clone().into_ptr();
    }
    Ok(())
}

/// Releases a view.
///
/// # Safety
///
/// `view` was initialised by `fill`, and is released once.
pub(crate) unsafe fn release(view: *mut ffi::Py_buffer) {
    // SAFETY: promised by the caller.
    let kept = unsafe { std::mem::replace(&mut (*view).internal, ptr::null_mut()) };
    if !kept.is_null() {
        // SAFETY: `fill` made this box, with this type.
        drop(unsafe { Box::from_raw(kept.cast::<View>()) });
    }
}
