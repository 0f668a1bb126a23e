// SPDX-License-Identifier: MPL-2.0

//! The class `BufferPool`.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use pyo3::prelude::*;
use pyo3::types::PyDict;
use xmem_core::{self as core, AcquireError, ProcessId};

use super::Reader;
use super::cuda;
use super::guard::BufferGuard;
use crate::detached::Detached;
use crate::errors::{self, IntoPyErr, IntoPyResult, Kind, OF_THIS_PROCESS, not_pickled};
use crate::lock;
use crate::number::{count as number, count_or_none, counts};
use crate::open_buffer::Pool;
use crate::pools::{pool_name, pool_stats};
use crate::reaper;
use crate::signals::{self, Deadline};

/// A pool of buffers with numbers. Processes pass the numbers to each other by other means.
///
/// All processes that open the pool are equal: each can write and read. Opening the pool allocates nothing.
///
/// max_buffers: the largest number of buffers that this process can write and keep published, from 2 to 4096.
/// max_held: the largest number of buffers of one writer that a process can hold at once. None: no limit. The smaller of
/// the writer's and the reader's number applies.
#[pyclass(frozen, module = "xmem")]
#[derive(Debug)]
pub(crate) struct BufferPool {
    name: String,
    pool: Mutex<Option<Pool>>,
    /// The process that opened it.
    process: ProcessId,
}

/// The least time between two warnings of a pool. Each names another buffer, so Python's filters would show them all.
const QUIET: Duration = Duration::from_secs(10);

/// The buffers of a pool that readers did not read.
#[derive(Debug, Default)]
struct Unread {
    last: Option<Instant>,
    /// The number of buffers since the last warning.
    unsaid: usize,
}

/// Warns that readers did not read a buffer. Called on the pool's own thread. While that thread waited for the interpreter, no
/// process could join, and the end of the program would wait for it.
fn warn_of(pool: &str, so_far: &Mutex<Unread>, unread: &core::Unread) {
    let mut so_far = lock(so_far);
    if so_far.last.is_some_and(|last| last.elapsed() < QUIET) {
        so_far.unsaid += 1;
        return;
    }
    so_far.last = Some(Instant::now());
    let others = match std::mem::take(&mut so_far.unsaid) {
        0 => String::new(),
        unsaid => format!("; and {unsaid} more since the last warning"),
    };
    drop(so_far);
    let message = format!("pool {pool:?}: {unread}{others}");
    reaper::run(|py| {
        if let Err(error) = errors::warn(py, message) {
            error.write_unraisable(py, None);
        }
    });
}

impl BufferPool {
    fn core(&self) -> PyResult<Pool> {
        // Some functions of the core return no error in a forked child.
        if !self.process.is_current() {
            return Err(AcquireError::Forked.into_py_err());
        }
        lock(&self.pool)
            .clone()
            .ok_or_else(|| Kind::Closed.error("the buffer pool is closed"))
    }

    /// Calls the core without the interpreter.
    fn call<T: Send, E: IntoPyErr + Send>(
        &self,
        py: Python<'_>,
        call: impl FnOnce(&core::BufferPool) -> Result<T, E> + Send,
    ) -> PyResult<T> {
        let pool = self.core()?;
        py.detach(|| call(&pool)).into_py_result()
    }

    /// Like `call`, for a call that returns a buffer.
    fn guard<E: IntoPyErr + Send>(
        &self,
        py: Python<'_>,
        call: impl FnOnce(&core::BufferPool) -> Result<core::BufferGuard, E> + Send,
    ) -> PyResult<BufferGuard> {
        let pool = self.core()?;
        let guard = py.detach(|| call(&pool)).into_py_result()?;
        Ok(BufferGuard::new(pool, guard))
    }
}

#[pymethods]
impl BufferPool {
    #[new]
    #[pyo3(signature = (name, *, max_buffers=256, max_held=None))]
    fn new(
        py: Python<'_>,
        #[pyo3(from_py_with = pool_name)] name: String,
        #[pyo3(from_py_with = number)] max_buffers: u32,
        #[pyo3(from_py_with = count_or_none)] max_held: Option<u32>,
    ) -> PyResult<Self> {
        let (warned, so_far) = (name.clone(), Mutex::default());
        let mut options = core::BufferPool::options(&name)
            .on_unread(move |unread| warn_of(&warned, &so_far, unread))
            .max_buffers(max_buffers);
        if let Some(buffers) = max_held {
            options = options.max_held(buffers);
        }
        let pool = py.detach(|| options.open()).into_py_result()?;
        Ok(Self {
            name,
            pool: Mutex::new(Some(Arc::new(Detached::new(pool)))),
            process: ProcessId::current(),
        })
    }

    /// The name of the pool.
    #[getter]
    fn name(&self) -> &str {
        &self.name
    }

