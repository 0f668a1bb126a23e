// SPDX-License-Identifier: MPL-2.0

//! Copies of frames to private device memory of this process.

use xmem_cuda::copy::rows_now;
use xmem_cuda::counts::{COUNTERS, count};
use xmem_cuda::error::CudaError;
use xmem_cuda::private::{PrivateMemory, check, copied, downloaded};
use xmem_cuda::rows::{Rows, To};

use super::frame::CudaFrame;

impl CudaFrame {
    fn check(&self, ptr: u64, len: usize) -> Result<(), CudaError> {
        check(&self.parts().collect::<Vec<_>>(), ptr, len)
    }

    /// Copies `len` bytes of the frame, from the address `ptr` on, on its device. Waits for the producer's work and for the
    /// copy.
    ///
    /// # Errors
    ///
    /// [`CudaError::Gone`] if they are not in one of its [parts](Self::parts), and others as
    /// [`synchronize`](Self::synchronize).
    pub fn copy(&self, ptr: u64, len: usize) -> Result<PrivateMemory, CudaError> {
        self.check(ptr, len)?;
        self.until_done()?;
        copied(self.device(), ptr, len)
    }

    /// Copies rows of bytes, such as those of each plane, to private memory on the frame's device. Offsets count as in
    /// [`download_rows`](Self::download_rows). Waits like [`copy`](Self::copy), and counts as one copy.
    ///
    /// # Errors
    ///
    /// [`CudaError::OutOfBounds`], [`CudaError::OtherDevice`], and others as [`synchronize`](Self::synchronize).
    pub fn copy_rows_to(&self, to: &PrivateMemory, rows: &[Rows]) -> Result<(), CudaError> {
        if to.device() != self.device() {
            return Err(CudaError::OtherDevice {
                actual: to.device().ordinal(),
                asked: self.device().ordinal(),
            });
        }
        let found = self.find(rows, to.len())?;
        count(&COUNTERS.copies);
        count(&COUNTERS.host_syncs);
        self.until_done()?;
        rows_now(self.device(), To::Device(to.ptr()), &found)
    }

    /// Copies bytes of the frame, from the address `ptr` on, to host memory. Waits like [`copy`](Self::copy).
    ///
    /// # Errors
    ///
    /// As [`copy`](Self::copy).
    pub fn copy_to_host(&self, ptr: u64, to: &mut [u8]) -> Result<(), CudaError> {
        self.check(ptr, to.len())?;
        self.until_done()?;
        downloaded(self.device(), ptr, to)
    }
}
