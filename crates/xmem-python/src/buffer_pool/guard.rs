// SPDX-License-Identifier: MPL-2.0

//! The class `BufferGuard`: a buffer that this process holds, and the arrays over it.
#![allow(unsafe_code)] // the buffer protocol

use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::{Arc, Mutex};

use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{IntoPyDict, PyMemoryView, PyTuple};
use xmem_core::cuda::CudaError;
use xmem_core::{self as core, AccessMode, FrameMeta, ProcessId, lock};

use super::cuda;
use super::meta::{self, Shaped};
use crate::detached::Detached;
use crate::device::stream_of;
use crate::dtype;
use crate::errors::{IntoPyErr, Kind};
use crate::fork::check_process;
use crate::number::{count as number, time_or_none};
use crate::wanted;

/// A pool, which ends with its last owner.
pub(super) type Pool = Arc<Detached<core::BufferPool>>;

/// A buffer, and its pool, which it keeps.
#[derive(Debug)]
struct Held {
    guard: Detached<core::BufferGuard>,
    pool: Pool,
}

#[derive(Debug)]
struct State {
    /// The process that got it.
    process: ProcessId,
    held: Option<Held>,
    /// A thread works with it, so it is not in `held` meanwhile.
    busy: bool,
    /// Arrays and memoryviews that exist now.
    views: usize,
    /// It was released, and ends with its last view.
    released: bool,
    /// It is empty after that.
    discarded: bool,
}

/// A buffer of a pool, for as long as this lives, and the arrays over it.
#[pyclass(frozen, weakref, module = "xmem")]
#[derive(Debug)]
pub(crate) struct BufferGuard {
    state: Mutex<State>,
}

const ON_DEVICE: &str = "this buffer lies on a CUDA device, where the CPU cannot read it: use its cuda_ptr there, or copy_to_cpu()";

/// Bytes that were asked for, or published.
fn size(guard: &core::BufferGuard) -> usize {
    usize::try_from(guard.meta().size).unwrap_or(usize::MAX)
}

fn gone() -> PyErr {
    Kind::Closed.error("the buffer was released, or forgotten: get it again by its index")
}

impl State {
    fn held(&mut self) -> PyResult<&mut Held> {
        check_process(self.process)?;
        if self.released {
            return Err(gone());
        }
        let busy = self.busy;
        self.held.as_mut().ok_or_else(|| missing(busy))
    }

    fn guard(&mut self) -> PyResult<&mut core::BufferGuard> {
        Ok(&mut self.held()?.guard)
    }

    fn take(&mut self) -> PyResult<Held> {
        if self.released {
            return Err(gone());
        }
        let busy = self.busy;
        self.held.take().ok_or_else(|| missing(busy))
    }
}

/// The caller has not locked the state.
fn end(held: Held, discarded: bool) {
    if discarded {
        let guard = held.guard;
        // Without the interpreter, as `Detached` does it.
        Python::try_attach(|py| py.detach(|| guard.into_inner().map(core::BufferGuard::discard)));
    }
}

fn missing(busy: bool) -> PyErr {
    if busy {
        Kind::Error.error("another thread is copying this buffer: wait for it")
    } else {
        gone()
    }
}

impl BufferGuard {
    pub(super) fn new(pool: Pool, guard: core::BufferGuard) -> Self {
        let guard = Detached::new(guard);
        Self {
            state: Mutex::new(State {
                process: ProcessId::current(),
                held: Some(Held { guard, pool }),
                busy: false,
                views: 0,
                released: false,
                discarded: false,
            }),
        }
    }

    fn with<T>(&self, f: impl FnOnce(&mut core::BufferGuard) -> PyResult<T>) -> PyResult<T> {
        f(lock(&self.state).guard()?)
    }

    fn pool(&self) -> PyResult<Pool> {
        Ok(lock(&self.state).held()?.pool.clone())
    }

    /// Runs slow work without the interpreter, and so without the lock: a thread with the interpreter could wait for the lock.
    /// Other threads get an error for a buffer that is being written meanwhile.
    fn aside<T: Send>(
        &self,
        py: Python<'_>,
        f: impl FnOnce(&core::BufferGuard) -> PyResult<T> + Send,
    ) -> PyResult<T> {
        if let Some(another) = self.with(|guard| Ok(guard.clone_ref().ok()))? {
            let another = cuda::wait(py, another)?;
            return py.detach(move || f(&another));
        }
        let held = {
            let mut state = lock(&self.state);
            let held = state.take()?;
            state.busy = true;
            held
        };
        py.detach(move || {
            let done = f(&held.guard);
            let mut state = lock(&self.state);
            state.busy = false;
            if state.released && state.views == 0 {
                let discarded = state.discarded;
                drop(state);
                end(held, discarded);
            } else {
                state.held = Some(held);
            }
            done
        })
    }

    fn meta<T>(&self, f: impl FnOnce(&FrameMeta) -> T) -> PyResult<T> {
        self.with(|guard| Ok(f(guard.meta())))
    }
}

