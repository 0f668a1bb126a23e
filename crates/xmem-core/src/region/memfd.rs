// SPDX-License-Identifier: MPL-2.0

//! Sealed memfd regions: the default.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use xmem_shm::os::mapping::{Access, Mapping};
use xmem_shm::os::memfd::{self, Seal};
use xmem_shm::os::udmabuf::Udmabuf;

use super::device::Pinned;
use super::dmabuf::SlotBuffers;
use super::imported::{check_len, system};
use crate::error::RegionError;

#[derive(Debug)]
pub(crate) struct Owned {
    pub(super) fd: OwnedFd,
    /// The only writable mapping. After the seal no other one can be created.
    pub(super) mapping: Arc<Mapping>,
    /// Whether it is registered with devices.
    pub(super) pinned: Pinned,
    pub(super) dmabufs: Box<SlotBuffers>,
}

impl Owned {
    /// `udmabuf`: what makes a DMA buffer for each slot, and the size of a slot.
    pub(super) fn create(
        len: usize,
        udmabuf: Option<(&Udmabuf, usize)>,
    ) -> Result<Self, RegionError> {
        let fd = memfd::create("xmem-region", len)
            .map_err(|error| RegionError::NoSpace { size: len, error })?;
        let mapping = Mapping::new(&fd, len, Access::ReadWrite).map_err(system("map a region"))?;
        let dmabufs = SlotBuffers::make(&fd, &mapping, udmabuf);
        let sealed = memfd::seal(&fd, Seal::SizeAndFutureWrites);
        let sealed = sealed.and_then(|()| memfd::for_reading(fd));
        let fd = sealed.map_err(system("seal a region"))?;
        Ok(Self {
            fd,
            mapping: Arc::new(mapping),
            pinned: Pinned::default(),
            dmabufs: Box::new(dmabufs),
        })
    }
}

pub(super) fn view(fd: &OwnedFd, len: usize) -> Result<Mapping, RegionError> {
    check_len(memfd::sealed_len(fd, Seal::SizeAndFutureWrites), len)?;
    Mapping::when_read(fd, len).map_err(system("map a region"))
}
