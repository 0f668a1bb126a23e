// SPDX-License-Identifier: MPL-2.0

//! Streams of the caller.

use cudarc::driver::sys::CUstream;

use crate::counts::{COUNTERS, count};
use crate::device::Device;
use crate::error::{CudaError, NOT_READY};
use crate::result;

/// A CUDA stream, by its handle (`CUstream`, `cudaStream_t`, `torch.cuda.Stream.cuda_stream`, `cupy.cuda.Stream.ptr`). It
/// belongs to the device's primary context, or to another one on the same device. The default streams (0, 1 and 2) belong to
/// the primary context.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Stream(u64);

impl Stream {
    /// The default stream, which waits for all other blocking streams.
    pub const LEGACY_DEFAULT: Self = Self(1);
    /// The default stream of the calling thread.
    pub const PER_THREAD: Self = Self(2);

    /// A stream by its handle.
    ///
    /// # Safety
    ///
    /// It is a stream of the device with which it is used, and it is not destroyed before the work that was queued through this
    /// value has ended.
    #[allow(unsafe_code)] // declares a condition for callers
    pub unsafe fn from_raw(handle: u64) -> Self {
        Self(handle)
    }

    /// Its handle.
    pub fn as_raw(self) -> u64 {
        self.0
    }

    /// Waits on the CPU until all present work on the stream has ended.
    ///
    /// # Errors
    ///
    /// See [`CudaError`].
    #[allow(unsafe_code)] // calls the driver
    pub fn synchronize(self, device: &Device) -> Result<(), CudaError> {
        count(&COUNTERS.host_syncs);
        // SAFETY: the stream is alive (`from_raw`).
        device.with_context_of(self, |_| unsafe { result::stream_synchronize(self.raw()) })
    }

    /// Whether all present work on the stream has ended. `false` for default streams, which may wait for other streams.
    #[allow(unsafe_code)] // calls the driver
    pub(crate) fn is_idle(self, device: &Device) -> Result<bool, CudaError> {
        if self.is_default() {
            return Ok(false);
        }
        // SAFETY: the stream is alive (`from_raw`).
        match device.with_context_of(self, |_| unsafe { result::stream_query(self.raw()) }) {
            Ok(()) => Ok(true),
            Err(error) if error.is(NOT_READY) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Whether the handle refers to a default stream, which depends on the current context.
    pub fn is_default(self) -> bool {
        self.0 <= Self::PER_THREAD.0
    }

    /// The handle as the driver's type.
    pub fn raw(self) -> CUstream {
        self.0 as CUstream
    }
}
