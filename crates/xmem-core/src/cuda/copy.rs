// SPDX-License-Identifier: MPL-2.0

//! Copies between host and device, and host memory that devices reach by themselves.
#![allow(unsafe_code)] // calls of the driver

use super::device::Device;
use super::error::CudaError;
use super::result;

/// Copies to a device, and waits until the bytes are there.
pub(super) fn to_device_now(device: &Device, to: u64, from: &[u8]) -> Result<(), CudaError> {
    // Not `cuMemcpyHtoD`: that returns when the bytes are read, and before the device has them.
    let stream = device.own_stream()?.raw();
    device.with(|| {
        // SAFETY: the caller has the memory; the bytes are ours until this returns.
        unsafe { result::copy_to_device_async(to, from.as_ptr().cast(), from.len(), stream) }?;
        // SAFETY: a stream of this process.
        unsafe { result::stream_synchronize(stream) }
    })
}

/// Copies from a device, and waits for that.
pub(super) fn to_host_now(device: &Device, to: &mut [u8], from: u64) -> Result<(), CudaError> {
    let stream = device.own_stream()?.raw();
    device.with(|| {
        // SAFETY: the caller has the memory; the bytes are ours until this returns.
        unsafe { result::copy_to_host_async(to.as_mut_ptr().cast(), from, to.len(), stream) }?;
        // SAFETY: a stream of this process.
        unsafe { result::stream_synchronize(stream) }
    })
}
