// SPDX-License-Identifier: MPL-2.0

//! A copy of a frame in private device memory, which views may write.

use std::ops::Deref;

use pyo3::prelude::*;
use xmem_core::cuda::PrivateMemory;

use super::wait::wait_for_streams;
use super::{Streams, Use};

/// The memory, and the streams of its views.
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

    /// Called for a new view. The stream need not wait, because the copy was written before the view was made.
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
