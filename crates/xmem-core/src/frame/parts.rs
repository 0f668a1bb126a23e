// SPDX-License-Identifier: MPL-2.0

//! Frames in one or more parts, which are not in their slot. A reader holds the slot, and the slot's attachments contain the
//! places of the parts.
#![allow(unsafe_code)] // slices over shared memory, while the protocol keeps writers out

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, MutexGuard};

use xmem_shm::abi::parts::PartPlace;
use xmem_shm::bounds::is_range_inside;
use xmem_shm::lock::{inside, lock};

use super::hold::Hold;
use crate::region::{Dmabuf, RegionView};

/// A part of a received frame.
#[derive(Debug)]
pub struct Part {
    view: Arc<RegionView>,
    offset: usize,
    size: usize,
    tag: u32,
    /// The lease in the pool of origin.
    at_origin: Option<Hold>,
    /// Whether the device was notified that the CPU reads the part. Locked during the notification.
    is_read: Mutex<bool>,
}

impl Part {
    /// `None`: it is outside of its region.
    pub(crate) fn new(
        view: Arc<RegionView>,
        place: PartPlace,
        held_there: Option<Hold>,
    ) -> Option<Self> {
        let offset = usize::try_from(place.offset).ok()?;
        let size = usize::try_from(place.size).ok()?;
        is_range_inside(place.offset, place.size, view.payload_len()).then_some(Self {
            view,
            offset,
            size,
            tag: place.tag,
            at_origin: held_there,
            is_read: Mutex::default(),
        })
    }

    /// The file descriptor of the part's memory. Do not write to the memory, even if the descriptor is writable.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.view.fd()
    }

    /// The part as a DMA buffer, if it is in a slot of the frame's pool and the consumer set
    /// [`dmabuf`](crate::ConsumerBuilder::dmabuf).
    pub fn dmabuf(&self) -> Option<Dmabuf> {
        self.view.dmabuf(&(self.offset..self.offset + self.size))
    }

    /// The part as a DMA buffer, also if it is in one of another library.
    pub(crate) fn any_dmabuf(&self) -> Option<Dmabuf> {
        self.view
            .any_dmabuf(&(self.offset..self.offset + self.size))
    }

    pub(crate) fn view(&self) -> &Arc<RegionView> {
        &self.view
    }

    /// Whether the part is on a device.
    pub fn is_on_device(&self) -> bool {
        self.view.cuda().is_some()
    }

    /// This process's handle in the pool of origin: a lease, or a reference without one.
    pub(crate) fn held_at_origin(&self) -> Option<&Hold> {
        self.at_origin.as_ref()
    }

    /// Whether the producer that it was forwarded from has ended; see
    /// [`ReadLease::producer_is_gone`](crate::ReadLease::producer_is_gone). `None`: it was not forwarded.
    pub fn origin_is_gone(&self) -> Option<bool> {
        self.held_at_origin().map(Hold::producer_is_gone)
    }

    /// First byte of the part in the memory of its descriptor.
    pub fn offset(&self) -> usize {
        self.offset
    }

    /// Size in bytes.
    pub fn len(&self) -> usize {
        self.size
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.size == 0
    }

    /// The tag of the part, which the publisher of the frame set.
    pub fn tag(&self) -> u32 {
        self.tag
    }

    /// The part's bytes. Waits for the device that writes them, if it is a DMA buffer.
    ///
    /// # Errors
    ///
    /// If the memory cannot be mapped: not every device's can.
    pub fn map(&self) -> io::Result<&[u8]> {
        if self.is_on_device() {
            return Err(io::Error::new(
                io::ErrorKind::Unsupported,
                "it is on a CUDA device",
            ));
        }
        let start = match self.view.imported() {
            Some(imported) => {
                let mapping = imported.map()?;
                let mut is_read = self.is_read();
                if !*is_read {
                    imported.begin_read()?;
                    *is_read = true;
                }
                mapping.ptr()
            }
            None => self.view.ptr(),
        };
        // SAFETY: inside of the region (checked by `new`), which the view keeps mapped. The lease of the frame keeps out
        // writers that follow the protocol, and bytes have no invalid values.
        Ok(unsafe { std::slice::from_raw_parts(start.wrapping_add(self.offset), self.size) })
    }

    /// The bytes, if the part is already mapped.
    pub(crate) fn mapped(&self) -> Option<&[u8]> {
        let is_mapped = self.view.imported().is_none() || *self.is_read();
        if is_mapped { self.map().ok() } else { None }
    }

    fn is_read(&self) -> MutexGuard<'_, bool> {
        lock(&self.is_read)
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        let is_read = inside(&mut self.is_read);
        if *is_read && let Some(imported) = self.view.imported() {
            imported.end_read();
        }
    }
}
