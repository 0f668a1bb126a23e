// SPDX-License-Identifier: MPL-2.0

//! Frames on CUDA devices, and the streams of their views.

mod copy;
mod frame;
mod release_word;
mod stream;
mod wait;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

pub(crate) use copy::DeviceCopy;
pub(crate) use frame::{DeviceFrame, copy_all};
pub(crate) use release_word::ReleaseWord;
pub(crate) use stream::{Streams, Use, stream_of};
pub(crate) use wait::{wait, wait_for_all_work, wait_for_stream, wait_for_streams, wait_until};

/// The device of a `device` argument. `None`: host memory.
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
            "device is {text:?}: use \"cpu\", or \"cuda:\" and a device number, such as \"cuda:0\""
        ))
    })
}

/// The text for a device. `None` is host memory.
pub(crate) fn name(ordinal: Option<u32>) -> String {
    ordinal.map_or("cpu".to_owned(), |ordinal| format!("cuda:{ordinal}"))
}
