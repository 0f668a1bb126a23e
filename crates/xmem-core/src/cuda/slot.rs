// SPDX-License-Identifier: MPL-2.0

//! A slot on a device, in the hands of who writes it.

use super::device::Device;
use super::error::CudaError;
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

    /// Names the memory that the slot is a part of, at random: what an address means changes when memory is freed, and then
    /// this does.
    pub fn memory_number(&self) -> u128 {
        self.twin.number()
    }

    /// The device.
    pub fn device(&self) -> &Device {
        self.twin.device()
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
