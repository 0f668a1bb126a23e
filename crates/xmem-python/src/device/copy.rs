// SPDX-License-Identifier: MPL-2.0

//! A copy of a frame in device memory of this process alone, which views may write.

use pyo3::prelude::*;
use xmem_core::cuda::{CudaError, Device, PrivateMemory, Stream};

use super::{Streams, Use, wait_until};
use crate::errors::IntoPyErr;

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
        let device = self.device();
        for stream in self.streams.all() {
            // A destroyed stream takes no mark. The default stream waits for its work.
            let mark = || {
                let mark = stream.mark(device);
                mark.or_else(|_| Stream::LEGACY_DEFAULT.mark(device))
            };
            let mark = py.detach(mark).map_err(IntoPyErr::into_py_err)?;
            wait_until(py, |slice| mark.synchronize_for(slice))?;
        }
        Ok(())
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
