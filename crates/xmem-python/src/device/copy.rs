// SPDX-License-Identifier: MPL-2.0

//! A copy of a frame in device memory of this process alone, which views may write.

use pyo3::prelude::*;
use xmem_core::cuda::{CudaError, Device, PrivateMemory};

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

    pub(crate) fn ptr(&self) -> u64 {
        self.memory.ptr()
    }

    pub(crate) fn len(&self) -> usize {
        self.memory.len()
    }

    pub(crate) fn device(&self) -> &Device {
        self.memory.device()
    }

    /// For a new view. The copy was written before it was made, so the stream does not wait.
    pub(crate) fn give_to(&self, to: Use) {
        self.streams.add(to.ends_on());
    }

    /// Waits for the work of the views' streams, which may write the copy.
    pub(crate) fn wait(&self, py: Python<'_>) -> PyResult<()> {
        wait_for_streams(py, self.device(), &self.streams)
    }

    /// A copy of some bytes on the device.
    pub(crate) fn copy(&self, ptr: u64, len: usize) -> Result<PrivateMemory, CudaError> {
        self.memory.copy(ptr, len)
    }

    /// A copy of some bytes in host memory.
    pub(crate) fn copy_to_host(&self, ptr: u64, to: &mut [u8]) -> Result<(), CudaError> {
        self.memory.copy_to_host(ptr, to)
    }
}
