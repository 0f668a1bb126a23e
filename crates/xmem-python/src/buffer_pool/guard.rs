// SPDX-License-Identifier: MPL-2.0

//! The class `BufferGuard`: a buffer that this process holds, and the arrays over it.
#![allow(unsafe_code)] // the buffer protocol

use std::ffi::c_int;
use std::ptr;
use std::sync::Arc;

use pyo3::exceptions::{PyBufferError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{IntoPyDict, PyDict, PyMemoryView, PyTuple};
use xmem_core::cuda::CudaError;
use xmem_core::{self as core, AccessMode, FrameMeta};

use super::Reader;
use super::cuda;
use crate::about;
use crate::array::Array;
use crate::device::stream_of;
use crate::dtype;
use crate::errors::{IntoPyResult, not_pickled};
use crate::interfaces::{array_interface, buffer, dlpack};
use crate::keeper::Keeper;
use crate::layout::{self, Part};
use crate::number::{count as number, time_or_none};
use crate::open_buffer::{OpenBuffer, Pool, gone, wait_until_written};
use crate::signals::duration;
use crate::wanted;

/// A buffer of a pool. It is held as long as this object or an array over it exists (`numpy.asarray(buffer)`,
/// `memoryview`).
#[pyclass(frozen, weakref, module = "xmem")]
#[derive(Debug)]
pub(crate) struct BufferGuard(Arc<OpenBuffer>);

const ON_DEVICE: &str = "this buffer is on a CUDA device, where the CPU cannot read it: use its cuda_ptr on the device, or \
     call copy_to_cpu()";

/// The bytes of a buffer in host memory. Views are writable if the guard is.
fn cpu_bytes(guard: &mut core::BufferGuard) -> PyResult<(*const u8, usize)> {
    let bytes = match guard.mode() {
        AccessMode::ReadOnly => guard.as_cpu_slice().map(|it| (it.as_ptr(), it.len())),
        AccessMode::ReadWrite => guard
            .as_cpu_slice_mut()
            .map(|it| (it.as_mut_ptr().cast_const(), it.len())),
    };
    bytes.into_py_result()
}

/// The acquired or published size in bytes.
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

    /// The array over the buffer.
    fn array(&self, py: Python<'_>) -> PyResult<Array> {
        let frame = match self.0.ordinal() {
            Some(_) => self.0.frame(py)?,
            None => None,
        };
        self.with(|guard| {
            let on_device = |ptr| (ptr::without_provenance(ptr as usize), size(guard));
            let bytes = match &frame {
                Some(frame) => on_device(frame.ptr()),
                None if guard.is_on_device() => on_device(guard.as_cuda_ptr().into_py_result()?),
                None => cpu_bytes(guard)?,
            };
            let part = Part {
                keeper: match frame {
                    Some(frame) => Keeper::Device(frame),
                    None => Keeper::Buffer(self.0.clone()),
                },
                start: 0,
                bytes,
            };
            layout::of_buffer(guard.meta(), part).ok_or_else(|| {
                PyBufferError::new_err(
                    "the start of the buffer isn't aligned to the size of its elements",
                )
            })
        })
    }
}

#[pymethods]
impl BufferGuard {
    fn __reduce__(slf: &Bound<'_, Self>) -> PyResult<()> {
        Err(not_pickled(
            slf,
            "its buffer is in shared memory: call forget, send the number that it returns, and call get with it in the other process",
        ))
    }

    /// The name of the pool.
    #[getter]
    fn pool(&self) -> PyResult<String> {
        Ok(self.0.pool()?.name().to_owned())
    }

    /// The number of this use of the buffer, for `get` in other processes.
    #[getter]
    fn meta_index(&self) -> PyResult<u32> {
        self.with(|guard| Ok(guard.meta_index()))
    }

    /// The index of the buffer's memory, as returned by `preallocate_cpu`. Each use of the buffer has the same index.
    #[getter]
    fn buffer(&self) -> PyResult<u32> {
        self.with(|guard| Ok(guard.buffer()))
    }

    /// The number of the CUDA device. None: host memory.
    #[getter]
    fn device(&self) -> Option<u32> {
        self.0.ordinal()
    }

    /// The size in bytes.
    #[getter]
    fn size(&self) -> PyResult<usize> {
        self.with(|guard| Ok(size(guard)))
    }

    /// Whether the buffer is read-only.
    #[getter]
    fn readonly(&self) -> PyResult<bool> {
        self.with(|guard| Ok(guard.mode() == AccessMode::ReadOnly))
    }

    /// The address of the first byte, as long as the guard exists.
    #[getter]
    fn cpu_ptr(&self) -> PyResult<usize> {
        self.with(|guard| {
            let bytes = guard.as_cpu_slice().into_py_result()?;
            Ok(bytes.as_ptr() as usize)
        })
    }

