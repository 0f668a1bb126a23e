// SPDX-License-Identifier: MPL-2.0

//! What of `BufferPool` and `BufferGuard` needs a CUDA device. Drivers may wait for what needs the interpreter, so each call
//! is made without it.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use xmem_core::cuda::{CudaError, Stream};
use xmem_core::{self as core, AccessMode};

use super::Pool;
use super::guard::BufferGuard;
use crate::detached::Detached;
use crate::device;
use crate::errors::IntoPyErr;

fn check(device_id: i32) -> PyResult<()> {
    if device_id < 0 {
        return Err(PyValueError::new_err(format!(
            "device_id is {device_id}: devices are counted from 0"
        )));
    }
    Ok(())
}

pub(super) fn preallocate(
    py: Python<'_>,
    pool: &Pool,
    size: usize,
    count: usize,
    device_id: i32,
) -> PyResult<Vec<u32>> {
    check(device_id)?;
    py.detach(|| pool.preallocate_cuda(size, count, device_id))
        .map_err(IntoPyErr::into_py_err)
}

pub(super) fn acquire(
    py: Python<'_>,
    pool: Pool,
    size: usize,
    device_id: i32,
) -> PyResult<BufferGuard> {
    check(device_id)?;
    let guard = py
        .detach(|| pool.acquire_cuda(size, device_id))
        .map_err(IntoPyErr::into_py_err)?;
    Ok(BufferGuard::new(pool, guard))
}

/// A copy on a device, wherever the buffer lies.
pub(super) fn copy_to_device(
    guard: &core::BufferGuard,
    device_id: i32,
) -> PyResult<core::BufferGuard> {
    check(device_id)?;
    if guard.is_on_device() {
        guard.copy_to_device(device_id)
    } else {
        guard.copy_to_cuda(device_id)
    }
    .map_err(IntoPyErr::into_py_err)
}

/// Waits until a buffer that is read is written.
pub(super) fn wait(py: Python<'_>, reading: core::BufferGuard) -> PyResult<core::BufferGuard> {
    if !reading.is_on_device() {
        return Ok(reading);
    }
    let (reading, frame) = py.detach(move || {
        let frame = reading.cuda();
        (reading, frame)
    });
    device::wait(py, &frame.map_err(IntoPyErr::into_py_err)?)?;
    Ok(reading)
}

fn only_on_device() -> PyErr {
    PyValueError::new_err("this buffer lies in host memory, where there are no streams: say none")
}

/// Publishes a buffer that a stream is still to write.
pub(super) fn forget_on(guard: core::BufferGuard, stream: Stream) -> PyResult<u32> {
    guard.forget_on(stream).map_err(IntoPyErr::into_py_err)
}

/// Whether a stream has anything to do with a buffer.
pub(super) fn check_stream(guard: &core::BufferGuard, stream: Option<Stream>) -> PyResult<()> {
    if stream.is_some() && !guard.is_on_device() {
        return Err(only_on_device());
    }
    Ok(())
}

/// Lets go of a buffer behind what a stream has to do. One that was to be written is waited for: whoever gets it next may write
/// it at once.
pub(super) fn release_on(
    py: Python<'_>,
    guard: Detached<core::BufferGuard>,
    stream: Stream,
) -> PyResult<()> {
    if guard.mode() == AccessMode::ReadOnly {
        let released = py.detach(move || {
            guard.cuda()?.release_later(vec![stream]);
            Ok(())
        });
        return released.map_err(|error: CudaError| error.into_py_err());
    }
    let device = guard
        .device()
        .ok_or_else(|| CudaError::NotOnDevice.into_py_err())?;
    let mark = py.detach(|| stream.mark(&device));
    let waited = mark
        .map_err(IntoPyErr::into_py_err)
        .and_then(|mark| device::wait_until(py, |slice| mark.synchronize_for(slice)));
    if waited.is_err() {
        // Nobody waits any more; the buffer does.
        let guard = guard.into_inner();
        py.detach(|| stream.when_done(&device, move || drop(guard)));
    }
    waited
}
