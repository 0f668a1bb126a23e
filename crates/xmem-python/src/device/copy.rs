// SPDX-License-Identifier: MPL-2.0

//! A copy of a frame in device memory of this process alone, which views may write.

use std::ops::Deref;

use pyo3::prelude::*;
use xmem_core::cuda::PrivateMemory;

use super::wait::wait_for_streams;
use super::{Streams, Use};

/// The memory, and the streams that its views were given to.
#[derive(Debug)]
pub(crate) struct DeviceCopy {
    memory: PrivateMemory,
    streams: Streams,
}

impl DeviceCopy {
    pub(crate) fn new(memory: PrivateMemory) -> Self {
        Self {
            memory,
            streams: Streams::default(),
        }
    }

    /// For a new view. The copy was written before it was made, so the stream does not wait.
    pub(crate) fn give_to(&self, to: Use) {
        self.streams.add(to.ends_on());
    }

    /// Waits for the work of the views' streams, which may write the copy.
    pub(crate) fn wait(&self, py: Python<'_>) -> PyResult<()> {
        wait_for_streams(py, self.device(), &self.streams)
    }
}

impl Deref for DeviceCopy {
    type Target = PrivateMemory;

    fn deref(&self) -> &PrivateMemory {
        &self.memory
    }
}
