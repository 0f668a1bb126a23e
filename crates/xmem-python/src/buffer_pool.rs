// SPDX-License-Identifier: MPL-2.0

//! Buffers by number: `BufferPool` and `BufferGuard`.

mod cuda;
mod guard;
mod meta;

use std::sync::{Arc, Mutex};

use pyo3::prelude::*;
use xmem_core::{self as core, AcquireError, ProcessId};

use crate::detached::Detached;
use crate::errors::{IntoPyErr, Kind};
use crate::lock::lock;
use crate::number::{count as number, count_or_none};
pub(crate) use guard::BufferGuard;

impl IntoPyErr for core::OpenError {
    fn kind(&self) -> Option<Kind> {
        match self {
            Self::Connect(error) => error.kind(),
            Self::Create(error) => error.kind(),
            _ => Some(Kind::Error),
        }
    }
}

impl IntoPyErr for core::WriteAccessError {
    fn kind(&self) -> Option<Kind> {
        match self {
            Self::Acquire(error) => error.kind(),
            Self::Denied { .. } | Self::NotOwner => Some(Kind::Refused),
            Self::Owner(error) => error.kind(),
            Self::Cuda(error) => error.kind(),
            _ => Some(Kind::Error),
        }
    }
}

impl IntoPyErr for core::GetError {
    fn message(&self) -> String {
        match self {
            Self::Empty { .. } => format!("{self}, or somebody writes it just now"),
            error => error.to_string(),
        }
    }

    fn kind(&self) -> Option<Kind> {
        Some(match self {
            Self::OverBudget { .. } => Kind::OverBudget,
            Self::Owner(error) => return error.kind(),
            _ => Kind::Error,
        })
    }
}

impl IntoPyErr for core::RefCountError {
    fn kind(&self) -> Option<Kind> {
        match self {
            Self::BadCount(_) => None,
            _ => Some(Kind::Error),
        }
    }
}

/// A pool, which ends with the last that has it.
type Pool = Arc<Detached<core::BufferPool>>;

/// A pool of buffers with numbers: processes tell each other indices, by whatever way they have.
///
/// Joins the pool of this name, or makes it if there is none.
#[pyclass(frozen, module = "xmem")]
#[derive(Debug)]
pub(crate) struct BufferPool {
    name: String,
    pool: Mutex<Option<Pool>>,
    /// The one that opened it.
    process: ProcessId,
}

impl BufferPool {
    fn core(&self) -> PyResult<Pool> {
        // Not all of the core's answers say so.
        if !self.process.is_current() {
            return Err(AcquireError::Forked.into_py_err());
        }
        lock(&self.pool)
            .clone()
            .ok_or_else(|| Kind::Closed.error("the buffer pool is closed"))
    }
}

#[pymethods]
impl BufferPool {
    #[new]
    #[pyo3(signature = (name, *, peers_may_write=false, max_buffers=256, max_held=None))]
    fn new(
        py: Python<'_>,
        name: String,
        peers_may_write: bool,
        #[pyo3(from_py_with = number)] max_buffers: u32,
        #[pyo3(from_py_with = count_or_none)] max_held: Option<u32>,
    ) -> PyResult<Self> {
        let mut options = core::BufferPool::options(&name)
            .peers_may_write(peers_may_write)
            .max_buffers(max_buffers);
        if let Some(buffers) = max_held {
            options = options.max_held(buffers);
        }
        let pool = py
            .detach(|| options.open())
            .map_err(IntoPyErr::into_py_err)?;
        Ok(Self {
            name,
            pool: Mutex::new(Some(Arc::new(Detached::new(pool)))),
            process: ProcessId::current(),
        })
    }

    /// The name that it was opened with.
    #[getter]
    fn name(&self) -> &str {
        &self.name
    }

    /// Whether this process made the pool. The pool ends with it.
    #[getter]
    fn is_owner(&self) -> PyResult<bool> {
        Ok(self.core()?.is_owner())
    }

