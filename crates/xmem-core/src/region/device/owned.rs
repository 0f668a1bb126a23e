// SPDX-License-Identifier: MPL-2.0

//! A CUDA region as its producer has it.
#![allow(unsafe_code)] // a header is copied into a fresh mapping

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::AtomicU32;

use xmem_shm::abi::device_header::{DeviceHeader, SLOT_HEAD};
use xmem_shm::os::mapping::Mapping;

use super::View;
use crate::error::RegionError;
use crate::region::Ticket;

/// What a slot's `ready` word says: the slot's event says when the device's work on the frame has ended.
pub(crate) const PENDING: u32 = 0;
/// It has ended.
pub(crate) const READY: u32 = 1;
/// It never will, since the producer's context is in error: the frame is not whole.
pub(crate) const FAILED: u32 = 2;

/// The words that a slot's host room begins with.
#[derive(Debug)]
pub(crate) struct SlotHead<'a> {
    /// [`PENDING`], [`READY`] or [`FAILED`].
    pub(crate) ready: &'a AtomicU32,
}

pub(super) fn slot_head<'a>(
    mapping: &'a Mapping,
    header: &DeviceHeader,
    slot: u32,
) -> Option<SlotHead<'a>> {
    let at =
        (slot < header.slots).then(|| header.slots_at + u64::from(slot) * header.host_stride)?;
    let ready = mapping
        .words32(usize::try_from(at).ok()?, SLOT_HEAD / 4)
        .first()?;
    Some(SlotHead { ready })
}

/// A CUDA region as its producer has it.
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
        let host = crate::region::memfd::Owned::create(host_len, false)?;
        let bytes = header.encode();
        assert!(bytes.len() <= host_len, "planned with its header");
        // SAFETY: inside a mapping that nobody else has yet.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), host.mapping.ptr(), bytes.len()) };
        Ok(Self { host, header, twin })
    }

    pub(in crate::region) fn mapping(&self) -> &Mapping {
        &self.host.mapping
    }

    pub(crate) fn header(&self) -> &DeviceHeader {
        &self.header
    }

    pub(crate) fn slot_head(&self, slot: u32) -> Option<SlotHead<'_>> {
        slot_head(&self.host.mapping, &self.header, slot)
    }

    pub(in crate::region) fn fd(&self) -> BorrowedFd<'_> {
        self.host.fd.as_fd()
    }

    /// The descriptor of its device memory, if that has one.
    pub(in crate::region) fn twin_fd(&self) -> Option<BorrowedFd<'_>> {
        self.twin.fd()
    }
}

/// The descriptors of a CUDA region of another pool, to be passed on.
#[derive(Debug)]
pub(crate) struct Fds {
    host: OwnedFd,
    twin: Option<OwnedFd>,
    /// Bytes of the host half.
    pub(crate) len: usize,
}

impl Fds {
    pub(crate) fn of(view: &View) -> std::io::Result<Self> {
        Ok(Self {
            host: view.fd.try_clone()?,
            twin: view.twin_fd.as_ref().map(OwnedFd::try_clone).transpose()?,
            len: view.mapping.len(),
        })
    }

    pub(crate) fn ticket(&self) -> Ticket<BorrowedFd<'_>> {
        Ticket::Cuda(self.host.as_fd(), self.twin.as_ref().map(AsFd::as_fd))
    }
}
