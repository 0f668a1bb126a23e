// SPDX-License-Identifier: MPL-2.0

//! Copies of frames and slots: between host and device, and to private device memory of this process.
#![allow(unsafe_code)] // calls the driver

use xmem_cuda::copy::{rows_now, to_device_now, to_host_now};
use xmem_cuda::counts::{COUNTERS, count};
use xmem_cuda::device::Device;
use xmem_cuda::error::CudaError;
use xmem_cuda::event::until_done;
use xmem_cuda::private::{PrivateMemory, check, copied, downloaded};
use xmem_cuda::result;
use xmem_cuda::rows::{Rows, To};
use xmem_cuda::stream::Stream;

use super::frame::CudaFrame;
use crate::frame::hold::Memory;
use crate::frame::lease::ReadLease;
use crate::region::device::slot::CudaSlot;

/// The source of a copy from a device: a frame, or a slot that this process writes. The device may still work on the previous
/// frame of the slot.
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

    /// The first byte, after it is written. Work on a slot is ordered by the default stream, as when it is published.
    fn wait(&self) -> Result<u64, CudaError> {
        match self {
            Self::Frame(frame) => frame.until_done().map(|()| frame.ptr()),
            Self::Slot(slot) => {
                until_done(|| slot.twin.is_done(slot.slot))?;
                Stream::LEGACY_DEFAULT.synchronize(slot.device())?;
                Ok(slot.ptr())
            }
        }
    }
}

/// Copies from a device to host memory, and waits for the copy.
pub(crate) fn download(from: &Source<'_>, to: &mut [u8]) -> Result<(), CudaError> {
    count(&COUNTERS.copies);
    count(&COUNTERS.host_syncs);
    to_host_now(from.device(), to, from.wait()?)
}

/// Copies from device to device, and waits for the copy.
pub(crate) fn between(from: &Source<'_>, to: (&Device, u64), len: usize) -> Result<(), CudaError> {
    count(&COUNTERS.copies);
    count(&COUNTERS.host_syncs);
    let ptr = from.wait()?;
    let (device, (to_device, to)) = (from.device(), to);
    let spare = device.spare_stream()?;
    let stream = spare.stream().raw();
    let copied = device.with(|| {
        let (from_context, to_context) = (device.context(), to_device.context());
        // SAFETY: the caller has both. Contexts live until the process ends.
        unsafe { result::copy_peer_async(to, to_context, ptr, from_context, len, stream) }?;
        // SAFETY: a stream of this process.
        unsafe { result::stream_synchronize(stream) }
    });
    match copied {
        // Memory that is mapped for one device only may be inaccessible to the other. Then it is copied through the host.
        Err(CudaError::Driver { .. }) if device != to_device => {
            let mut bytes = vec![0; len];
            to_host_now(device, &mut bytes, ptr)?;
            to_device_now(to_device, to, &bytes)
        }
        copied => copied,
    }
}

/// Registers a frame's host memory with a device, so that copies need no staging buffer.
pub(crate) fn pin(lease: &ReadLease, device: &Device) {
    match lease.hold().memory() {
        Memory::Own(region) => region.pin(device),
        Memory::Received(view) => view.pin(device),
    }
}

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
