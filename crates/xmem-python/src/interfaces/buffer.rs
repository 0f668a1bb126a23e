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

/// A view that a library got. It is the view's `obj`, which a library keeps that releases the buffer at once and goes on using its
/// address, such as torch.frombuffer. So the memory is held, and the view counted, as long as anyone may use it.
#[pyclass(frozen, module = "xmem._xmem", name = "_View")]
#[derive(Debug)]
pub(crate) struct View {
    array: Array,
    export: Export,
    owner: Py<PyAny>,
}

#[pymethods]
impl View {
    /// The frame, plane or buffer.
    #[getter]
    fn obj(&self, py: Python<'_>) -> Py<PyAny> {
        self.owner.clone_ref(py)
    }

    unsafe fn __getbuffer__(
        slf: Bound<'_, Self>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        // SAFETY: Python passes a view to be initialised.
        unsafe { describe(view, flags, slf) }
    }
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
    // The request of numpy.ndarray(buffer=...), which keeps the owner, and not the view.
    let is_forgotten = wants(flags, ffi::PyBUF_ANY_CONTIGUOUS) && !wants(flags, ffi::PyBUF_FORMAT);
    if is_forgotten && array.keeper.ends_by_a_call() {
        return Err(PyBufferError::new_err(
            "a call such as numpy.ndarray(buffer=...) does not hold this memory, which is reused after publish(), forget() \
             or release(): use numpy.asarray(...), or pass a memoryview(...) of it",
        ));
    }
    let export = Export::new(&array.keeper)?;
    let kept = View {
        array,
        export,
        owner: owner.clone().unbind(),
    };
    // SAFETY: promised by the caller.
    unsafe { describe(view, flags, Bound::new(owner.py(), kept)?) }
}

/// Initialises a view.
///
/// # Safety
///
/// `view` is the argument of `__getbuffer__`.
unsafe fn describe(view: *mut ffi::Py_buffer, flags: c_int, kept: Bound<'_, View>) -> PyResult<()> {
    // SAFETY: promised by the caller. Python requires a null owner if the call fails.
    unsafe { (*view).obj = ptr::null_mut() };
    let View { array, export, .. } = kept.get();
    let format = dtype::of(array.dtype).format.ok_or_else(|| {
        PyBufferError::new_err(
            "the buffer protocol does not support bfloat16: use torch.from_dlpack instead",
        )
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
            "the array is in C order, but you requested Fortran order: copy it with numpy.asfortranarray"
        } else {
            "the rows of this frame have padding between them, but you requested contiguous memory: use \
             numpy.asarray(frame), or frame.copy()"
        }));
    }
    // A reader gets a writable view if the memory may be written, like a view of a NumPy array.
    if wants(flags, ffi::PyBUF_WRITABLE) && !export.is_writable() {
        return Err(PyBufferError::new_err(array.keeper.why_read_only()));
    }
    // SAFETY: promised by the caller. The view points into its `obj`, which is frozen, and to static names of formats.
    unsafe {
        (*view).buf = array.ptr().cast_mut().cast();
        (*view).len = array.nbytes();
        (*view).readonly = c_int::from(!export.is_writable());
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
        (*view).internal = ptr::null_mut();
        (*view).obj = kept.into_ptr();
    }
    Ok(())
}
