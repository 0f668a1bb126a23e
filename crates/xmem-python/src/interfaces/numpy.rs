// SPDX-License-Identifier: MPL-2.0

//! NumPy's array interface, version 3. It has no lifetimes: its readers keep the object that they read.

use pyo3::exceptions::{PyAttributeError, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use crate::array::Array;
use crate::dtype;
use crate::keeper::{Export, Keeper};

/// An error for a slot that this process writes, because its views are counted, and readers of this interface cannot be.
pub(crate) fn of<'py>(py: Python<'py>, array: &Array) -> PyResult<Bound<'py, PyDict>> {
    // NumPy reads this after the buffer protocol failed, and shows only this error.
    let _may_be_read = Export::new(&array.keeper)?;
    if let Some(reason) = array.on_device() {
        return Err(PyTypeError::new_err(reason));
    }
    let typestr = dtype::typestr(array.dtype).ok_or_else(|| {
        PyTypeError::new_err("NumPy does not support bfloat16: use torch.from_dlpack instead")
    })?;
    if matches!(array.keeper, Keeper::Slot(_)) {
        return Err(PyAttributeError::new_err(
            "a frame that is being written has no __array_interface__: use numpy.asarray(frame)",
        ));
    }
    let interface = PyDict::new(py);
    interface.set_item("version", 3)?;
    interface.set_item("typestr", typestr)?;
    interface.set_item("shape", PyTuple::new(py, &array.shape)?)?;
    // As NumPy's own arrays. Some readers, such as Pillow, take strides for gaps.
    if array.is_c_contiguous() {
        interface.set_item("strides", py.None())?;
    } else {
        interface.set_item("strides", PyTuple::new(py, &array.strides)?)?;
    }
    interface.set_item("data", (array.ptr().addr(), !array.keeper.is_writable()))?;
    Ok(interface)
}
