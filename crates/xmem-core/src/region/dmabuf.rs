// SPDX-License-Identifier: MPL-2.0

//! Slots as DMA buffers, which devices import. The producer makes one for each slot, before it seals the region, and sends those
//! that a consumer asks for.

use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex};

use rustix::io::Errno;
use xmem_shm::lock::lock;
use xmem_shm::os::mapping::Mapping;
use xmem_shm::os::memfd;
use xmem_shm::os::udmabuf::Udmabuf;

use super::imported::Imported;
use crate::error::remedy;

/// Why a producer without this option has none.
const NOT_ALLOWED: &str = "its producer does not allow it: set dmabuf=allow on xmemsink (allow_dmabuf in Rust), if its consumers \
                           may write to frames";

/// The DMA buffers of a region's slots, or why there are none.
#[derive(Debug)]
pub(super) struct SlotBuffers {
    slot_len: usize,
    fds: Result<Vec<OwnedFd>, String>,
}

impl SlotBuffers {
    /// Makes a DMA buffer for each slot of a region that is not sealed yet. Failures are not the producer's: its other consumers
    /// need no DMA buffers.
    pub(super) fn make(
        fd: &OwnedFd,
        mapping: &Mapping,
        udmabuf: Option<(&Udmabuf, usize)>,
    ) -> Self {
        let Some((device, slot_len)) = udmabuf else {
            return Self {
                slot_len: 0,
                fds: Err(NOT_ALLOWED.to_owned()),
            };
        };
        let fds = make_all(device, fd, mapping, slot_len).map_err(|error| {
            let reason = cannot_make(slot_len, &error);
            log::warn!("consumers get no DMA buffers: {reason}");
            reason
        });
        Self { slot_len, fds }
    }

    /// The DMA buffer with this byte of the region, and its first byte there. `Err`: why there is none.
    pub(super) fn at(&self, offset: u64) -> Result<(BorrowedFd<'_>, u64), &str> {
        let fds = self.fds.as_ref().map_err(String::as_str)?;
        let slot = offset / self.slot_len.max(1) as u64;
        let fd = usize::try_from(slot).ok().and_then(|slot| fds.get(slot));
        let fd = fd.ok_or("it lies outside its region")?;
        Ok((fd.as_fd(), slot * self.slot_len as u64))
    }
}

fn make_all(
    device: &Udmabuf,
    fd: &OwnedFd,
    mapping: &Mapping,
    slot_len: usize,
) -> io::Result<Vec<OwnedFd>> {
    // Both must come first: see `Udmabuf::make`.
    mapping.touch();
    memfd::seal_shrinking(fd)?;
    let starts = (0..mapping.len()).step_by(slot_len.max(1));
    starts
        .map(|start| device.make(fd, start, slot_len))
        .collect()
}

fn cannot_make(slot_len: usize, error: &io::Error) -> String {
    let remedy = match Errno::from_io_error(error) {
        Some(Errno::INVAL) => {
            ": raise size_limit_mb of the module udmabuf (/sys/module/udmabuf/parameters)"
        }
        _ => remedy(error),
    };
    format!("the producer cannot make a DMA buffer of {slot_len} bytes: {error}{remedy}")
}

/// A range of memory as a DMA buffer, for devices and for elements that import such buffers. The memory is that of the frame.
///
/// The descriptor gives write access to the memory. Do not write to it, because other consumers read the same frame.
#[derive(Debug, Clone)]
pub struct Dmabuf {
    memory: Arc<Imported>,
    offset: usize,
}

impl Dmabuf {
    pub(super) fn new(memory: Arc<Imported>, offset: usize) -> Self {
        Self { memory, offset }
    }

    /// The same buffer, from a later byte on.
    pub(crate) fn from(self, start: usize) -> Self {
        let offset = self.offset + start;
        Self { offset, ..self }
    }

    /// First byte of the frame, or of the plane, in the DMA buffer.
    pub fn offset(&self) -> usize {
        self.offset
    }
}

impl AsFd for Dmabuf {
    /// Open as long as this or a clone exists.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.memory.fd()
    }
}

/// The DMA buffers that a consumer has received for a region, by their first byte there. Closed with the region.
#[derive(Debug, Default)]
pub(super) struct ReceivedBuffers(Mutex<BTreeMap<usize, Arc<Imported>>>);

impl ReceivedBuffers {
    /// The one with these bytes of the region.
    pub(super) fn find(&self, bytes: &Range<usize>) -> Option<Dmabuf> {
        let buffers = lock(&self.0);
        let (start, memory) = buffers.range(..=bytes.start).next_back()?;
        let offset = bytes.start - start;
        (bytes.len() <= memory.len().checked_sub(offset)?)
            .then(|| Dmabuf::new(memory.clone(), offset))
    }

    /// Keeps one if it has these bytes. Returns whether it has.
    pub(super) fn keep(&self, start: usize, memory: Imported, bytes: &Range<usize>) -> bool {
        let end = start.checked_add(memory.len());
        if start > bytes.start || end.is_none_or(|end| end < bytes.end) {
            return false;
        }
        let mut buffers = lock(&self.0);
        // From a producer that sent another place for them before.
        buffers.retain(|other, _| !(start..=bytes.start).contains(other));
        buffers.insert(start, Arc::new(memory));
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::CreateError;
    use xmem_shm::os::memfd::Seal;

    fn memory(len: usize) -> Imported {
        let fd = memfd::create("xmem-test", len).unwrap();
        memfd::seal(&fd, Seal::SizeAndFutureWrites).unwrap();
        Imported::new(fd, len).unwrap()
    }

    #[test]
    fn buffers_are_found_by_any_of_their_bytes() {
        let received = ReceivedBuffers::default();
        assert!(received.find(&(0..1)).is_none());
        assert!(received.keep(8192, memory(8192), &(8192..16384)));
        assert_eq!(received.find(&(8200..16384)).unwrap().offset(), 8);
        for bytes in [0..1, 8191..8193, 8192..16385, 16384..16385] {
            assert!(received.find(&bytes).is_none(), "{bytes:?}");
        }
        // What a producer sends need not have the slot.
        assert!(!received.keep(0, memory(4096), &(4096..8192)));
        assert!(!received.keep(9000, memory(4096), &(8192..16384)));
        // It cannot hide another one either.
        assert!(received.keep(8300, memory(4096), &(8400..8500)));
        assert!(received.keep(8192, memory(8192), &(8400..16384)));
        assert_eq!(received.find(&(8400..16384)).unwrap().offset(), 208);
    }

    #[test]
    fn what_is_missing_is_named() {
        let text = |kind: io::ErrorKind| CreateError::Dmabuf(kind.into()).to_string();
        assert!(text(io::ErrorKind::NotFound).contains("modprobe udmabuf"));
        assert!(text(io::ErrorKind::PermissionDenied).contains("group of the device"));
        let large = cannot_make(1 << 27, &Errno::INVAL.into());
        assert!(large.contains("134217728") && large.contains("size_limit_mb"));
        assert!(cannot_make(1 << 20, &Errno::MFILE.into()).contains("ulimit -n"));
    }
}
