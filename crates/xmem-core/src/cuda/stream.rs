// SPDX-License-Identifier: MPL-2.0

//! Streams, which are the caller's.

use cudarc::driver::sys::CUstream;

use super::counts::{COUNTERS, count};
use super::device::Device;
use super::error::CudaError;
use super::result;

/// A CUDA stream, by its handle (`CUstream`, `cudaStream_t`, `torch.cuda.Stream.cuda_stream`, `cupy.cuda.Stream.ptr`). It
/// is of the device's primary context, or of another one on the same device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Stream(u64);

impl Stream {
    /// The default stream, which waits for all others.
    pub const LEGACY_DEFAULT: Self = Self(1);
    /// The default stream of the calling thread.
    pub const PER_THREAD: Self = Self(2);

    /// A stream by its handle.
    ///
    /// # Safety
    ///
    /// It is a stream of a device that it is used with, and is not destroyed before what was put on it through this
    /// is done.
    #[allow(unsafe_code)] // a promise
    pub unsafe fn from_raw(handle: u64) -> Self {
        Self(handle)
    }

    /// Its handle.
    pub fn as_raw(self) -> u64 {
        self.0
    }

    /// Waits until all is done that was put on it. The CPU waits.
    ///
    /// # Errors
    ///
    /// See [`CudaError`].
    #[allow(unsafe_code)] // a call of the driver
    pub fn synchronize(self, device: &Device) -> Result<(), CudaError> {
        count(&COUNTERS.host_syncs);
        // SAFETY: the stream is alive (`from_raw`).
        device.with(|| unsafe { result::stream_synchronize(self.raw()) })
    }

    pub(super) fn raw(self) -> CUstream {
        self.0 as CUstream
    }
}