    /// The address for writing. Raises an error for a buffer from `get`.
    #[getter]
    fn cpu_ptr_mut(&self) -> PyResult<usize> {
        self.with(|guard| {
            let bytes = guard.as_cpu_slice_mut().into_py_result()?;
            Ok(bytes.as_mut_ptr() as usize)
        })
    }

    /// The address on the device. For a reader, waits until the buffer is written.
    #[getter]
    fn cuda_ptr(&self, py: Python<'_>) -> PyResult<u64> {
        // A reader waits until the buffer is written.
        match self.with(|guard| Ok(guard.clone_ref().ok()))? {
            Some(reading) => {
                let reading = wait_until_written(py, reading)?;
                py.detach(move || reading.as_cuda_ptr())
            }
            None => self.with(|guard| Ok(guard.as_cuda_ptr()))?,
        }
        .into_py_result()
    }

    /// The address on the device, for writing.
    #[getter]
    fn cuda_ptr_mut(&self) -> PyResult<u64> {
        self.with(|guard| {
            let is_read = guard.mode() == AccessMode::ReadOnly && guard.is_on_device();
            let ptr = if is_read {
                Err(CudaError::ReadOnly)
            } else {
                guard.as_cuda_ptr_mut()
            };
            ptr.into_py_result()
        })
    }

    /// The shape, if one was set.
    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyTuple>>> {
        let shape = self.meta(|meta| {
            let shape = meta.layout.shape.get(..usize::from(meta.layout.ndim))?;
            (meta.layout.ndim > 0).then(|| shape.to_vec())
        })?;
        shape.map(|shape| PyTuple::new(py, shape)).transpose()
    }

