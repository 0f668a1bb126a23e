// SPDX-License-Identifier: MPL-2.0

//! Copies of frames in private device memory of this process.

use xmem_shm::bounds::is_range_inside;

use crate::copy::{rows_now, to_host_now};
use crate::counts::{COUNTERS, count};
use crate::device::Device;
use crate::error::CudaError;
use crate::memory::LegacyAllocation;
use crate::rows::{Rows, To};

/// Private device memory of this process. It can be dropped on any thread: a thread that may wait for the device frees it.
#[derive(Debug)]
pub struct PrivateMemory {
    memory: LegacyAllocation,
    len: usize,
}

impl PrivateMemory {
    /// Allocates this many bytes, uninitialised.
    ///
    /// # Errors
    ///
    /// [`CudaError::OutOfMemory`]. For others see [`CudaError`].
    pub fn new(device: &Device, len: usize) -> Result<Self, CudaError> {
        // The driver has no empty allocations.
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

    /// Copies `len` bytes from the address `ptr` on. Waits for the copy, but not for streams that write to the memory.
    ///
    /// # Errors
    ///
    /// [`CudaError::Gone`] if they are not in this memory. For others see [`CudaError`].
    pub fn copy(&self, ptr: u64, len: usize) -> Result<Self, CudaError> {
        check(&[(self.ptr(), self.len)], ptr, len)?;
        copied(self.device(), ptr, len)
    }

    /// Copies bytes from the address `ptr` on to host memory. Waits for the copy, but not for streams that write to the memory.
    ///
    /// # Errors
    ///
    /// As [`copy`](Self::copy).
    pub fn copy_to_host(&self, ptr: u64, to: &mut [u8]) -> Result<(), CudaError> {
        check(&[(self.ptr(), self.len)], ptr, to.len())?;
        downloaded(self.device(), ptr, to)
    }
}

/// Checks that bytes are in one of these ranges.
///
/// # Errors
///
/// [`CudaError::Gone`] if they are not.
pub fn check(ranges: &[(u64, usize)], ptr: u64, len: usize) -> Result<(), CudaError> {
    let lies_in = |(start, size): &(u64, usize)| {
        ptr.checked_sub(*start)
            .is_some_and(|at| is_range_inside(at, len as u64, *size as u64))
    };
    if ranges.iter().any(lies_in) {
        Ok(())
    } else {
        Err(CudaError::Gone)
    }
}

/// Copies `len` bytes to new memory. Waits for the copy.
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

/// Copies to host memory. Waits for the copy.
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
