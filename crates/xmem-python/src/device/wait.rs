// SPDX-License-Identifier: MPL-2.0

//! Waits of the CPU for a device. Ctrl-C cancels them.

use std::time::Duration;

use pyo3::prelude::*;
use xmem_core::cuda::{CudaError, CudaFrame, Device, Stream};

use super::Streams;
use crate::errors::{IntoPyErr, IntoPyResult};
use crate::signals::{self, Deadline};

/// Waits until a frame is written, for a reader without a stream.
pub(crate) fn wait(py: Python<'_>, frame: &CudaFrame) -> PyResult<()> {
    wait_until(py, |slice| frame.synchronize_for(slice))
}

/// Waits until `is_done` returns true. Its argument is the longest time that one call may take.
pub(crate) fn wait_until(
    py: Python<'_>,
    mut is_done: impl FnMut(Duration) -> Result<bool, CudaError> + Send,
) -> PyResult<()> {
    let step = |slice| match is_done(slice) {
        Ok(true) => Some(Ok(())),
        Ok(false) => None,
        Err(error) => Some(Err(error.into_py_err())),
    };
    signals::wait_for(py, Deadline::after(None)?, step, || {
        CudaError::Unfinished.into_py_err()
    })
}

/// Waits for the present work of these streams.
pub(crate) fn wait_for_streams(py: Python<'_>, device: &Device, streams: &Streams) -> PyResult<()> {
    for stream in streams.all() {
        // A destroyed stream cannot be marked. The default stream waits for its work.
        let mark = || {
            let mark = stream.mark(device);
            mark.or_else(|_| Stream::LEGACY_DEFAULT.mark(device))
        };
        let mark = py.detach(mark).into_py_result()?;
        wait_until(py, |slice| mark.synchronize_for(slice))?;
    }
    Ok(())
}
