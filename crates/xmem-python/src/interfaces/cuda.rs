// SPDX-License-Identifier: MPL-2.0

//! The CUDA array interface, version 3. It has no lifetimes: its readers keep the object that they read.

use pyo3::exceptions::{PyAttributeError, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use crate::array::Array;
use crate::device::Use;
use crate::dtype;
use crate::errors::IntoPyResult;
use crate::keeper::{Export, Keeper};

/// Waits until the bytes are written, because not all libraries wait for a stream that is stated here, and none states the stream
/// that it uses.
pub(crate) fn of<'py>(py: Python<'py>, array: &Array) -> PyResult<Bound<'py, PyDict>> {
    if array.device().is_none() {
        return Err(PyAttributeError::new_err(
            "this frame is in host memory, so it has no __cuda_array_interface__",
        ));
    }
    let export = Export::new(&array.keeper)?;
    let typestr = dtype::typestr(array.dtype).ok_or_else(|| {
        PyTypeError::new_err(
            "the CUDA array interface does not support bfloat16: use torch.from_dlpack instead",
        )
    })?;
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
    let interface = PyDict::new(py);
    interface.set_item("version", 3)?;
    interface.set_item("typestr", typestr)?;
    interface.set_item("shape", PyTuple::new(py, &array.shape)?)?;
    if array.is_c_contiguous() {
        interface.set_item("strides", py.None())?;
    } else {
        interface.set_item("strides", PyTuple::new(py, &array.strides)?)?;
    }
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
