// SPDX-License-Identifier: MPL-2.0

//! A slot on a device that is being written.

#![allow(unsafe_code)] // calls of the driver

use std::time::Duration;

use xmem_cuda::counts::{COUNTERS, count};
use xmem_cuda::device::Device;
use xmem_cuda::error::CudaError;
use xmem_cuda::event::{done_by, until_done};
use xmem_cuda::memory::check_device;
use xmem_cuda::rows::{self, Rows, To};
use xmem_cuda::stream::Stream;
use xmem_shm::os::clock::Deadline;

use super::twin::Twin;

/// A slot in the memory of its device. Valid while its [`WriteLease`](crate::WriteLease) exists.
#[derive(Debug, Clone, Copy)]
pub struct CudaSlot<'a> {
    pub(crate) twin: &'a Twin,
    pub(crate) slot: u32,
    pub(crate) ptr: u64,
    pub(crate) len: usize,
}

impl CudaSlot<'_> {
    /// First byte of the slot on the device.
    pub fn ptr(&self) -> u64 {
        self.ptr
    }

    /// The size in bytes, at least the requested size.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the slot has no bytes. Such a slot only has the events for a frame in other memory.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// A random number that identifies the memory of the slot. When memory is freed, its address may get another meaning;
    /// the number changes then too.
    pub fn memory_number(&self) -> u128 {
        self.twin.number()
    }

    /// The device.
    pub fn device(&self) -> &Device {
        self.twin.device()
    }

    /// The work that this process published in the slot, which can be waited for without the lease.
    pub fn work(&self) -> SlotWork {
        SlotWork {
            twin: self.twin.clone(),
            slot: self.slot,
        }
    }

    /// Makes a stream wait for the frame this process published in the slot before. Needed only if frames are written on
    /// several streams; consumers are done with the slot already.
    ///
    /// # Errors
    ///
    /// See [`CudaError`].
    pub fn wait_on(&self, stream: Stream) -> Result<(), CudaError> {
        self.twin.wait(self.slot, stream)
    }

    /// Makes a stream copy bytes from device memory of this process to the beginning of the slot, after all work already
    /// on the stream. No CPU waits. The memory is on the same device, in any context. Then call
    /// [`publish_on`](crate::WriteLease::publish_on) with the same stream.
    ///
    /// # Errors
    ///
    /// [`CudaError::OutOfBounds`], [`CudaError::NotImportable`] if it is not device memory, [`CudaError::OtherDevice`];
    /// see [`CudaError`] for the others.
    ///
    /// # Safety
    ///
    /// The source is in memory of this process that is neither freed nor written until the stream has copied it. The
    /// slot's lease exists until then, or is published on the stream.
    pub unsafe fn copy_from(&self, stream: Stream, from: u64, len: usize) -> Result<(), CudaError> {
        // SAFETY: promised by the caller.
        unsafe { self.copy_rows_from(stream, from, &[Rows::plain(0, 0, len)]) }
    }

    /// As [`copy_from`](Self::copy_from), with rows of bytes: those of each plane of a frame, for example. It counts as
    /// one copy ([`counts`](xmem_cuda::counts::counts)).
    ///
    /// # Errors
    ///
    /// As [`copy_from`](Self::copy_from). Some of the rows may have been copied then.
    ///
    /// # Safety
    ///
    /// As [`copy_from`](Self::copy_from).
    pub unsafe fn copy_rows_from(
        &self,
        stream: Stream,
        from: u64,
        rows: &[Rows],
    ) -> Result<(), CudaError> {
        for rows in rows {
            rows.check_to(self.len)?;
            let end = rows.read_end()? as u64;
            from.checked_add(end).ok_or(CudaError::OutOfBounds)?;
        }
        self.device().with_context_of(stream, |_| {
            check_device(self.device(), from)?;
            count(&COUNTERS.copies);
            rows.iter().try_for_each(|rows| {
                // SAFETY: the rows fit into the slot, and the caller promises the rest. The stream is alive
                // (`Stream::from_raw`).
                unsafe { rows::enqueue(stream, To::Device(self.ptr), from, rows) }
            })
        })
    }
}

/// The device's work in a slot when it was published last. It does not hold the slot.
#[derive(Debug, Clone)]
pub struct SlotWork {
    twin: Twin,
    slot: u32,
}

impl SlotWork {
    /// The device.
    pub fn device(&self) -> &Device {
        self.twin.device()
    }

    /// Makes a stream wait for the work.
    ///
    /// # Errors
    ///
    /// See [`CudaError`].
    pub fn wait_on(&self, stream: Stream) -> Result<(), CudaError> {
        self.twin.wait(self.slot, stream)
    }

    /// Waits for the work on the CPU; [`wait_on`](Self::wait_on) makes a stream wait instead.
    ///
    /// # Errors
    ///
    /// See [`CudaError`].
    pub fn synchronize(&self) -> Result<(), CudaError> {
        if self.twin.is_done(self.slot)? {
            return Ok(());
        }
        count(&COUNTERS.host_syncs);
        until_done(|| self.twin.is_done(self.slot))
    }

    /// As [`synchronize`](Self::synchronize), but at most `time`. Returns whether the work is done.
    ///
    /// # Errors
    ///
    /// See [`CudaError`].
    pub fn synchronize_for(&self, time: Duration) -> Result<bool, CudaError> {
        if self.twin.is_done(self.slot)? {
            return Ok(true);
        }
        count(&COUNTERS.host_syncs);
        done_by(Deadline::after(Some(time)), || self.twin.is_done(self.slot))
    }
}
