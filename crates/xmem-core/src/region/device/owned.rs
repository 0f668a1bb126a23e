// SPDX-License-Identifier: MPL-2.0

//! A CUDA region in its producer.
#![allow(unsafe_code)] // copies a header into a new mapping

use std::os::fd::{AsFd, BorrowedFd};

use xmem_shm::abi::device_header::{DeviceHeader, SLOT_HEAD};
use xmem_shm::os::mapping::Mapping;
use xmem_shm::sync::AtomicU32;

use super::View;
use crate::error::RegionError;
use crate::region::Ticket;

/// A slot's `ready` word: wait for the slot's event.
pub(crate) const PENDING: u32 = 0;
/// A slot's `ready` word: the device's work has ended.
pub(crate) const READY: u32 = 1;
/// A slot's `ready` word: the work will never end, because the producer's context is in error. The frame is incomplete.
pub(crate) const FAILED: u32 = 2;

/// The words at the beginning of a slot's host room.
#[derive(Debug)]
pub(crate) struct SlotHead<'a> {
    /// [`PENDING`], [`READY`] or [`FAILED`].
    pub(crate) ready: &'a AtomicU32,
}

fn slot_head<'a>(mapping: &'a Mapping, header: &DeviceHeader, slot: u32) -> Option<SlotHead<'a>> {
    let at =
        (slot < header.slots).then(|| header.slots_at + u64::from(slot) * header.host_stride)?;
    let ready = mapping
        .words32(usize::try_from(at).ok()?, SLOT_HEAD / 4)
        .first()?;
    Some(SlotHead { ready })
}

impl View {
    pub(crate) fn slot_head(&self, slot: u32) -> Option<SlotHead<'_>> {
        slot_head(&self.mapping, &self.header, slot)
    }
}

/// A CUDA region in its producer.
#[derive(Debug)]
pub(crate) struct Owned {
    host: crate::region::memfd::Owned,
    header: DeviceHeader,
    pub(crate) twin: super::twin::Twin,
}

impl Owned {
    pub(crate) fn create(
        host_len: usize,
        header: DeviceHeader,
        twin: super::twin::Twin,
    ) -> Result<Self, RegionError> {
        let host = crate::region::memfd::Owned::create(host_len, None)?;
        let bytes = header.encode();
        assert!(bytes.len() <= host_len, "planned with its header");
        // SAFETY: inside of a mapping that no other code has yet.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), host.mapping.ptr(), bytes.len()) };
        Ok(Self { host, header, twin })
    }

    pub(in crate::region) fn mapping(&self) -> &Mapping {
        &self.host.mapping
    }

    pub(crate) fn header(&self) -> &DeviceHeader {
        &self.header
    }

    /// The size of the device memory in bytes.
    pub(in crate::region) fn twin_len(&self) -> usize {
        self.twin.len()
    }

    /// Whether the device memory must not be freed while another process has it open.
    pub(in crate::region) fn ends_with_producer(&self) -> bool {
        self.twin.is_legacy()
    }

    /// The device, and how the memory is shared.
    pub(in crate::region) fn describe(&self) -> Option<String> {
        self.twin.describe()
    }

    pub(crate) fn slot_head(&self, slot: u32) -> Option<SlotHead<'_>> {
        slot_head(&self.host.mapping, &self.header, slot)
    }

    pub(in crate::region) fn ticket(&self) -> Ticket<BorrowedFd<'_>> {
        Ticket::Cuda(self.host.fd.as_fd(), self.twin.fd())
    }
}