#[pymethods]
impl BufferGuard {
    /// The buffer's number in its pool.
    #[getter]
    fn meta_index(&self) -> PyResult<u32> {
        self.with(|guard| Ok(guard.meta_index()))
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
                let reading = cuda::wait(py, reading)?;
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

    /// Describes the buffer. What is not given does not change. A process that did not make the pool can pass on the size
    /// only.
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
        let pool = self.pool()?;
        let guard = self.with(|guard| guard.clone_ref().map_err(IntoPyErr::into_py_err))?;
        Ok(Self::new(pool, guard))
    }

    /// A copy of the bytes in another buffer of the pool, on a CUDA device.
    #[pyo3(signature = (device_id=0))]
    fn copy_to_cuda(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = number)] device_id: i32,
    ) -> PyResult<Self> {
        let pool = self.pool()?;
        let copy = self.aside(py, |guard| cuda::copy_to_device(guard, device_id))?;
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

    /// A copy of the bytes in another buffer of the pool, in host memory, to be written.
    fn copy_to_cpu(&self, py: Python<'_>) -> PyResult<Self> {
        let pool = self.pool()?;
        let copy = self.aside(py, |guard| {
            if guard.is_on_device() {
                return guard.copy_to_cpu().map_err(IntoPyErr::into_py_err);
            }
            let copy = pool.acquire_cpu(size(guard));
            let mut copy = copy.map_err(IntoPyErr::into_py_err)?;
            let mut fill = || {
                copy.as_cpu_slice_mut()?
                    .copy_from_slice(guard.as_cpu_slice()?);
                copy.set_meta(guard.meta().clone())
            };
            fill().map_err(IntoPyErr::into_py_err)?;
            Ok(copy)
        })?;
        Ok(Self::new(pool, copy))
    }

    /// Gives the buffer up without releasing it. One that is being written is published, and kept until the number of
    /// readers of `set_ref_count` took and released it. One that is being read stays held until the pool's
    /// `release`. Returns its index.
    #[pyo3(signature = (*, stream=None))]
    fn forget(&self, py: Python<'_>, stream: Option<Bound<'_, PyAny>>) -> PyResult<u32> {
        let stream = stream.as_ref().map(stream_of).transpose()?;
        let held = {
            let mut state = lock(&self.state);
            cuda::check_stream(state.guard()?, stream)?;
            if state.views > 0 {
                return Err(Kind::ViewsExist.error(
                    "arrays over the buffer still exist: delete them (del array) before it is forgotten, since it may be \
                     used again without them",
                ));
            }
            state.take()?
        };
        // Without the interpreter: in a process that did not make the pool this is a request to the pool's owner.
        let guard = held.guard.into_inner().ok_or_else(gone)?;
        py.detach(|| match stream {
            Some(stream) if guard.mode() == AccessMode::ReadWrite => cuda::forget_on(guard, stream),
            _ => guard.forget().map_err(IntoPyErr::into_py_err),
        })
    }

    /// Gives the buffer back; if there are arrays over it, with the last of these. One on a device that is read: when the
    /// stream is done with it.
    #[pyo3(signature = (*, stream=None))]
    fn release(&self, py: Python<'_>, stream: Option<Bound<'_, PyAny>>) -> PyResult<()> {
        let stream = stream.as_ref().map(stream_of).transpose()?;
        let held = {
            let mut state = lock(&self.state);
            if stream.is_some() {
                cuda::check_stream(state.guard()?, stream)?;
            }
            state.released = true;
            if state.views > 0 {
                return Ok(());
            }
            state.held.take()
        };
        match (held, stream) {
            (Some(held), Some(stream)) => cuda::release_on(py, held.guard, stream),
            _ => Ok(()),
        }
    }

    fn __enter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    /// Gives the buffer back; one that is written, or was taken to be edited, is empty then. If there are arrays over it, with the
    /// last of these.
    fn discard(&self) {
        let held = {
            let mut state = lock(&self.state);
            (state.released, state.discarded) = (true, true);
            if state.views > 0 {
                return;
            }
            state.held.take()
        };
        if let Some(held) = held {
            end(held, true);
        }
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

    fn __repr__(&self) -> String {
        let state = lock(&self.state);
        match &state.held {
            Some(Held { guard, .. }) if !state.released => {
                let mode = match guard.mode() {
                    AccessMode::ReadOnly => "reading",
                    AccessMode::ReadWrite => "writing",
                };
                format!("<xmem.BufferGuard {}, {mode}>", guard.meta_index())
            }
            _ => "<xmem.BufferGuard, released>".into(),
        }
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
        let mut state = lock(&this.state);
        let guard = state.guard()?;
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
        let shaped = Box::new(Shaped::new(guard.meta(), len));
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
        state.views += 1;
        Ok(())
    }

    /// # Safety
    ///
    /// `view` was filled in by `__getbuffer__`.
    unsafe fn __releasebuffer__(&self, view: *mut ffi::Py_buffer) {
        // SAFETY: the box that `__getbuffer__` made, once per view.
        drop(unsafe { Box::from_raw((*view).internal.cast::<Shaped>()) });
        let mut state = lock(&self.state);
        state.views -= 1;
        let held = if state.released && state.views == 0 {
            state.held.take()
        } else {
            None
        };
        let discarded = state.discarded;
        drop(state);
        if let Some(held) = held {
            end(held, discarded);
        }
    }
}
