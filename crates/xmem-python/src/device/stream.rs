// SPDX-License-Identifier: MPL-2.0

//! Streams of Python libraries.
#![allow(unsafe_code)] // callers promise that handles are streams

use std::sync::Mutex;

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use xmem_core::cuda::Stream;

use crate::lock;

/// How a new view on a device is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Use {
    /// On this stream, which waits for unfinished work.
    On(Stream),
    /// On unknown streams. No stream waits: the owner of the view orders its own work.
    Anywhere,
}

impl Use {
    /// From the argument `stream` of `__dlpack__`, by the standard's rules for CUDA.
    pub(crate) fn of_dlpack(stream: Option<&Bound<'_, PyAny>>) -> PyResult<Self> {
        let Some(stream) = stream else {
            return Ok(Self::On(Stream::LEGACY_DEFAULT));
        };
        match stream.extract::<i64>() {
            Ok(-1) => Ok(Self::Anywhere),
            Ok(0) => Err(PyValueError::new_err(
                "stream 0 is ambiguous: pass 1 for the legacy default stream, or 2 for the per-thread default stream",
            )),
            _ => Ok(Self::On(stream_of(stream)?)),
        }
    }

    /// The stream after whose work the memory can be reused.
    pub(crate) fn ends_on(self) -> Stream {
        match self {
            // The same handle refers to another stream on another thread.
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
        // Version and handle.
        protocol.call0()?.extract::<(u32, u64)>()?.1
    } else if let Ok(handle) = stream.getattr("cuda_stream") {
        handle.extract()?
    } else if let Ok(handle) = stream.getattr("ptr") {
        handle.extract()?
    } else {
        return Err(PyTypeError::new_err(
            "stream must be a handle (int), or an object with __cuda_stream__, cuda_stream (PyTorch) or ptr (CuPy)",
        ));
    };
    Ok(match handle {
        // CUDA's null stream.
        0 => Stream::LEGACY_DEFAULT,
        // SAFETY: the caller of the Python function promises that the handle is a stream, and stays one while arrays are used
        // on it.
        handle => unsafe { Stream::from_raw(handle) },
    })
}

/// The streams of views, without duplicates.
#[derive(Debug, Default)]
pub(crate) struct Streams(Mutex<Vec<Stream>>);

impl Streams {
    pub(crate) fn add(&self, stream: Stream) {
        let mut streams = lock(&self.0);
        if !streams.contains(&stream) {
            streams.push(stream);
        }
    }

    /// Removes a stream that has finished, or whose work an event covers. `None`: removes all.
    pub(crate) fn forget(&self, done: Option<Stream>) {
        lock(&self.0).retain(|stream| done.is_some_and(|done| *stream != done));
    }

    pub(crate) fn all(&self) -> Vec<Stream> {
        lock(&self.0).clone()
    }
}
