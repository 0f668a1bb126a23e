// SPDX-License-Identifier: MPL-2.0

//! The class `BufferGuard`: a buffer that this process holds, and the arrays over it.
#![allow(unsafe_code)] // the buffer protocol

use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::Arc;

use pyo3::exceptions::{PyAttributeError, PyBufferError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{IntoPyDict, PyDict, PyMemoryView, PyTuple};
use xmem_core::cuda::CudaError;
use xmem_core::{self as core, AccessMode, DType, FrameMeta};

use super::cuda;
use super::meta::{self, Shaped};
use crate::array::Array;
use crate::device::stream_of;
use crate::dtype;
use crate::errors::IntoPyErr;
use crate::interfaces::{cuda as cuda_array, dlpack};
use crate::keeper::Keeper;
use crate::number::{count as number, time_or_none};
use crate::open_buffer::{OpenBuffer, Pool, gone, wait_until_written};
use crate::signals::duration;
use crate::wanted;

/// A buffer of a pool, for as long as this lives, and the arrays over it.
#[pyclass(frozen, weakref, module = "xmem")]
#[derive(Debug)]
pub(crate) struct BufferGuard(Arc<OpenBuffer>);

const ON_DEVICE: &str = "this buffer lies on a CUDA device, where the CPU cannot read it: use its cuda_ptr there, or copy_to_cpu()";

/// Bytes that were asked for, or published.
fn size(guard: &core::BufferGuard) -> usize {
    usize::try_from(guard.meta().size).unwrap_or(usize::MAX)
}

impl BufferGuard {
    pub(super) fn new(pool: Pool, guard: core::BufferGuard) -> Self {
        Self(Arc::new(OpenBuffer::new(pool, guard)))
    }

    fn with<T>(&self, f: impl FnOnce(&mut core::BufferGuard) -> PyResult<T>) -> PyResult<T> {
        self.0.with(f)
    }

    fn meta<T>(&self, f: impl FnOnce(&FrameMeta) -> T) -> PyResult<T> {
        self.with(|guard| Ok(f(guard.meta())))
    }

    /// The buffer on its device. `None`: it lies in host memory.
    fn on_device(&self, py: Python<'_>) -> PyResult<Option<Array>> {
        if self.0.ordinal().is_none() {
            return Ok(None);
        }
        let frame = self.0.frame(py)?;
        let (shaped, dtype, ptr, len) = self.with(|guard| {
            let ptr = match &frame {
                Some(frame) => frame.parts().first().map_or(0, |(ptr, _)| *ptr),
                None => guard.as_cuda_ptr().map_err(IntoPyErr::into_py_err)?,
            };
            let len = size(guard);
            let shaped = Shaped::new(guard.meta(), len);
            Ok((shaped, guard.meta().dtype, ptr, len))
        })?;
        // Bytes have a type of their own where the metadata do not fit.
        let dtype = if shaped.item == dtype.size() {
            dtype
        } else {
            DType::U8
        };
        let keeper = match frame {
            Some(frame) => Keeper::Device(frame),
            None => Keeper::Buffer(self.0.clone()),
        };
        let bytes = (ptr::without_provenance(ptr as usize), len);
        let array = Array::new(keeper, bytes, 0, &shaped.shape, &shaped.strides, dtype);
        let array = array.ok_or_else(|| {
            PyBufferError::new_err("the buffer does not begin at a multiple of its elements' size")
        });
        array.map(Some)
    }
}

#[pymethods]
impl BufferGuard {
    /// The buffer's number, which other processes get it by: one of this use of the buffer.
    #[getter]
    fn meta_index(&self) -> PyResult<u32> {
        self.with(|guard| Ok(guard.meta_index()))
    }

    /// The number of the buffer's memory, as `preallocate_cpu` returns it: the same for each use.
    #[getter]
    fn buffer(&self) -> PyResult<u32> {
        self.with(|guard| Ok(guard.buffer()))
    }

    /// The number of the CUDA device that it lies on; None: in host memory.
    #[getter]
    fn device(&self) -> Option<u32> {
        self.0.ordinal()
    }

    /// Its size in bytes.
    #[getter]
    fn size(&self) -> PyResult<usize> {
        self.with(|guard| Ok(size(guard)))
    }

    /// Whether it can only be read.
    #[getter]
    fn readonly(&self) -> PyResult<bool> {
        self.with(|guard| Ok(guard.mode() == AccessMode::ReadOnly))
    }

    /// The address of its first byte, for as long as the guard lives.
    #[getter]
    fn cpu_ptr(&self) -> PyResult<usize> {
        self.with(|guard| {
            let bytes = guard.as_cpu_slice().map_err(IntoPyErr::into_py_err)?;
            Ok(bytes.as_ptr() as usize)
        })
    }

    /// The same, to be written: an error for a buffer that was got for reading.
    #[getter]
    fn cpu_ptr_mut(&self) -> PyResult<usize> {
        self.with(|guard| {
            let bytes = guard.as_cpu_slice_mut().map_err(IntoPyErr::into_py_err)?;
            Ok(bytes.as_mut_ptr() as usize)
        })
    }

    /// The address on its CUDA device.
    #[getter]
    fn cuda_ptr(&self, py: Python<'_>) -> PyResult<u64> {
        // A reader waits until it is written.
        match self.with(|guard| Ok(guard.clone_ref().ok()))? {
            Some(reading) => {
                let reading = wait_until_written(py, reading)?;
                py.detach(move || reading.as_cuda_ptr())
            }
            None => self.with(|guard| Ok(guard.as_cuda_ptr()))?,
        }
        .map_err(IntoPyErr::into_py_err)
    }

    /// The same, to be written.
    #[getter]
    fn cuda_ptr_mut(&self) -> PyResult<u64> {
        self.with(|guard| {
            let is_read = guard.mode() == AccessMode::ReadOnly && guard.is_on_device();
            let ptr = if is_read {
                Err(CudaError::ReadOnly)
            } else {
                guard.as_cuda_ptr_mut()
            };
            ptr.map_err(IntoPyErr::into_py_err)
        })
    }

    /// The shape, if one was set.
    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyTuple>>> {
        let shape = self.meta(|meta| {
            let shape = meta.shape.get(..usize::from(meta.ndim))?;
            (meta.ndim > 0).then(|| shape.to_vec())
        })?;
        shape.map(|shape| PyTuple::new(py, shape)).transpose()
    }

    /// Type of one element.
    #[getter]
    fn dtype(&self) -> PyResult<&'static str> {
        self.meta(|meta| dtype::name(meta.dtype))
    }

    /// What the bytes are, such as "image/raw".
    #[getter]
    fn content_type(&self) -> PyResult<String> {
        self.meta(|meta| meta.content_type.as_str().to_owned())
    }

    /// The process that made it.
    #[getter]
    fn producer(&self) -> PyResult<String> {
        self.meta(|meta| meta.producer.as_str().to_owned())
    }

    /// When it is to be presented, in nanoseconds on CLOCK_MONOTONIC.
    #[getter]
    fn timestamp(&self) -> PyResult<Option<i64>> {
        self.meta(|meta| meta.timestamp)
    }

    /// Number of the buffer's publication in its pool; 0 before.
    #[getter]
    fn sequence(&self) -> PyResult<u64> {
        self.with(|guard| Ok(guard.info().sequence))
    }

    /// Describes the buffer for its readers. What is not given does not change.
    #[pyo3(signature = (*, shape=None, dtype=None, content_type=None, producer=None, timestamp=None))]
    fn set_meta(
        &self,
        shape: Option<&Bound<'_, PyAny>>,
        dtype: Option<&Bound<'_, PyAny>>,
        content_type: Option<&str>,
        producer: Option<&str>,
        #[pyo3(from_py_with = time_or_none)] timestamp: Option<i64>,
    ) -> PyResult<()> {
        let shape = shape.map(wanted::shape).transpose()?;
        let dtype = dtype.map(dtype::parse).transpose()?;
        self.with(|guard| {
            let mut meta = guard.meta().clone();
            if let Some(dtype) = dtype {
                meta.dtype = dtype;
            }
            // With another type, a shape that was set before has another size.
            let known = dtype.and_then(|_| meta.shape.get(..usize::from(meta.ndim)));
            let known = known.filter(|shape| !shape.is_empty()).map(<[u64]>::to_vec);
            if let Some(shape) = shape.or(known) {
                let size = size(guard);
                meta::set_shape(&mut meta, &shape, size)?;
            }
            if let Some(text) = content_type {
                meta.content_type = text.into();
            }
            if let Some(text) = producer {
                meta.producer = text.into();
            }
            meta.timestamp = timestamp.or(meta.timestamp);
            guard.set_meta(meta).map_err(IntoPyErr::into_py_err)
        })
    }

    /// One more guard for the same buffer. Only of a buffer that is published.
    fn clone_ref(&self) -> PyResult<Self> {
        let pool = self.0.pool()?;
        let guard = self.with(|guard| guard.clone_ref().map_err(IntoPyErr::into_py_err))?;
        Ok(Self::new(pool, guard))
    }

    /// A copy on a CUDA device, to be written: a buffer that this process acquired.
    #[pyo3(signature = (device_id=0))]
    fn copy_to_cuda(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = number)] device_id: i32,
    ) -> PyResult<Self> {
        let pool = self.0.pool()?;
        let copy = self
            .0
            .aside(py, |guard| cuda::copy_to_device(guard, device_id))?;
        Ok(Self::new(pool, copy))
    }

    /// The same, by the name that it has between devices.
    fn copy_to_device(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = number)] device_id: i32,
    ) -> PyResult<Self> {
        self.copy_to_cuda(py, device_id)
    }

    /// A copy in host memory, to be written: a buffer that this process acquired.
    fn copy_to_cpu(&self, py: Python<'_>) -> PyResult<Self> {
        let pool = self.0.pool()?;
        let copy = self.0.aside(py, |guard| {
            guard.copy_to_cpu().map_err(IntoPyErr::into_py_err)
        })?;
        Ok(Self::new(pool, copy))
    }

    /// Gives the buffer up without releasing it. One that is being written is published, and kept until it was read as often as
    /// its count. One that is being read stays held until the pool's `release`. Returns its index.
    #[pyo3(signature = (*, stream=None, timeout=None))]
    fn forget(
        &self,
        py: Python<'_>,
        stream: Option<Bound<'_, PyAny>>,
        timeout: Option<f64>,
    ) -> PyResult<u32> {
        let stream = stream.as_ref().map(stream_of).transpose()?;
        let timeout = duration(timeout)?;
        self.with(|guard| {
            if timeout.is_some() && guard.mode() == AccessMode::ReadOnly {
                return Err(PyValueError::new_err(
                    "a buffer that is read is kept until the pool's release(): forget it without a timeout",
                ));
            }
            cuda::check_stream(guard, stream)?;
            match timeout {
                Some(timeout) => guard.set_timeout(timeout).map_err(IntoPyErr::into_py_err),
                None => Ok(()),
            }
        })?;
        if stream.is_none() {
            self.0.settle(py)?;
        }
        let guard = self.0.take()?.guard.into_inner().ok_or_else(gone)?;
        let forgotten = py.detach(|| match stream {
            Some(stream) if guard.mode() == AccessMode::ReadWrite => guard.forget_on(stream),
            _ => guard.forget(),
        });
        forgotten.map_err(IntoPyErr::into_py_err)
    }

    /// Gives the buffer back; if there are arrays over it, with the last of these. One on a device that is read: when the
    /// stream is done with it.
    #[pyo3(signature = (*, stream=None))]
    fn release(&self, py: Python<'_>, stream: Option<Bound<'_, PyAny>>) -> PyResult<()> {
        let stream = stream.as_ref().map(stream_of).transpose()?;
        if stream.is_some() {
            self.with(|guard| cuda::check_stream(guard, stream))?;
        }
        match (self.0.release(), stream) {
            (Some(held), Some(stream)) => cuda::release_on(py, held.guard, stream),
            (held, _) => {
                self.0.end(held);
                Ok(())
            }
        }
    }

    fn __enter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    /// Gives the buffer back; one that is written, or was taken to be edited, is empty then. If there are arrays over it, with the
    /// last of these.
    fn discard(&self) {
        self.0.discard();
    }

    /// After an exception, what is written may be half done, and is discarded.
    fn __exit__(
        &self,
        py: Python<'_>,
        kind: Option<Bound<'_, PyAny>>,
        _error: Option<Bound<'_, PyAny>>,
        _trace: Option<Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        if kind.is_some() {
            self.discard();
            Ok(())
        } else {
            self.release(py, None)
        }
    }

    fn __bool__(&self) -> bool {
        true
    }

    fn __len__(&self) -> PyResult<usize> {
        self.size()
    }

    /// NumPy asks for this when the buffer protocol fails, and would otherwise make an array of one object.
    #[pyo3(signature = (dtype=None, copy=None))]
    fn __array__<'py>(
        slf: &Bound<'py, Self>,
        dtype: Option<Bound<'py, PyAny>>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let py = slf.py();
        let view = PyMemoryView::from(slf.as_any())?;
        let array = py.import("numpy")?.call_method1("asarray", (view,))?;
        match dtype {
            Some(dtype) => {
                let options = [("copy", copy.unwrap_or(false))].into_py_dict(py)?;
                array.call_method("astype", (dtype,), Some(&options))
            }
            None if copy == Some(true) => array.call_method0("copy"),
            None => Ok(array),
        }
    }

    /// For CuPy, Numba and others. Its readers keep this object. Waits until the bytes are written.
    #[getter]
    fn __cuda_array_interface__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        match self.on_device(py)? {
            Some(array) => cuda_array::of(py, &array),
            None => Err(PyAttributeError::new_err(
                "this buffer lies in host memory, and has no __cuda_array_interface__",
            )),
        }
    }

    /// For `torch.from_dlpack` and others.
    #[pyo3(signature = (*, stream=None, max_version=None, dl_device=None, copy=None))]
    fn __dlpack__(
        slf: &Bound<'_, Self>,
        stream: Option<Bound<'_, PyAny>>,
        max_version: Option<(u32, u32)>,
        dl_device: Option<(i32, i32)>,
        copy: Option<bool>,
    ) -> PyResult<Py<PyAny>> {
        let py = slf.py();
        if let Some(array) = slf.get().on_device(py)? {
            let request = dlpack::Request {
                stream,
                max_version,
                dl_device,
                copy,
            };
            return dlpack::export(py, &array, request);
        }
        let options = PyDict::new(py);
        options.set_item("stream", stream)?;
        options.set_item("max_version", max_version)?;
        options.set_item("dl_device", dl_device)?;
        options.set_item("copy", copy)?;
        let array = Self::__array__(slf, None, None)?;
        Ok(array
            .call_method("__dlpack__", (), Some(&options))?
            .unbind())
    }

    fn __dlpack_device__(&self) -> (i32, i32) {
        dlpack::device_of(self.0.ordinal())
    }

    fn __repr__(&self) -> String {
        let repr = self.with(|guard| {
            let mode = match guard.mode() {
                AccessMode::ReadOnly => "reading",
                AccessMode::ReadWrite => "writing",
            };
            let index = guard.meta_index();
            Ok(format!("<xmem.BufferGuard {index}, {mode}>"))
        });
        repr.unwrap_or_else(|_| "<xmem.BufferGuard, released>".into())
    }

    /// # Safety
    ///
    /// `view` is Python's, to be filled in.
    unsafe fn __getbuffer__(
        slf: Bound<'_, Self>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        // SAFETY: the caller's promise. Python wants it empty when the call fails.
        unsafe { (*view).obj = ptr::null_mut() };
        let this = slf.get();
        let (readonly, address, shaped) = this.with(|guard| {
            if guard.is_on_device() {
                return Err(PyBufferError::new_err(ON_DEVICE));
            }
            let readonly = guard.mode() == AccessMode::ReadOnly;
            if readonly && flags & ffi::PyBUF_WRITABLE != 0 {
                return Err(PyBufferError::new_err(
                    "the buffer was got for reading: use get_mut or acquire_cpu to write",
                ));
            }
            let (address, len) = if readonly {
                let bytes = guard.as_cpu_slice().map_err(IntoPyErr::into_py_err)?;
                (bytes.as_ptr().cast_mut(), bytes.len())
            } else {
                let bytes = guard.as_cpu_slice_mut().map_err(IntoPyErr::into_py_err)?;
                (bytes.as_mut_ptr(), bytes.len())
            };
            Ok((readonly, address, Shaped::new(guard.meta(), len)))
        })?;
        let shaped = Box::new(shaped);
        if flags & ffi::PyBUF_F_CONTIGUOUS == ffi::PyBUF_F_CONTIGUOUS && !shaped.is_f_contiguous() {
            return Err(PyBufferError::new_err(
                "buffers are in C order, and Fortran order was asked for: use numpy.asfortranarray(buffer), a copy",
            ));
        }
        let bytes = shaped.item
            * shaped
                .shape
                .iter()
                .map(|n| n.cast_unsigned())
                .product::<usize>();
        this.0.begin_view()?;
        let simple = flags & ffi::PyBUF_STRIDES != ffi::PyBUF_STRIDES && flags & ffi::PyBUF_ND == 0;
        // SAFETY: `view` is valid for writes. The memory is the slot's, which the guard keeps, and the guard stays until
        // the last view is gone; shape and strides lie in a box that `__releasebuffer__` frees.
        unsafe {
            (*view).obj = slf.clone().into_any().into_ptr();
            (*view).buf = address.cast::<c_void>();
            (*view).readonly = c_int::from(readonly);
            (*view).itemsize = shaped.item.cast_signed();
            (*view).len = bytes.cast_signed();
            (*view).format = if flags & ffi::PyBUF_FORMAT == ffi::PyBUF_FORMAT {
                shaped.format.as_ptr().cast_mut()
            } else {
                ptr::null_mut()
            };
            (*view).ndim = if simple {
                1
            } else {
                shaped.shape.len() as c_int
            };
            (*view).shape = if simple {
                ptr::null_mut()
            } else {
                shaped.shape.as_ptr().cast_mut()
            };
            (*view).strides = if flags & ffi::PyBUF_STRIDES == ffi::PyBUF_STRIDES {
                shaped.strides.as_ptr().cast_mut()
            } else {
                ptr::null_mut()
            };
            (*view).suboffsets = ptr::null_mut();
            (*view).internal = Box::into_raw(shaped).cast();
        }
        Ok(())
    }

    /// # Safety
    ///
    /// `view` was filled in by `__getbuffer__`.
    unsafe fn __releasebuffer__(&self, view: *mut ffi::Py_buffer) {
        // SAFETY: the box that `__getbuffer__` made, once per view.
        drop(unsafe { Box::from_raw((*view).internal.cast::<Shaped>()) });
        self.0.end_view();
    }
}
