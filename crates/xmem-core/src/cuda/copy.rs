// SPDX-License-Identifier: MPL-2.0

//! Copies between host and device, and host memory that devices reach by themselves.
#![allow(unsafe_code)] // calls of the driver

use std::sync::{Arc, OnceLock};

use xmem_shm::os::mapping::Mapping;

use super::counts::{COUNTERS, count};
use super::device::Device;
use super::error::CudaError;
use super::event::until_done;
use super::frame::CudaFrame;
use super::host::{READ_ONLY, Registered};
use super::result;
use super::rows::{self, Rows, To};
use super::slot::CudaSlot;

/// Whether host memory was registered with CUDA. Then devices copy from and to it by themselves, and the driver needs no
/// staging copy.
#[derive(Debug, Default)]
pub(crate) struct Pinned(OnceLock<Option<Registered<Mapping>>>);

impl Pinned {
    /// Registers the memory, once. Where that does not work, copies take the driver's way.
    pub(crate) fn pin(&self, mapping: &Arc<Mapping>, read_only: bool, device: &Device) {
        self.0.get_or_init(|| {
            let can = !read_only || device.registers_read_only();
            let flags = if read_only { READ_ONLY } else { 0 };
            can.then(|| Registered::new(mapping, flags, device).ok())
                .flatten()
        });
    }
}

/// Copies host memory to a device, and waits for that.
pub(crate) fn upload(device: &Device, to: u64, from: &[u8]) -> Result<(), CudaError> {
    count(&COUNTERS.copies);
    count(&COUNTERS.host_syncs);
    to_device_now(device, to, from)
}

/// What is copied from a device: a frame, or a slot that this process writes. What was published in a slot before may not
/// be done.
pub(crate) enum Source<'a> {
    Frame(&'a CudaFrame),
    Slot(CudaSlot<'a>),
}

impl Source<'_> {
    pub(crate) fn device(&self) -> &Device {
        match self {
            Self::Frame(frame) => frame.device(),
            Self::Slot(slot) => slot.device(),
        }
    }

    /// First byte, when it is written.
    fn wait(&self) -> Result<u64, CudaError> {
        match self {
            Self::Frame(frame) => frame.until_done().map(|()| frame.ptr()),
            Self::Slot(slot) => until_done(|| slot.twin.is_done(slot.slot)).map(|()| slot.ptr()),
        }
    }
}

/// Copies from a device to host memory, and waits for that.
pub(crate) fn download(from: &Source<'_>, to: &mut [u8]) -> Result<(), CudaError> {
    count(&COUNTERS.copies);
    count(&COUNTERS.host_syncs);
    to_host_now(from.device(), to, from.wait()?)
}

/// Copies from device to device, and waits for that.
pub(crate) fn between(from: &Source<'_>, to: (&Device, u64), len: usize) -> Result<(), CudaError> {
    count(&COUNTERS.copies);
    count(&COUNTERS.host_syncs);
    let ptr = from.wait()?;
    let (device, (to_device, to)) = (from.device(), to);
    let spare = device.spare_stream()?;
    let stream = spare.stream().raw();
    let copied = device.with(|| {
        let (from_context, to_context) = (device.context(), to_device.context());
        // SAFETY: the caller has both; contexts are kept for as long as the process runs.
        unsafe { result::copy_peer_async(to, to_context, ptr, from_context, len, stream) }?;
        // SAFETY: a stream of this process.
        unsafe { result::stream_synchronize(stream) }
    });
    match copied {
        // Memory that is mapped for one device only need not be within the other's reach: then by way of the host.
        Err(CudaError::Driver { .. }) if device != to_device => {
            let mut bytes = vec![0; len];
            to_host_now(device, &mut bytes, ptr)?;
            to_device_now(to_device, to, &bytes)
        }
        copied => copied,
    }
}

/// Copies to a device, and waits until the bytes are there.
pub(super) fn to_device_now(device: &Device, to: u64, from: &[u8]) -> Result<(), CudaError> {
    // Not `cuMemcpyHtoD`: that returns when the bytes are read, and before the device has them.
    let spare = device.spare_stream()?;
    let stream = spare.stream().raw();
    device.with(|| {
        // SAFETY: the caller has the memory; the bytes are ours until this returns.
        unsafe { result::copy_to_device_async(to, from.as_ptr().cast(), from.len(), stream) }?;
        // SAFETY: a stream of this process.
        unsafe { result::stream_synchronize(stream) }
    })
}

/// Copies from a device, and waits for that.
pub(super) fn to_host_now(device: &Device, to: &mut [u8], from: u64) -> Result<(), CudaError> {
    let spare = device.spare_stream()?;
    let stream = spare.stream().raw();
    device.with(|| {
        // SAFETY: the caller has the memory; the bytes are ours until this returns.
        unsafe { result::copy_to_host_async(to.as_mut_ptr().cast(), from, to.len(), stream) }?;
        // SAFETY: a stream of this process.
        unsafe { result::stream_synchronize(stream) }
    })
}

/// Copies rows of bytes, each with the address from which its first byte is counted, and waits for that. The caller has looked
/// whether they lie in both.
pub(super) fn rows_now(device: &Device, start: To, rows: &[(u64, &Rows)]) -> Result<(), CudaError> {
    let spare = device.spare_stream()?;
    device.with(|| {
        let copied = rows.iter().try_for_each(|(from, rows)| {
            // SAFETY: the caller has both, in whole, until this returns.
            unsafe { rows::enqueue(spare.stream(), start, *from, rows) }
        });
        // Also after an error: what was put there before still writes.
        // SAFETY: a stream of this process.
        let done = unsafe { result::stream_synchronize(spare.stream().raw()) };
        copied.and(done)
    })
}
