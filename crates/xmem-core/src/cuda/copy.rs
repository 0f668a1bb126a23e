// SPDX-License-Identifier: MPL-2.0

//! Copies between host and device, and host memory that devices reach by themselves.
#![allow(unsafe_code)] // calls of the driver

use super::device::Device;
use super::error::CudaError;
use super::result;

/// Copies to a device, and waits for that.
pub(super) fn to_device_now(device: &Device, to: u64, from: &[u8]) -> Result<(), CudaError> {
    // SAFETY: the caller has the memory; the bytes are ours until this returns.
    device.with(|| unsafe { result::copy_to_device(to, from.as_ptr().cast(), from.len()) })
}

/// Copies from a device, and waits for that.
pub(super) fn to_host_now(device: &Device, to: &mut [u8], from: u64) -> Result<(), CudaError> {
    // SAFETY: the caller has the memory; the bytes are ours until this returns.
    device.with(|| unsafe { result::copy_to_host(to.as_mut_ptr().cast(), from, to.len()) })
}
