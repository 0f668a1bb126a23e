// SPDX-License-Identifier: MPL-2.0

//! CUDA regions: an ordinary sealed memfd, the host half, with a twin on a device. The slots' words, leases and attachments
//! are as ever; only the payload lies on the device.

#[cfg(feature = "cuda")]
pub(crate) mod import;
#[cfg(feature = "cuda")]
pub(crate) mod mode;
#[cfg(feature = "cuda")]
pub(crate) mod owned;
#[cfg(feature = "cuda")]
pub(crate) mod slot;
#[cfg(feature = "cuda")]
pub(crate) mod twin;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering;

use xmem_shm::abi::device_header::{DeviceHeader, TwinKind};
use xmem_shm::os::mapping::{Access, Mapping};
use xmem_shm::os::memfd::{self, Seal};

use crate::error::RegionError;
use crate::region::{check_len, system};

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
    pub(crate) imports: import::Imports,
}

impl View {
    /// Maps what a producer sent, if it is what it should be.
    pub(in crate::region) fn open(
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
            imports: import::Imports::default(),
        })
    }

    pub(in crate::region) fn mapping(&self) -> &Mapping {
        &self.mapping
    }

    pub(crate) fn header(&self) -> &DeviceHeader {
        &self.header
    }

    #[cfg(feature = "cuda")]
    pub(crate) fn slot_head(&self, slot: u32) -> Option<owned::SlotHead<'_>> {
        owned::slot_head(&self.mapping, &self.header, slot)
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
    pub(in crate::region) fn payload_len(&self) -> u64 {
        match self.header.kind {
            TwinKind::None => self.header.slots.into(),
            _ => self.header.device_len,
        }
    }

    pub(in crate::region) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    #[cfg(feature = "cuda")]
    pub(crate) fn twin_fd(&self) -> Option<BorrowedFd<'_>> {
        self.twin_fd.as_ref().map(AsFd::as_fd)
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
