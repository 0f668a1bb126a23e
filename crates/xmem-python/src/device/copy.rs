// SPDX-License-Identifier: MPL-2.0

//! A copy of a frame in private device memory, which views may write.

use std::ops::Deref;

use pyo3::prelude::*;
use xmem_core::cuda::{PrivateMemory, Stream, drop_later};

use super::wait::wait_for_streams;
use super::{Streams, Use};

/// The memory, and the streams of its views. The memory is freed after the work of these streams, because the driver need not
/// wait for that. It may be dropped on any thread, like a [`DeviceFrame`](super::DeviceFrame).
#[derive(Debug)]
pub(crate) struct DeviceCopy {
    /// `None` only while it is dropped.
    memory: Option<PrivateMemory>,
    streams: Streams,
}

impl DeviceCopy {
    pub(crate) fn new(memory: PrivateMemory) -> Self {
        Self {
            memory: Some(memory),
            streams: Streams::default(),
        }
    }

    /// Called for a new view. The stream need not wait, because the copy was written before the view was made.
    pub(crate) fn give_to(&self, to: Use) {
        self.streams.add(to.ends_on());
    }

    /// The memory is kept until the stream has done the work that it has when the last view is dropped.
    pub(crate) fn keep_for(&self, stream: Stream) {
        self.streams.add(Use::On(stream).ends_on());
    }

    /// Waits for the work of the views' streams, which may write the copy.
    pub(crate) fn wait(&self, py: Python<'_>) -> PyResult<()> {
        wait_for_streams(py, self.device(), &self.streams)
    }
}

impl Deref for DeviceCopy {
    type Target = PrivateMemory;

    fn deref(&self) -> &PrivateMemory {
        self.memory.as_ref().expect("it is not dropped")
    }
}

impl Drop for DeviceCopy {
    fn drop(&mut self) {
        if let Some(memory) = self.memory.take() {
            let device = memory.device().clone();
            drop_later(memory, &device, self.streams.all());
        }
    }
}