    /// Reserves `count` buffers for this size, until `give_up`. Returns their indices.
    ///
    /// size: in bytes.
    fn preallocate_cpu(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = number)] size: usize,
        #[pyo3(from_py_with = number)] count: usize,
    ) -> PyResult<Vec<u32>> {
        self.call(py, |pool| pool.preallocate_cpu(size, count))
    }

    /// Like `preallocate_cpu`, but on a CUDA device.
    #[pyo3(signature = (size, count, device_id=0))]
    fn preallocate_cuda(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = number)] size: usize,
        #[pyo3(from_py_with = number)] count: usize,
        #[pyo3(from_py_with = number)] device_id: i32,
    ) -> PyResult<Vec<u32>> {
        cuda::check(device_id)?;
        self.call(py, |pool| pool.preallocate_cuda(size, count, device_id))
    }

    /// Ends the reservation of preallocated buffers. Returns how many were reserved.
    fn give_up(&self, #[pyo3(from_py_with = counts)] indices: Vec<u32>) -> PyResult<usize> {
        Ok(self.core()?.give_up(&indices))
    }

    /// The statistics of the buffers that this process writes, like those of a producer. `unread` counts published buffers that
    /// readers still have to get, and `set_aside` counts preallocated buffers.
    #[getter]
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let pool = self.core()?;
        pool_stats(py, &py.detach(|| pool.stats()))
    }

    /// Waits until all published buffers of this process have been read as often as their counts say. Unread buffers are lost
    /// when the process ends. Raises Timeout.
    #[pyo3(signature = (timeout=None))]
    fn wait_until_read(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<()> {
        let pool = self.core()?;
        let waited = signals::retry(py, Deadline::after(timeout)?, |slice| {
            pool.wait_until_read(Some(slice))
        })?;
        waited.ok_or_else(|| {
            Kind::Timeout.error(format!(
                "pool {:?} still has unread buffers after {} s: wait longer, or check that every reader is running",
                self.name,
                timeout.unwrap_or_default()
            ))
        })
    }

    /// Returns a buffer of `size` bytes to write.
    fn acquire_cpu(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = number)] size: usize,
    ) -> PyResult<BufferGuard> {
        self.guard(py, |pool| pool.acquire_cpu(size))
    }

    /// Returns a buffer of `size` bytes on a CUDA device to write. You may call `forget` before the device has written the
    /// buffer, but `release` only afterwards.
    #[pyo3(signature = (size, device_id=0))]
    fn acquire_cuda(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = number)] size: usize,
        #[pyo3(from_py_with = number)] device_id: i32,
    ) -> PyResult<BufferGuard> {
        cuda::check(device_id)?;
        self.guard(py, |pool| pool.acquire_cuda(size, device_id))
    }

    /// Connects to the process that wrote this buffer, which then lists this process in `readers`. The first `get` also connects.
    fn connect(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = number)] meta_index: u32,
    ) -> PyResult<()> {
        self.call(py, |pool| pool.connect(meta_index))
    }

    /// The processes that are connected to this process and can read its buffers, for `forget(to=[reader, ...])`.
    #[getter]
    fn readers(&self, py: Python<'_>) -> PyResult<Vec<Reader>> {
        let pool = self.core()?;
        let readers = py.detach(|| pool.readers());
        Ok(readers.into_iter().map(Reader).collect())
    }

    /// Returns a published buffer to read. Each call counts as one read.
    fn get(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = number)] meta_index: u32,
    ) -> PyResult<BufferGuard> {
        self.guard(py, |pool| pool.get(meta_index))
    }

    /// Returns a published buffer to edit.
    ///
    /// A buffer of this process is edited in place, unless a process holds it. Then `forget` publishes the buffer again for the
    /// remaining reads, and `release` uses up one of these reads. A buffer of another process is copied, which counts as a
    /// read. Then `forget` returns the index of the copy.
    fn get_mut(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = number)] meta_index: u32,
    ) -> PyResult<BufferGuard> {
        self.guard(py, |pool| pool.get_mut(meta_index))
    }

    /// Removes a buffer that this process published, whatever its count. For a buffer that its readers never read.
    fn discard(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = number)] meta_index: u32,
    ) -> PyResult<()> {
        self.call(py, |pool| pool.discard(meta_index))
    }

    /// Sets the number of remaining reads of a buffer that this process wrote. The buffer is kept until it has been read and
    /// released this many times. Default: 1.
    fn set_ref_count(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = number)] meta_index: u32,
        #[pyo3(from_py_with = number)] count: i32,
    ) -> PyResult<()> {
        self.call(py, |pool| pool.set_ref_count(meta_index, count))
    }

    /// Adds a reference without a guard: this process holds the published buffer until `release`.
    fn add_ref(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = number)] meta_index: u32,
    ) -> PyResult<()> {
        self.call(py, |pool| pool.add_ref(meta_index))
    }

    /// Ends one reference made by `add_ref`, or by `forget` after `get`. Returns whether there was one.
    fn release(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = number)] meta_index: u32,
    ) -> PyResult<bool> {
        let pool = self.core()?;
        Ok(py.detach(|| pool.release(meta_index)))
    }

    /// Closes the pool. The buffers that this process wrote are lost when its last guard is gone.
    fn close(&self) {
        let pool = lock(&self.pool).take();
        // Without the lock, because closing a pool waits for threads.
        drop(pool);
    }

    fn __enter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, _exception: &Bound<'_, PyAny>) {
        self.close();
    }

    fn __reduce__(slf: &Bound<'_, Self>) -> PyResult<()> {
        Err(not_pickled(slf, OF_THIS_PROCESS))
    }

    fn __repr__(&self) -> String {
        match lock(&self.pool).as_ref() {
            Some(_) => format!("<xmem.BufferPool {:?}>", self.name),
            None => format!("<xmem.BufferPool {:?}, closed>", self.name),
        }
    }
}
