// SPDX-License-Identifier: MPL-2.0

//! CUDA regions: a sealed memfd, the host half, with a twin on a device. Slot heads, events and attachments are in the host
//! half. The payload is on the device.

#[cfg(feature = "cuda")]
pub(crate) mod import;
pub(crate) mod mode;
#[cfg(not(feature = "cuda"))]
mod none;
#[cfg(feature = "cuda")]
pub(crate) mod owned;
#[cfg(feature = "cuda")]
mod pin;
#[cfg(feature = "cuda")]
pub(crate) mod slot;
#[cfg(feature = "cuda")]
pub(crate) mod twin;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use xmem_shm::abi::device_header::{DeviceHeader, TwinKind};
use xmem_shm::os::mapping::{Access, Mapping};
use xmem_shm::os::memfd::{self, Seal};

use crate::error::RegionError;
use crate::region::Ticket;
use crate::region::imported::{check_len, system};

// The names that a region uses, with and without CUDA.
#[cfg(not(feature = "cuda"))]
pub(crate) use none::{Device, Imports, Owned, Pinned, until};
#[cfg(feature = "cuda")]
pub(crate) use {
    import::Imports,
    owned::Owned,
    pin::{Pinned, until},
    xmem_cuda::device::Device,
};

/// A CUDA region in a consumer: its host half, and the data to import the twin. Mapped without a driver.
#[derive(Debug)]
pub(crate) struct View {
    mapping: Mapping,
    fd: OwnedFd,
    /// Descriptor of the device memory.
    twin_fd: Option<OwnedFd>,
    header: DeviceHeader,
    pub(crate) imports: Imports,
}

impl View {
    /// Maps a region that a producer sent, after checks.
    pub(in crate::region) fn open(
        fd: OwnedFd,
        twin_fd: Option<OwnedFd>,
        len: usize,
    ) -> Result<Self, RegionError> {
        // Always sealed against writing, with any setting of the pool.
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
            imports: Imports::default(),
        })
    }

    pub(in crate::region) fn mapping(&self) -> &Mapping {
        &self.mapping
    }

    pub(crate) fn header(&self) -> &DeviceHeader {
        &self.header
    }

    /// A flag that is set when the device memory is closed, if its producer must wait for that.
    pub(crate) fn closing(&self) -> Option<Arc<AtomicBool>> {
        self.imports.closing(&self.header)
    }

    /// The offset on the device of the slot with these bytes in the host half. If there are only events, the number of the
    /// slot.
    pub(crate) fn device_offset(&self, slot_at: usize, slot_len: usize) -> Option<usize> {
        let slot = u64::from(self.header.slot_at(slot_at, slot_len)?);
        let offset = match self.header.kind {
            TwinKind::None => slot,
            _ => slot * self.header.device_stride,
        };
        usize::try_from(offset).ok()
    }

    /// The size of the range in which parts of frames can be. If there are only events, each slot's event is a part at the
    /// slot's number.
    pub(in crate::region) fn payload_len(&self) -> u64 {
        match self.header.kind {
            TwinKind::None => self.header.slots.into(),
            _ => self.header.device_len,
        }
    }

    pub(in crate::region) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    pub(crate) fn twin_fd(&self) -> Option<BorrowedFd<'_>> {
        self.twin_fd.as_ref().map(AsFd::as_fd)
    }
}

/// The descriptors of a CUDA region of another pool, for forwarding.
#[derive(Debug)]
pub(crate) struct Fds {
    host: OwnedFd,
    twin: Option<OwnedFd>,
    /// Bytes of the host half.
    len: usize,
}

impl Fds {
    pub(crate) fn of(view: &View) -> std::io::Result<Self> {
        Ok(Self {
            host: view.fd.try_clone()?,
            twin: view.twin_fd.as_ref().map(OwnedFd::try_clone).transpose()?,
            len: view.mapping.len(),
        })
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn ticket(&self) -> Ticket<BorrowedFd<'_>> {
        Ticket::Cuda(self.host.as_fd(), self.twin.as_ref().map(AsFd::as_fd))
    }
}

/// Reads and checks the header of a region from another process.
fn read_header(mapping: &Mapping) -> Result<DeviceHeader, &'static str> {
    // Copied word by word first, because its producer could change it during the checks.
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