    /// Makes sure that there are `count` buffers of `size` bytes. Returns their indices.
    fn preallocate_cpu(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = number)] size: usize,
        #[pyo3(from_py_with = number)] count: usize,
    ) -> PyResult<Vec<u32>> {
        let pool = self.core()?;
        py.detach(|| pool.preallocate_cpu(size, count))
            .map_err(IntoPyErr::into_py_err)
    }

    /// The same on a CUDA device.
    #[pyo3(signature = (size, count, device_id=0))]
    fn preallocate_cuda(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = number)] size: usize,
        #[pyo3(from_py_with = number)] count: usize,
        #[pyo3(from_py_with = number)] device_id: i32,
    ) -> PyResult<Vec<u32>> {
        cuda::preallocate(py, &self.core()?, size, count, device_id)
    }

    /// A buffer of `size` bytes, to be written.
    fn acquire_cpu(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = number)] size: usize,
    ) -> PyResult<BufferGuard> {
        let pool = self.core()?;
        let guard = py
            .detach(|| pool.acquire_cpu(size))
            .map_err(IntoPyErr::into_py_err)?;
        Ok(BufferGuard::new(pool, guard))
    }

    /// A buffer of `size` bytes on a CUDA device, to be written.
    #[pyo3(signature = (size, device_id=0))]
    fn acquire_cuda(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = number)] size: usize,
        #[pyo3(from_py_with = number)] device_id: i32,
    ) -> PyResult<BufferGuard> {
        cuda::acquire(py, self.core()?, size, device_id)
    }

    /// A buffer that was published, for reading.
    fn get(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = number)] meta_index: u32,
    ) -> PyResult<BufferGuard> {
        let pool = self.core()?;
        let guard = py
            .detach(|| pool.get(meta_index))
            .map_err(IntoPyErr::into_py_err)?;
        Ok(BufferGuard::new(pool, guard))
    }

    /// A buffer that was published, to be edited in place. Only if nobody else holds it.
    ///
    /// It is published again when it is released: for as many readers as before if this process published it, else for one, unless
    /// `set_ref_count` says how many. A process that did not make the pool passes on its size only; shape, type and so on are gone.
    /// One that holds nothing is as one that was just acquired: it is published by `forget`, and empty again if it is released.
    fn get_mut(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = number)] meta_index: u32,
    ) -> PyResult<BufferGuard> {
        let pool = self.core()?;
        let guard = py
            .detach(|| pool.get_mut(meta_index))
            .map_err(IntoPyErr::into_py_err)?;
        Ok(BufferGuard::new(pool, guard))
    }

    /// Empties a buffer that was published, whoever it was for: for one whose readers never come.
    fn discard(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = number)] meta_index: u32,
    ) -> PyResult<()> {
        let pool = self.core()?;
        py.detach(|| pool.discard(meta_index))
            .map_err(IntoPyErr::into_py_err)
    }

    /// Says how many readers a buffer is for: it is kept until so many took and released it.
    fn set_ref_count(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = number)] meta_index: u32,
        #[pyo3(from_py_with = number)] count: i32,
    ) -> PyResult<()> {
        let pool = self.core()?;
        py.detach(|| pool.set_ref_count(meta_index, count))
            .map_err(IntoPyErr::into_py_err)
    }

    /// One more reference of this process to a published buffer, without a guard: until `release`.
    fn add_ref(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = number)] meta_index: u32,
    ) -> PyResult<()> {
        let pool = self.core()?;
        py.detach(|| pool.add_ref(meta_index))
            .map_err(IntoPyErr::into_py_err)
    }

    /// Gives back one reference without a guard. Returns whether there was one.
    fn release(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = number)] meta_index: u32,
    ) -> PyResult<bool> {
        let pool = self.core()?;
        Ok(py.detach(|| pool.release(meta_index)))
    }

    /// Lets go of the pool; if this process made it, it ends when the last of its buffers here is gone.
    fn close(&self) {
        let pool = lock(&self.pool).take();
        // Not with the lock.
        drop(pool);
    }

    fn __enter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, _exception: &Bound<'_, PyAny>) {
        self.close();
    }

    fn __repr__(&self) -> String {
        match lock(&self.pool).as_ref() {
            Some(pool) if pool.is_owner() => {
                format!("<xmem.BufferPool {:?}, made here>", self.name)
            }
            Some(_) => format!("<xmem.BufferPool {:?}, joined>", self.name),
            None => format!("<xmem.BufferPool {:?}, closed>", self.name),
        }
    }
}
