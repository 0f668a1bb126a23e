// SPDX-License-Identifier: MPL-2.0

//! Streams, as Python's libraries have them.
#![allow(unsafe_code)] // handles that callers promise to be streams

use std::sync::Mutex;

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use xmem_core::cuda::Stream;

use crate::lock::lock;

/// What whoever gets an array on a device does with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Use {
    /// It is used on this stream, which is to wait for what is not finished.
    On(Stream),
    /// On which stream is not known, and nobody is to wait: who uses it sees to that.
    Anywhere,
}

impl Use {
    /// By the `stream` of a call of `__dlpack__`, as the standard has it for CUDA.
    pub(crate) fn of_dlpack(stream: Option<&Bound<'_, PyAny>>) -> PyResult<Self> {
        let Some(stream) = stream else {
            return Ok(Self::On(Stream::LEGACY_DEFAULT));
        };
        match stream.extract::<i64>() {
            Ok(-1) => Ok(Self::Anywhere),
            Ok(0) => Err(PyValueError::new_err(
                "stream 0 could be either default stream: 1 is the legacy one, 2 the thread's own",
            )),
            _ => Ok(Self::On(stream_of(stream)?)),
        }
    }

    /// The stream behind whose work the memory is free again.
    pub(crate) fn ends_on(self) -> Stream {
        match self {
            // On another thread its handle would be another stream.
            Self::On(Stream::PER_THREAD) | Self::Anywhere => Stream::LEGACY_DEFAULT,
            Self::On(stream) => stream,
        }
    }
}

/// A stream of PyTorch, CuPy, CUDA Python or Numba, or its handle.
pub(crate) fn stream_of(stream: &Bound<'_, PyAny>) -> PyResult<Stream> {
    let handle = if let Ok(handle) = stream.extract::<u64>() {
        handle
    } else if let Ok(protocol) = stream.getattr("__cuda_stream__") {
        // Version, and handle.
        protocol.call0()?.extract::<(u32, u64)>()?.1
    } else if let Ok(handle) = stream.getattr("cuda_stream") {
        handle.extract()?
    } else if let Ok(handle) = stream.getattr("ptr") {
        handle.extract()?
    } else {
        return Err(PyTypeError::new_err(
            "a stream is its handle, or an object with __cuda_stream__, cuda_stream (PyTorch) or ptr (CuPy)",
        ));
    };
    Ok(match handle {
        // CUDA's null stream.
        0 => Stream::LEGACY_DEFAULT,
        // SAFETY: that it is a stream, and stays one for as long as arrays are used there, is what the caller promises, in
        // Python without a word for it.
        handle => unsafe { Stream::from_raw(handle) },
    })
}

/// The streams that views were given to, each once.
#[derive(Debug, Default)]
pub(crate) struct Streams(Mutex<Vec<Stream>>);

impl Streams {
    pub(crate) fn add(&self, stream: Stream) {
        let mut streams = lock(&self.0);
        if !streams.contains(&stream) {
            streams.push(stream);
        }
    }

    /// Those that are done, or that an event stands for: `None` is all.
    pub(crate) fn forget(&self, done: Option<Stream>) {
        lock(&self.0).retain(|stream| done.is_some_and(|done| *stream != done));
    }

    pub(crate) fn all(&self) -> Vec<Stream> {
        lock(&self.0).clone()
    }
}
