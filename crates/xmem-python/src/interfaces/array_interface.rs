// SPDX-License-Identifier: MPL-2.0

//! The array interfaces of NumPy and of CUDA, version 3: dictionaries, which have no lifetimes. Their readers keep the object that they
//! read.

use pyo3::exceptions::{PyAttributeError, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use crate::array::Array;
use crate::device::Use;
use crate::dtype;
use crate::errors::IntoPyResult;
use crate::keeper::{Export, Keeper};

/// What both interfaces have in common. `no_bfloat16`: the error for that type.
fn interface<'py>(
    py: Python<'py>,
    array: &Array,
    no_bfloat16: &'static str,
) -> PyResult<Bound<'py, PyDict>> {
    let typestr = dtype::of(array.dtype).typestr;
    let typestr = typestr.ok_or_else(|| PyTypeError::new_err(no_bfloat16))?;
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
    Ok(interface)
}

/// An error for a slot that this process writes, because its views are counted, and readers of this interface cannot be.
pub(crate) fn numpy<'py>(py: Python<'py>, array: &Array) -> PyResult<Bound<'py, PyDict>> {
    // NumPy reads this after the buffer protocol failed, and shows only this error.
    let _may_be_read = Export::new(&array.keeper)?;
    if let Some(reason) = array.on_device() {
        return Err(PyTypeError::new_err(reason));
    }
    let interface = interface(
        py,
        array,
        "NumPy does not support bfloat16: use torch.from_dlpack instead",
    )?;
    if matches!(array.keeper, Keeper::Slot(_)) {
        return Err(PyAttributeError::new_err(
            "a frame that is being written has no __array_interface__: use numpy.asarray(frame)",
        ));
    }
    interface.set_item("data", (array.ptr().addr(), !array.keeper.is_writable()))?;
    Ok(interface)
}

/// Waits until the bytes are written, because not all libraries wait for a stream that is stated here, and none states the stream
/// that it uses.
pub(crate) fn cuda<'py>(py: Python<'py>, array: &Array) -> PyResult<Bound<'py, PyDict>> {
    if array.device().is_none() {
        return Err(PyAttributeError::new_err(
            "this frame is in host memory, so it has no __cuda_array_interface__",
        ));
    }
    let export = Export::new(&array.keeper)?;
    let interface = interface(
        py,
        array,
        "the CUDA array interface does not support bfloat16: use torch.from_dlpack instead",
    )?;
    array.keeper.wait(py)?;
    let keeper = &array.keeper;
    let given = py.detach(|| match keeper {
        Keeper::Slot(slot) => {
            slot.give_uncounted();
            Ok(())
        }
        keeper => keeper.give_to(Use::Anywhere),
    });
    given.into_py_result()?;
    let ptr = if array.nbytes() == 0 {
        0
    } else {
        array.ptr().addr()
    };
    interface.set_item("data", (ptr, !export.is_writable()))?;
    // Nothing must be waited for.
    interface.set_item("stream", py.None())?;
    Ok(interface)
}
