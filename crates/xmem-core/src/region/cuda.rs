// SPDX-License-Identifier: MPL-2.0

//! CUDA regions: an ordinary sealed memfd, the host half, with a twin on a device. The slots' words, leases and attachments
//! are as ever; only the payload lies on the device.
#![cfg_attr(feature = "cuda", allow(unsafe_code))] // a header is copied into a fresh mapping

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
#[cfg(feature = "cuda")]
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering;

#[cfg(feature = "cuda")]
use xmem_shm::abi::device_header::SLOT_HEAD;
use xmem_shm::abi::device_header::{DeviceHeader, TwinKind};
use xmem_shm::os::mapping::{Access, Mapping};
use xmem_shm::os::memfd::{self, Seal};

use super::{check_len, system};
use crate::error::RegionError;

/// What a slot's `ready` word says: the slot's event says when the device's work on the frame has ended.
#[cfg(feature = "cuda")]
pub(crate) const PENDING: u32 = 0;
/// It has ended.
#[cfg(feature = "cuda")]
pub(crate) const READY: u32 = 1;
/// It never will, since the producer's context is in error: the frame is not whole.
#[cfg(feature = "cuda")]
pub(crate) const FAILED: u32 = 2;

/// The words that a slot's host room begins with.
#[cfg(feature = "cuda")]
#[derive(Debug)]
pub(crate) struct SlotHead<'a> {
    /// [`PENDING`], [`READY`] or [`FAILED`].
    pub(crate) ready: &'a AtomicU32,
}

#[cfg(feature = "cuda")]
fn slot_head<'a>(mapping: &'a Mapping, header: &DeviceHeader, slot: u32) -> Option<SlotHead<'a>> {
    let at =
        (slot < header.slots).then(|| header.slots_at + u64::from(slot) * header.host_stride)?;
    let ready = mapping
        .words32(usize::try_from(at).ok()?, SLOT_HEAD / 4)
        .first()?;
    Some(SlotHead { ready })
}

/// A CUDA region as its producer has it.
#[cfg(feature = "cuda")]
#[derive(Debug)]
pub(crate) struct Owned {
    host: super::memfd::Owned,
    header: DeviceHeader,
    pub(crate) twin: crate::cuda::Twin,
}

#[cfg(feature = "cuda")]
impl Owned {
    pub(crate) fn create(
        host_len: usize,
        header: DeviceHeader,
        twin: crate::cuda::Twin,
    ) -> Result<Self, RegionError> {
        let host = super::memfd::Owned::create(host_len, false)?;
        let bytes = header.encode();
        assert!(bytes.len() <= host_len, "planned with its header");
        // SAFETY: inside a mapping that nobody else has yet.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), host.mapping.ptr(), bytes.len()) };
        Ok(Self { host, header, twin })
    }

    pub(super) fn mapping(&self) -> &Mapping {
        &self.host.mapping
    }

    pub(crate) fn header(&self) -> &DeviceHeader {
        &self.header
    }

    pub(crate) fn slot_head(&self, slot: u32) -> Option<SlotHead<'_>> {
        slot_head(&self.host.mapping, &self.header, slot)
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.host.fd.as_fd()
    }

    /// The descriptor of its device memory, if that has one.
    pub(super) fn twin_fd(&self) -> Option<BorrowedFd<'_>> {
        self.twin.fd()
    }
}

/// A CUDA region as a consumer has it: its host half, and what is needed for the twin. Mapped without a driver.
#[derive(Debug)]
pub(crate) struct View {
    mapping: Mapping,
    fd: OwnedFd,
    /// Of the device memory.
    #[cfg_attr(not(feature = "cuda"), allow(dead_code))] // kept to be passed on
    twin_fd: Option<OwnedFd>,
    header: DeviceHeader,
    #[cfg(feature = "cuda")]
    pub(crate) imports: crate::cuda::Imports,
}

impl View {
    /// Maps what a producer sent, if it is what it should be.
    pub(super) fn open(
        fd: OwnedFd,
        twin_fd: Option<OwnedFd>,
        len: usize,
    ) -> Result<Self, RegionError> {
        // The producer may let nobody write there, whatever the pool is.
        check_len(memfd::sealed_len(&fd, Seal::SizeAndFutureWrites), len)?;
        let mapping = Mapping::new(&fd, len, Access::Read).map_err(system("map a region"))?;
        let header = read_header(&mapping).map_err(RegionError::Untrusted)?;
        if (header.kind == TwinKind::Vmm) != twin_fd.is_some() {
            return Err(RegionError::Untrusted(
                "its device memory did not come with it",
            ));
        }
        Ok(Self {
            mapping,
            fd,
            twin_fd,
            header,
            #[cfg(feature = "cuda")]
            imports: crate::cuda::Imports::default(),
        })
    }

    pub(super) fn mapping(&self) -> &Mapping {
        &self.mapping
    }

    pub(crate) fn header(&self) -> &DeviceHeader {
        &self.header
    }

    #[cfg(feature = "cuda")]
    pub(crate) fn slot_head(&self, slot: u32) -> Option<SlotHead<'_>> {
        slot_head(&self.mapping, &self.header, slot)
    }

    /// Where the slot with these bytes of the host half lies on the device; its number, where there are only events.
    pub(crate) fn device_offset(&self, slot_at: usize, slot_len: usize) -> Option<usize> {
        let slot = u64::from(self.header.slot_at(slot_at, slot_len)?);
        let offset = match self.header.kind {
            TwinKind::None => slot,
            _ => slot * self.header.device_stride,
        };
        usize::try_from(offset).ok()
    }

    /// Bytes in which pieces of frames may lie. Where there are only events, each slot's is a piece at its number.
    pub(super) fn payload_len(&self) -> u64 {
        match self.header.kind {
            TwinKind::None => self.header.slots.into(),
            _ => self.header.device_len,
        }
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    #[cfg(feature = "cuda")]
    pub(crate) fn twin_fd(&self) -> Option<BorrowedFd<'_>> {
        self.twin_fd.as_ref().map(AsFd::as_fd)
    }
}

/// The descriptors of a CUDA region of another pool, to be passed on.
#[cfg(feature = "cuda")]
#[derive(Debug)]
pub(crate) struct Fds {
    host: OwnedFd,
    twin: Option<OwnedFd>,
    /// Bytes of the host half.
    pub(crate) len: usize,
}

#[cfg(feature = "cuda")]
impl Fds {
    pub(crate) fn of(view: &View) -> std::io::Result<Self> {
        Ok(Self {
            host: view.fd.try_clone()?,
            twin: view.twin_fd.as_ref().map(OwnedFd::try_clone).transpose()?,
            len: view.mapping.len(),
        })
    }

    pub(crate) fn ticket(&self) -> super::Ticket<BorrowedFd<'_>> {
        super::Ticket::Cuda(self.host.as_fd(), self.twin.as_ref().map(AsFd::as_fd))
    }
}

/// Reads and checks the header of a region that another process made.
fn read_header(mapping: &Mapping) -> Result<DeviceHeader, &'static str> {
    // A copy, word by word: its producer could change it while it is looked at.
    let copy = |len: usize| -> Vec<u8> {
        let words = mapping.words32(0, len / 4);
        words
            .iter()
            .flat_map(|word| word.load(Ordering::Relaxed).to_ne_bytes())
            .collect()
    };
    let start = copy(mapping.len().min(256));
    let len = DeviceHeader::len_of(&start).ok_or("it has no device header")?;
    DeviceHeader::decode(&copy(len), mapping.len())
}
