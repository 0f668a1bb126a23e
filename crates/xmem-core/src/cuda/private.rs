// SPDX-License-Identifier: MPL-2.0

//! Copies of frames in memory of this process's own, which is not shared.

use xmem_shm::bounds::lie_inside;

use super::copy::{rows_now, to_host_now};
use super::counts::{COUNTERS, count};
use super::device::Device;
use super::error::CudaError;
use super::frame::CudaFrame;
use super::memory::LegacyAllocation;
use super::rows::{Rows, To};

/// Device memory that no other process sees. It is freed by a thread that waits for the device, from whatever thread it is
/// dropped.
#[derive(Debug)]
pub struct PrivateMemory {
    memory: LegacyAllocation,
    len: usize,
}

impl PrivateMemory {
    /// Memory for so many bytes, which are not set.
    ///
    /// # Errors
    ///
    /// [`CudaError::OutOfMemory`], and others as [`CudaError`] says.
    pub fn new(device: &Device, len: usize) -> Result<Self, CudaError> {
        // The driver has no allocations without bytes.
        let memory = LegacyAllocation::new(device, len.max(1))?;
        Ok(Self { memory, len })
    }

    /// First byte on the device.
    pub fn ptr(&self) -> u64 {
        self.memory.ptr()
    }

    /// Size in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The device.
    pub fn device(&self) -> &Device {
        self.memory.device()
    }

    /// A copy of `len` bytes of it from the address `ptr` on. Waits for the copy, but for no stream that writes there.
    ///
    /// # Errors
    ///
    /// [`CudaError::Gone`] if they do not lie in it, and others as [`CudaError`] says.
    pub fn copy(&self, ptr: u64, len: usize) -> Result<Self, CudaError> {
        check(&[(self.ptr(), self.len)], ptr, len)?;
        copied(self.device(), ptr, len)
    }

    /// Copies bytes of it, from the address `ptr` on, to host memory. Waits for the copy, but for no stream that writes there.
    ///
    /// # Errors
    ///
    /// As [`copy`](Self::copy).
    pub fn copy_to_host(&self, ptr: u64, to: &mut [u8]) -> Result<(), CudaError> {
        check(&[(self.ptr(), self.len)], ptr, to.len())?;
        downloaded(self.device(), ptr, to)
    }
}

/// Whether bytes lie in one of these pieces.
fn check(pieces: &[(u64, usize)], ptr: u64, len: usize) -> Result<(), CudaError> {
    let lies_in = |(start, size): &(u64, usize)| {
        ptr.checked_sub(*start)
            .is_some_and(|at| lie_inside(at, len as u64, *size as u64))
    };
    if pieces.iter().any(lies_in) {
        Ok(())
    } else {
        Err(CudaError::Gone)
    }
}

fn copied(device: &Device, from: u64, len: usize) -> Result<PrivateMemory, CudaError> {
    count(&COUNTERS.copies);
    count(&COUNTERS.host_syncs);
    let memory = PrivateMemory::new(device, len)?;
    let whole = Rows::plain(0, 0, len);
    rows_now(device, To::Device(memory.ptr()), &[(from, &whole)])?;
    Ok(memory)
}

fn downloaded(device: &Device, from: u64, to: &mut [u8]) -> Result<(), CudaError> {
    count(&COUNTERS.copies);
    count(&COUNTERS.host_syncs);
    if to.is_empty() {
        return Ok(());
    }
    to_host_now(device, to, from)
}

impl CudaFrame {
    fn check(&self, ptr: u64, len: usize) -> Result<(), CudaError> {
        check(&self.pieces().collect::<Vec<_>>(), ptr, len)
    }

    /// A copy of `len` bytes of the frame, from the address `ptr` on, on its device. Waits for the producer's work and for the
    /// copy.
    ///
    /// # Errors
    ///
    /// [`CudaError::Gone`] if they do not lie in one of its [pieces](Self::pieces), and others as
    /// [`synchronize`](Self::synchronize).
    pub fn copy(&self, ptr: u64, len: usize) -> Result<PrivateMemory, CudaError> {
        self.check(ptr, len)?;
        self.until_done()?;
        copied(self.device(), ptr, len)
    }

    /// Copies rows of bytes to private memory on the frame's device, those of each plane for example. Where they are copied from
    /// is counted as for [`download_rows`](Self::download_rows). Waits as [`copy`](Self::copy), and counts as one copy.
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

    /// Copies bytes of the frame, from the address `ptr` on, to host memory. Waits as [`copy`](Self::copy).
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
