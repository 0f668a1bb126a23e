// SPDX-License-Identifier: MPL-2.0

//! Waits of the CPU for a device. Ctrl-C cancels them.

use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use pyo3::prelude::*;
use xmem_core::cuda::{CudaError, CudaFrame, Device, Stream};

use super::Streams;
use crate::errors::IntoPyErr;
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
    let mut streams = streams.all().into_iter();
    streams.try_for_each(|stream| wait_for_stream(py, device, stream))
}

/// Waits for the present work of a stream, also of one that was destroyed.
pub(crate) fn wait_for_stream(py: Python<'_>, device: &Device, stream: Stream) -> PyResult<()> {
    match py.detach(|| stream.mark(device)) {
        Ok(mark) => wait_until(py, |slice| mark.synchronize_for(slice)),
        // Its work has not begun, and a wait would invalidate the capture.
        Err(error @ CudaError::Captured) => Err(error.into_py_err()),
        Err(_) => wait_for_all_work(py, device),
    }
}

/// Waits for all present work in the device's primary context, because of a stream that cannot be marked, such as one that was
/// destroyed. No other stream waits for its work: the default stream is not ordered with a non-blocking stream.
pub(crate) fn wait_for_all_work(py: Python<'_>, device: &Device) -> PyResult<()> {
    let (sender, receiver) = channel();
    let device = device.clone();
    // The driver's wait cannot be cancelled. After Ctrl-C the thread ends with the work.
    let thread = std::thread::Builder::new().name("xmem-cuda-wait".into());
    thread.spawn(move || sender.send(device.synchronize()))?;
    wait_until(py, move |slice| match receiver.recv_timeout(slice) {
        Ok(done) => done.map(|()| true),
        Err(RecvTimeoutError::Timeout) => Ok(false),
        Err(RecvTimeoutError::Disconnected) => Err(CudaError::Unfinished),
    })
}
