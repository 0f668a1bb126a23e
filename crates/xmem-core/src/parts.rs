// SPDX-License-Identifier: MPL-2.0

//! Frames that do not lie in their slot but elsewhere, in one or several pieces. The slot is what is held; what is
//! attached to it says where the pieces are.
#![allow(unsafe_code)] // slices over shared memory, for as long as the protocol keeps writers out

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, MutexGuard};

use crate::bounds::lie_inside;
use crate::consumer::held::Held;
use crate::lock::{inside, lock};
use crate::region::RegionView;

/// The name under which they are attached.
pub(crate) const NAME: &str = "xmem:parts";
/// The most pieces that a frame may have: as many memories as a GstBuffer has.
pub const MAX_PARTS: usize = 16;

/// Where a piece lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PartPlace {
    pub(crate) region: u32,
    /// First byte in the region.
    pub(crate) offset: u64,
    /// Size in bytes.
    pub(crate) size: u64,
    /// What whoever published it says of it, for whoever takes it.
    pub(crate) tag: u32,
    /// The slot that it lies in, if it was forwarded from another pool.
    pub(crate) origin: Option<Origin>,
}

/// A slot of another pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Origin {
    pub(crate) pool_id: u64,
    pub(crate) slot: u32,
    /// Never 0.
    pub(crate) generation: u32,
}

/// Size of an encoded place in bytes.
const PLACE_LEN: usize = 40;

pub(crate) fn encode(places: &[PartPlace]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(places.len() * PLACE_LEN);
    for place in places {
        bytes.extend_from_slice(&place.region.to_le_bytes());
        bytes.extend_from_slice(&place.tag.to_le_bytes());
        bytes.extend_from_slice(&place.offset.to_le_bytes());
        bytes.extend_from_slice(&place.size.to_le_bytes());
        let (pool_id, slot, generation) = place
            .origin
            .map_or((0, 0, 0), |o| (o.pool_id, o.slot, o.generation));
        bytes.extend_from_slice(&pool_id.to_le_bytes());
        bytes.extend_from_slice(&slot.to_le_bytes());
        bytes.extend_from_slice(&generation.to_le_bytes());
    }
    bytes
}

/// Decodes what another process wrote. `None`: it makes no sense.
pub(crate) fn decode(bytes: &[u8]) -> Option<Vec<PartPlace>> {
    let (places, []) = bytes.as_chunks::<PLACE_LEN>() else {
        return None;
    };
    if places.is_empty() || places.len() > MAX_PARTS {
        return None;
    }
    let place = |bytes: &[u8; PLACE_LEN]| {
        let (region, rest) = bytes.split_first_chunk()?;
        let (tag, rest) = rest.split_first_chunk()?;
        let (offset, rest) = rest.split_first_chunk()?;
        let (size, rest) = rest.split_first_chunk()?;
        let (pool_id, rest) = rest.split_first_chunk()?;
        let (slot, generation) = rest.split_first_chunk()?;
        let origin = Origin {
            pool_id: u64::from_le_bytes(*pool_id),
            slot: u32::from_le_bytes(*slot),
            generation: u32::from_le_bytes(generation.try_into().ok()?),
        };
        Some(PartPlace {
            region: u32::from_le_bytes(*region),
            tag: u32::from_le_bytes(*tag),
            offset: u64::from_le_bytes(*offset),
            size: u64::from_le_bytes(*size),
            origin: (origin.generation != 0).then_some(origin),
        })
    };
    places.iter().map(place).collect()
}

/// The size of a frame in pieces. `None`: no frame has that size.
pub(crate) fn total(places: &[PartPlace]) -> Option<u64> {
    places
        .iter()
        .try_fold(0u64, |total, place| total.checked_add(place.size))
}

/// A piece of a frame, as a consumer has it.
#[derive(Debug)]
pub struct Part {
    view: Arc<RegionView>,
    offset: usize,
    size: usize,
    tag: u32,
    /// The lease in the pool that the piece came from.
    origin: Option<(Origin, Arc<Held>)>,
    /// Whether its device was told that the CPU reads it. Locked while it is being told.
    is_read: Mutex<bool>,
}

impl Part {
    /// `None`: it lies outside its region.
    pub(crate) fn new(
        view: Arc<RegionView>,
        place: PartPlace,
        held_there: Option<Arc<Held>>,
    ) -> Option<Self> {
        let offset = usize::try_from(place.offset).ok()?;
        let size = usize::try_from(place.size).ok()?;
        lie_inside(place.offset, place.size, view.payload_len()).then_some(Self {
            view,
            offset,
            size,
            tag: place.tag,
            origin: place.origin.zip(held_there),
            is_read: Mutex::default(),
        })
    }

    /// The descriptor of the memory that it lies in. It may be writable; it is not yours to write.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.view.fd()
    }

    pub(crate) fn view(&self) -> &Arc<RegionView> {
        &self.view
    }

    /// Whether it lies on a device.
    pub fn is_on_device(&self) -> bool {
        self.view.cuda().is_some()
    }

    /// What this process has of it in the pool that it was forwarded from: a lease, or a look at it.
    pub(crate) fn held_at_origin(&self) -> Option<&Arc<Held>> {
        self.origin.as_ref().map(|(_, held)| held)
    }

    /// Whether the producer that it was forwarded from has ended, as [`ReadLease::producer_is_gone`](crate::ReadLease::producer_is_gone)
    /// says. `None`: it was not forwarded.
    pub fn origin_is_gone(&self) -> Option<bool> {
        self.held_at_origin().map(|held| held.producer_is_gone())
    }

    /// The slot of another pool that it was forwarded from.
    pub(crate) fn origin(&self) -> Option<Origin> {
        self.origin.as_ref().map(|(origin, _)| *origin)
    }

    /// First byte of the piece in the memory of its descriptor.
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

    /// What whoever published the frame says of the piece.
    pub fn tag(&self) -> u32 {
        self.tag
    }

    /// The piece's bytes. Waits for the device that writes them, if it is a DMA buffer.
    ///
    /// # Errors
    ///
    /// If the memory cannot be mapped: not every device's can.
    pub fn map(&self) -> io::Result<&[u8]> {
        if self.is_on_device() {
            return Err(io::Error::new(
                io::ErrorKind::Unsupported,
                "it lies on a CUDA device",
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
        // SAFETY: inside the region (checked by `new`), whose mapping the view keeps; the lease that this part belongs to
        // keeps writers out, as far as they follow the protocol, and bytes have no invalid values.
        Ok(unsafe { std::slice::from_raw_parts(start.wrapping_add(self.offset), self.size) })
    }

    /// The same, if it is mapped already.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_come_back_and_nonsense_is_refused() {
        let place = PartPlace {
            region: 3,
            offset: 1 << 40,
            size: 77,
            tag: 9,
            origin: Some(Origin {
                pool_id: 5,
                slot: 1,
                generation: 2,
            }),
        };
        let places = vec![place; MAX_PARTS];
        let bytes = encode(&places);
        assert_eq!(decode(&bytes), Some(places));
        assert_eq!(decode(&bytes[..bytes.len() - 1]), None);
        assert_eq!(decode(&[]), None);
        assert_eq!(decode(&encode(&[place; MAX_PARTS + 1])), None);
        let huge = PartPlace {
            size: u64::MAX,
            ..place
        };
        assert_eq!(total(&[huge, place]), None);
        assert_eq!(total(&[place, place]), Some(154));
    }
}
