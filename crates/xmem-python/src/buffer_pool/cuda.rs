// SPDX-License-Identifier: MPL-2.0

//! The functions of `BufferPool` and `BufferGuard` that need a CUDA device. They release the interpreter before they call the
//! driver, because the driver may wait for a thread that needs the interpreter.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use xmem_core::cuda::{CudaError, Stream, drop_later};
use xmem_core::{self as core, AccessMode};

use crate::detached::Detached;
use crate::device;
use crate::errors::{IntoPyErr, IntoPyResult};

/// An error for a negative device number.
pub(super) fn check(device_id: i32) -> PyResult<()> {
    if device_id < 0 {
        return Err(PyValueError::new_err(format!(
            "device_id is {device_id}, but device numbers start at 0"
        )));
    }
    Ok(())
}

/// A copy on a device, from any memory.
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
    .into_py_result()
}

/// An error if a stream is given for a buffer in host memory.
pub(super) fn check_stream(guard: &core::BufferGuard, stream: Option<Stream>) -> PyResult<()> {
    if stream.is_some() && !guard.is_on_device() {
        return Err(PyValueError::new_err(
            "this buffer is in host memory, which has no streams: leave out the stream",
        ));
    }
    Ok(())
}

/// Releases a buffer after the work of a stream. If the buffer was acquired for writing, the CPU waits for the stream. Reason:
/// the next writer may write it at once.
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
    let waited = device::wait_for_stream(py, &device, stream);
    if waited.is_err() {
        // The wait was cancelled, or the stream is being captured. The buffer is released when the stream has finished.
        let guard = guard.into_inner();
        py.detach(|| drop_later(guard, &device, vec![stream]));
    }
    waited
}