    /// The type of the elements, like that of a frame.
    #[getter]
    fn dtype<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        dtype::object(py, self.meta(|meta| meta.layout.dtype)?)
    }

    /// The type of the content, such as "image/raw".
    #[getter]
    fn content_type(&self) -> PyResult<String> {
        self.meta(|meta| meta.layout.content_type.as_str().to_owned())
    }

    /// The name of the program that wrote it.
    #[getter]
    fn producer(&self) -> PyResult<String> {
        self.meta(|meta| meta.layout.producer.as_str().to_owned())
    }

    /// The presentation time in nanoseconds on CLOCK_MONOTONIC.
    #[getter]
    fn timestamp(&self) -> PyResult<Option<i64>> {
        self.meta(|meta| meta.timestamp)
    }

    /// The sequence number with which the buffer was published, or 0 before.
    #[getter]
    fn sequence(&self) -> PyResult<u64> {
        self.with(|guard| Ok(guard.info().sequence))
    }

    /// Sets the description for readers. Arguments that are None change nothing.
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
        let content_type = content_type.map(about::content_type).transpose()?;
        let producer = producer.map(about::producer).transpose()?;
        self.with(|guard| {
            let mut meta = guard.meta().clone();
            let layout = meta.layout_mut();
            layout.dtype = dtype.unwrap_or(layout.dtype);
            // With another type, the size of an existing shape changes.
            let known = dtype.and_then(|_| layout.shape.get(..usize::from(layout.ndim)));
            let known = known.filter(|shape| !shape.is_empty()).map(<[u64]>::to_vec);
            if let Some(shape) = shape.or(known) {
                let size = size(guard);
                if wanted::set_shape(layout, &shape)? > size {
                    return Err(PyValueError::new_err(format!(
                        "an array of shape {shape:?} and type {} does not fit into {size} bytes",
                        dtype::name(layout.dtype)
                    )));
                }
            }
            layout.content_type = content_type.unwrap_or(layout.content_type);
            layout.producer = producer.unwrap_or(layout.producer);
            meta.timestamp = timestamp.or(meta.timestamp);
            guard.set_meta(meta).into_py_result()
        })
    }

    /// Returns another guard for the same, already published buffer.
    fn clone_ref(&self) -> PyResult<Self> {
        let pool = self.0.pool()?;
        let guard = self.with(|guard| guard.clone_ref().into_py_result())?;
        Ok(Self::new(pool, guard))
    }

    /// Like `copy_to_cpu`, but on a CUDA device.
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

    /// Like `copy_to_cuda`.
    fn copy_to_device(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = number)] device_id: i32,
    ) -> PyResult<Self> {
        self.copy_to_cuda(py, device_id)
    }

    /// Returns a writable copy in host memory, in a buffer that this process acquires.
    fn copy_to_cpu(&self, py: Python<'_>) -> PyResult<Self> {
        let pool = self.0.pool()?;
        let copy = self
            .0
            .aside(py, |guard| guard.copy_to_cpu().into_py_result())?;
        Ok(Self::new(pool, copy))
    }

    /// Publishes a buffer that is being written. Keeps a buffer that is being read until `BufferPool.release`. Returns
    /// the index.
    ///
    /// to: keep the buffer until each of these readers has read the buffer or ended. Other reads and the buffer's count do not
    /// matter.
    /// stream: the stream that writes a buffer on a device. Readers wait until it has completed its present work.
    /// Default: the default stream, and the streams of the arrays.
    /// timeout: the time in seconds after which an unread buffer is removed. A PoolWarning names the connected processes that
    /// did not read the buffer.
    /// Raises ViewsExist while arrays over the buffer exist, and CudaError for a stream that is being captured into a graph.
    /// The buffer is not changed then.
    #[pyo3(signature = (*, to=None, stream=None, timeout=None))]
    fn forget(
        &self,
        py: Python<'_>,
        to: Option<Vec<PyRef<'_, Reader>>>,
        stream: Option<Bound<'_, PyAny>>,
        timeout: Option<f64>,
    ) -> PyResult<u32> {
        let stream = stream.as_ref().map(stream_of).transpose()?;
        let timeout = duration(timeout)?;
        let readers = to.map(|to| to.iter().map(|it| it.0.clone()).collect::<Vec<_>>());
        let (held, last) = self.0.take(py, stream, |guard| {
            let is_given = timeout.is_some() || readers.is_some();
            if is_given && guard.mode() == AccessMode::ReadOnly {
                return Err(PyValueError::new_err(
                    "a buffer from get() is kept until the pool's release(): call forget() without a timeout and without \
                     readers",
                ));
            }
            cuda::check_stream(guard, stream)?;
            if let Some(readers) = &readers {
                guard.set_readers(readers).into_py_result()?;
            }
            match timeout {
                Some(timeout) => guard.set_timeout(timeout).into_py_result(),
                None => Ok(()),
            }
        })?;
        let guard = held.guard.into_inner().ok_or_else(gone)?;
        let forgotten = py.detach(|| match last {
            Some(stream) => guard.forget_on(stream),
            None => guard.forget(),
        });
        forgotten.into_py_result()
    }

    /// Releases the buffer. If arrays over it exist, the last array releases it.
    ///
    /// Releasing a buffer that is being written counts as one read. If reads remain, the buffer is published.
    /// stream: a buffer on a device is released when this stream has completed its present work.
    #[pyo3(signature = (*, stream=None))]
    fn release(&self, py: Python<'_>, stream: Option<Bound<'_, PyAny>>) -> PyResult<()> {
        let stream = stream.as_ref().map(stream_of).transpose()?;
        if stream.is_some() {
            self.with(|guard| cuda::check_stream(guard, stream))?;
        }
        match (self.0.release(), stream) {
            (Some(held), Some(stream)) => cuda::release_on(py, held.guard, stream),
            (held, _) => {
                self.0.end(held, false);
                Ok(())
            }
        }
    }

    fn __enter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    /// Releases the buffer without publishing it. A buffer from `get_mut` is removed. If arrays over the buffer exist,
    /// the last of them releases it. A `with` block that ends with an exception does the same.
    fn discard(&self) {
        self.0.discard();
    }

    /// After an exception the content may be incomplete, so the buffer is discarded.
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

    /// NumPy calls this when the buffer protocol fails. Without it, NumPy would create an array with one object.
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

    /// For CuPy, Numba and others, which keep this object. Waits until the bytes are written.
    #[getter]
    fn __cuda_array_interface__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        array_interface::cuda(py, &self.array(py)?)
    }

    /// For `torch.from_dlpack` and others.
    #[pyo3(signature = (*, stream=None, max_version=None, dl_device=None, copy=None))]
    fn __dlpack__(
        &self,
        py: Python<'_>,
        stream: Option<Bound<'_, PyAny>>,
        max_version: Option<(u32, u32)>,
        dl_device: Option<(i32, i32)>,
        copy: Option<bool>,
    ) -> PyResult<Py<PyAny>> {
        let array = self.array(py)?;
        dlpack::export(py, &array, stream, max_version, dl_device, copy)
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

    unsafe fn __getbuffer__(
        slf: Bound<'_, Self>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        let this = slf.get();
        let array = match this.0.ordinal() {
            Some(_) => Err(PyBufferError::new_err(ON_DEVICE)),
            None => this.array(slf.py()),
        };
        // SAFETY: Python passes a view to be initialised.
        unsafe { buffer::fill(view, flags, array, slf.as_any()) }
    }

    /// Never called, because views have another owner. For a class with this method, numpy.frombuffer makes a memoryview and
    /// keeps that, instead of this object.
    unsafe fn __releasebuffer__(&self, _view: *mut ffi::Py_buffer) {}
}
