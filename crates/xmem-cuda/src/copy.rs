// SPDX-License-Identifier: MPL-2.0

//! Copies between host and device, and host memory that devices access directly.
#![allow(unsafe_code)] // calls the driver

use std::sync::{Arc, OnceLock};

use xmem_shm::os::mapping::Mapping;

use crate::counts::{COUNTERS, count};
use crate::device::Device;
use crate::error::CudaError;
use crate::host::{READ_ONLY, Registered};
use crate::result;
use crate::rows::{self, Rows, To};

/// Whether host memory was registered with CUDA. Then devices access it directly, and the driver needs no staging buffer.
#[derive(Debug, Default)]
pub struct Pinned(OnceLock<Option<Registered>>);

impl Pinned {
    /// Registers the memory, once. If that fails, the driver uses a staging buffer.
    pub fn pin(&self, mapping: &Arc<Mapping>, read_only: bool, device: &Device) {
        self.0.get_or_init(|| {
            let can = !read_only || device.registers_read_only();
            let flags = if read_only { READ_ONLY } else { 0 };
            can.then(|| Registered::new(mapping, flags, device).ok())
                .flatten()
        });
    }
}

/// Copies host memory to a device, and waits for the copy.
pub fn upload(device: &Device, to: u64, from: &[u8]) -> Result<(), CudaError> {
    count(&COUNTERS.copies);
    count(&COUNTERS.host_syncs);
    to_device_now(device, to, from)
}

/// Copies to a device, and waits until the device memory has the bytes.
pub fn to_device_now(device: &Device, to: u64, from: &[u8]) -> Result<(), CudaError> {
    // Not `cuMemcpyHtoD`: it returns when the bytes are read, which is before the device memory has them.
    let spare = device.spare_stream()?;
    let stream = spare.stream().raw();
    device.with(|| {
        // SAFETY: the caller owns the memory, and the bytes are borrowed until this returns.
        unsafe { result::copy_to_device_async(to, from.as_ptr().cast(), from.len(), stream) }?;
        // SAFETY: a stream of this process.
        unsafe { result::stream_synchronize(stream) }
    })
}

/// Copies from a device, and waits for the copy.
pub fn to_host_now(device: &Device, to: &mut [u8], from: u64) -> Result<(), CudaError> {
    let spare = device.spare_stream()?;
    let stream = spare.stream().raw();
    device.with(|| {
        // SAFETY: the caller owns the memory, and the bytes are borrowed until this returns.
        unsafe { result::copy_to_host_async(to.as_mut_ptr().cast(), from, to.len(), stream) }?;
        // SAFETY: a stream of this process.
        unsafe { result::stream_synchronize(stream) }
    })
}

/// Copies rows of bytes, each with the address from which its offsets count, and waits for the copy. The caller has checked
/// that they are inside of both.
pub fn rows_now(device: &Device, start: To, rows: &[(u64, &Rows)]) -> Result<(), CudaError> {
    let spare = device.spare_stream()?;
    device.with(|| {
        let copied = rows.iter().try_for_each(|(from, rows)| {
            // SAFETY: the caller owns both memories completely until this returns.
            unsafe { rows::enqueue(spare.stream(), start, *from, rows) }
        });
        // Also after an error, because copies that were queued before still write.
        // SAFETY: a stream of this process.
        let done = unsafe { result::stream_synchronize(spare.stream().raw()) };
        copied.and(done)
    })
}
