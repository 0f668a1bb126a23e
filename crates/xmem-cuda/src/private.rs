// SPDX-License-Identifier: MPL-2.0

//! Copies of frames in memory of this process's own, which is not shared.

use xmem_shm::bounds::lie_inside;

use crate::copy::{rows_now, to_host_now};
use crate::counts::{COUNTERS, count};
use crate::device::Device;
use crate::error::CudaError;
use crate::memory::LegacyAllocation;
use crate::rows::{Rows, To};

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
    /// [`CudaError::OutOfMemory`]. For others see [`CudaError`].
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
    /// [`CudaError::Gone`] if they do not lie in it. For others see [`CudaError`].
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

/// Whether bytes lie in one of these ranges.
///
/// # Errors
///
/// [`CudaError::Gone`] if they do not.
pub fn check(ranges: &[(u64, usize)], ptr: u64, len: usize) -> Result<(), CudaError> {
    let lies_in = |(start, size): &(u64, usize)| {
        ptr.checked_sub(*start)
            .is_some_and(|at| lie_inside(at, len as u64, *size as u64))
    };
    if ranges.iter().any(lies_in) {
        Ok(())
    } else {
        Err(CudaError::Gone)
    }
}

/// A copy of `len` bytes. Waits for it.
///
/// # Errors
///
/// See [`CudaError`].
pub fn copied(device: &Device, from: u64, len: usize) -> Result<PrivateMemory, CudaError> {
    count(&COUNTERS.copies);
    count(&COUNTERS.host_syncs);
    let memory = PrivateMemory::new(device, len)?;
    let whole = Rows::plain(0, 0, len);
    rows_now(device, To::Device(memory.ptr()), &[(from, &whole)])?;
    Ok(memory)
}

/// Copies to host memory. Waits for it.
///
/// # Errors
///
/// See [`CudaError`].
pub fn downloaded(device: &Device, from: u64, to: &mut [u8]) -> Result<(), CudaError> {
    count(&COUNTERS.copies);
    count(&COUNTERS.host_syncs);
    if to.is_empty() {
        return Ok(());
    }
    to_host_now(device, to, from)
}
