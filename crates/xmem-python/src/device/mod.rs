// SPDX-License-Identifier: MPL-2.0

//! Frames on CUDA devices, and the streams that their views were given to.

mod copy;
mod frame;
mod stream;

use std::time::Duration;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use xmem_core::cuda::{CudaError, CudaFrame};

use crate::errors::IntoPyErr;
use crate::signals::{self, Deadline};

pub(crate) use copy::DeviceCopy;
pub(crate) use frame::{DeviceFrame, copy_all};
pub(crate) use stream::{Streams, Use, stream_of};

/// Waits until a frame is written, for who reads it otherwise than in the order of a stream. Ctrl-C ends that.
pub(crate) fn wait(py: Python<'_>, frame: &CudaFrame) -> PyResult<()> {
    wait_until(py, |slice| frame.synchronize_for(slice))
}

/// Waits until a device is done with something. Ctrl-C ends that. `is_done` may take so long.
pub(crate) fn wait_until(
    py: Python<'_>,
    mut is_done: impl FnMut(Duration) -> Result<bool, CudaError> + Send,
) -> PyResult<()> {
    let waited = signals::wait(py, Deadline::after(None)?, |slice| match is_done(slice) {
        Ok(true) => Some(Ok(())),
        Ok(false) => None,
        Err(error) => Some(Err(error)),
    })?;
    waited
        .unwrap_or(Err(CudaError::Unfinished))
        .map_err(IntoPyErr::into_py_err)
}

/// Where a frame is to lie, as users say it. `None`: in host memory.
pub(crate) fn parse(device: Option<&str>) -> PyResult<Option<u32>> {
    let Some(text) = device else {
        return Ok(None);
    };
    let number = match text.split_once(':') {
        None if text == "cpu" => return Ok(None),
        None if text == "cuda" => Some(0),
        Some(("cuda", number)) => number.parse().ok(),
        _ => None,
    };
    number.map(Some).ok_or_else(|| {
        PyValueError::new_err(format!(
            "device is {text:?}: it has to be \"cpu\", or \"cuda:0\" and so on"
        ))
    })
}

/// The same, back.
pub(crate) fn name(ordinal: Option<u32>) -> String {
    ordinal.map_or("cpu".to_owned(), |ordinal| format!("cuda:{ordinal}"))
}
