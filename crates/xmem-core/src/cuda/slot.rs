// SPDX-License-Identifier: MPL-2.0

//! A slot on a device, in the hands of who writes it.

use super::counts::{COUNTERS, count};
use super::device::Device;
use super::error::CudaError;
use super::event::until_done;
use super::stream::Stream;
use super::twin::Twin;

/// Where a slot lies on its device. Valid while its [`WriteLease`](crate::WriteLease) lives.
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

    /// Its size in bytes, at least what was asked for.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has no bytes: then only the events of frames that lie elsewhere are here.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The device.
    pub fn device(&self) -> &Device {
        self.twin.device()
    }

    /// What this process published in the slot, to be waited for without the lease.
    pub fn work(&self) -> SlotWork {
        SlotWork {
            twin: self.twin.clone(),
            slot: self.slot,
        }
    }

    /// Has a stream wait for what this process published in the slot before. Needed only if frames are written on several
    /// streams; consumers are done with the slot already.
    ///
    /// # Errors
    ///
    /// See [`CudaError`].
    pub fn wait_on(&self, stream: Stream) -> Result<(), CudaError> {
        self.twin.wait(self.slot, stream)
    }
}

/// What a device had to do in a slot when it was published last. It does not hold the slot.
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

    /// Has a stream wait for it.
    ///
    /// # Errors
    ///
    /// See [`CudaError`].
    pub fn wait_on(&self, stream: Stream) -> Result<(), CudaError> {
        self.twin.wait(self.slot, stream)
    }

    /// Waits for it. The CPU waits; [`wait_on`](Self::wait_on) does without.
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
}
