// SPDX-License-Identifier: MPL-2.0

//! Memory that other code allocated, identified by its descriptor: a DMA buffer, or a memfd that is sealed against shrinking and
//! against future writes.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::OnceLock;

use xmem_shm::fault::{self, Point};
use xmem_shm::os::dmabuf;
use xmem_shm::os::mapping::{Access, Mapping};
use xmem_shm::os::memfd::{self, Seal};

use crate::error::{RegionError, SystemError};

/// A descriptor whose memory can neither shrink nor get holes while it is read.
#[derive(Debug)]
pub(crate) struct Imported {
    fd: OwnedFd,
    len: usize,
    is_dmabuf: bool,
    /// Mapped at the first read by the CPU. Devices do not need it.
    mapping: OnceLock<Mapping>,
}

impl Imported {
    /// Checks a descriptor of memory with at least `len` bytes.
    pub(crate) fn new(fd: OwnedFd, len: usize) -> Result<Self, RegionError> {
        let dmabuf_len = dmabuf::len(&fd).unwrap_or(None);
        let actual = match dmabuf_len {
            Some(len) => Ok(len),
            // The owner may continue to write by its mappings. Without the seal it could punch holes, and the memory that a read
            // of a hole allocates is the reader's.
            None => memfd::sealed_len(&fd, Seal::SizeAndFutureWrites),
        };
        let actual = check_len(actual, len)?;
        Ok(Self {
            fd,
            len: actual,
            is_dmabuf: dmabuf_len.is_some(),
            mapping: OnceLock::new(),
        })
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    pub(crate) fn is_dmabuf(&self) -> bool {
        self.is_dmabuf
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Maps it for reading.
    pub(crate) fn map(&self) -> io::Result<&Mapping> {
        if let Some(mapping) = self.mapping.get() {
            return Ok(mapping);
        }
        let mapping = Mapping::new(&self.fd, self.len, Access::Read)?;
        Ok(self.mapping.get_or_init(|| mapping))
    }

    /// Call this before the CPU reads the memory, and `end_read` afterwards.
    pub(crate) fn begin_read(&self) -> io::Result<()> {
        fault::call(Point::BeginRead)?;
        if self.is_dmabuf {
            dmabuf::begin_read(&self.fd)?;
        }
        Ok(())
    }

    pub(crate) fn end_read(&self) {
        if self.is_dmabuf
            && let Err(error) = dmabuf::end_read(&self.fd)
        {
            log::debug!("a DMA buffer was not given back to its device: {error}");
        }
    }
}

/// Checks that the memory of another process has at least the stated size. Returns its real size.
pub(super) fn check_len(
    actual: Result<usize, &'static str>,
    len: usize,
) -> Result<usize, RegionError> {
    actual
        .and_then(|actual| match actual {
            0 => Err("it is empty"),
            _ if actual < len => Err("it is smaller than its producer states"),
            _ => Ok(actual),
        })
        .map_err(RegionError::Untrusted)
}

pub(super) fn system(what: &'static str) -> impl FnOnce(io::Error) -> RegionError {
    move |error| SystemError { what, error }.into()
}
