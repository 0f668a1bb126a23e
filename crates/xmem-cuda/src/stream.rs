// SPDX-License-Identifier: MPL-2.0

//! Streams, which are the caller's.

use cudarc::driver::sys::CUstream;

use crate::counts::{COUNTERS, count};
use crate::device::Device;
use crate::error::CudaError;
use crate::result;

/// A CUDA stream, by its handle (`CUstream`, `cudaStream_t`, `torch.cuda.Stream.cuda_stream`, `cupy.cuda.Stream.ptr`). It
/// is of the device's primary context, or of another one on the same device. Default streams (0, 1 and 2) are the primary
/// context's.
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
        device.with_context_of(self, |_| unsafe { result::stream_synchronize(self.raw()) })
    }

    /// Whether the handle stands for a stream of whatever context is current.
    pub fn is_default(self) -> bool {
        self.0 <= Self::PER_THREAD.0
    }

    /// The handle as the driver's type.
    pub fn raw(self) -> CUstream {
        self.0 as CUstream
    }
}
