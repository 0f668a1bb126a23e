// SPDX-License-Identifier: MPL-2.0

//! The base class of frames and planes: an array for any library that takes arrays.
#![allow(unsafe_code)] // the buffer protocol

use std::ffi::c_int;
use std::sync::Arc;

use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyMemoryView, PyTuple};

use crate::array::Array;
use crate::errors::not_pickled;
use crate::interfaces::{array_interface, buffer, dlpack};
use crate::layout::Arrays;
use crate::{device, dtype};

/// The base class of frames and planes. They are arrays for any library that takes arrays.
#[pyclass(frozen, subclass, weakref, module = "xmem._xmem", name = "_Array")]
#[derive(Debug)]
pub(crate) struct Base(pub(crate) Arc<Arrays>);

impl Base {
    fn whole(&self) -> PyResult<&Array> {
        self.0.whole()
    }

    /// All planes have the same type and device.
    fn first(&self) -> &Array {
        &self.0.planes[0]
    }
}

/// Makes objects of a class with this base class, whose arrays are in this field.
macro_rules! objects {
    ($class:ty, $arrays:tt) => {
        impl<'py> pyo3::IntoPyObject<'py> for $class {
            type Target = Self;
            type Output = Bound<'py, Self>;
            type Error = PyErr;

            fn into_pyobject(self, py: Python<'py>) -> PyResult<Bound<'py, Self>> {
                let base = $crate::base::Base(self.$arrays.clone());
                Bound::new(py, pyo3::PyClassInitializer::from(base).add_subclass(self))
            }
        }
    };
}

pub(crate) use objects;

#[pymethods]
impl Base {
    /// The number of elements in each dimension. Raises AttributeError if the frame has several planes.
    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, &self.0.whole_for_attribute()?.shape)
    }

    /// The number of bytes from one element to the next in each dimension. Raises AttributeError when `shape` does.
    #[getter]
    fn strides<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, &self.0.whole_for_attribute()?.strides)
    }

    /// The number of dimensions. Raises AttributeError when `shape` does.
    #[getter]
    fn ndim(&self) -> PyResult<usize> {
        Ok(self.0.whole_for_attribute()?.shape.len())
    }

    /// The type of the elements: a numpy.dtype, or a str for bfloat16 or without NumPy.
    #[getter]
    fn dtype<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        dtype::object(py, self.first().dtype)
    }

    /// The number of elements. Raises AttributeError when `shape` does.
    #[getter]
    fn size(&self) -> PyResult<isize> {
        Ok(self.0.whole_for_attribute()?.shape.iter().product())
    }

    /// The elements as bytes in C order, without padding.
    fn tobytes<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        PyMemoryView::from(slf.as_any())?.call_method0("tobytes")
    }

    /// The size of the elements in bytes, without padding.
    #[getter]
    fn nbytes(&self) -> isize {
        self.0.nbytes()
    }

    /// Whether the array is read-only.
    #[getter]
    fn readonly(&self) -> bool {
        !self.first().keeper.is_writable()
    }

    /// The memory of the elements: "cpu", or "cuda:N" for a CUDA device.
    #[getter]
    fn device(&self) -> String {
        device::name(self.first().device())
    }

    /// A frame is true, even if its length is 0.
    fn __bool__(&self) -> bool {
        true
    }

    fn __len__(&self) -> PyResult<usize> {
        self.whole().map(Array::len)
    }

    unsafe fn __getbuffer__(
        slf: Bound<'_, Self>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        let whole = slf.get().whole().cloned();
        let not_whole = |error: PyErr| PyBufferError::new_err(error.value(slf.py()).to_string());
        // SAFETY: Python passes a view to be initialised.
        unsafe { buffer::fill(view, flags, whole.map_err(not_whole), slf.as_any()) }
    }

    /// Never called, because views have another owner. For a class with this method, numpy.frombuffer makes a memoryview and
    /// keeps that, instead of this object.
    unsafe fn __releasebuffer__(&self, _view: *mut ffi::Py_buffer) {}

    #[getter]
    fn __array_interface__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyDict>> {
        array_interface::numpy(slf.py(), slf.get().whole()?)
    }

    #[getter]
    fn __cuda_array_interface__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyDict>> {
        array_interface::cuda(slf.py(), slf.get().whole()?)
    }

    #[pyo3(signature = (*, stream=None, max_version=None, dl_device=None, copy=None))]
    fn __dlpack__(
        &self,
        py: Python<'_>,
        stream: Option<Bound<'_, PyAny>>,
        max_version: Option<(u32, u32)>,
        dl_device: Option<(i32, i32)>,
        copy: Option<bool>,
    ) -> PyResult<Py<PyAny>> {
        dlpack::export(py, self.whole()?, stream, max_version, dl_device, copy)
    }

    fn __reduce__(slf: &Bound<'_, Self>) -> PyResult<()> {
        Err(not_pickled(
            slf,
            "its bytes are in shared memory: send it through an xmem.Channel, call xmem.multiprocessing.install() in both \
             processes and use a queue, or pickle a copy, such as numpy.array(frame)",
        ))
    }

    fn __dlpack_device__(&self) -> (i32, i32) {
        dlpack::device(self.first())
    }
}
