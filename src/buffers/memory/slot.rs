// SPDX-License-Identifier: MPL-2.0

//! The slot that memories over it share.

// A raw pointer goes from thread to thread.
#![allow(unsafe_code)]

use std::{
    ptr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use xmem_core::{OwnSlot, PartLease, ReadLease, WriteLease};

use crate::{buffers::tally::Tally, lock};

/// The state of a slot.
#[derive(Default)]
pub(super) enum Lease {
    /// A slot of a producer of this process: written by one owner, or published.
    Own(OwnSlot),
    Received(ReadLease),
    /// It is a part of a published frame that lies in several slots.
    Part(PartLease),
    /// Between the two, under the lock only; or there is no slot.
    #[default]
    Gone,
}

impl Lease {
    /// Whether the slot is one to write, which no consumer sees yet.
    pub(super) fn is_writable(&self) -> bool {
        matches!(self, Self::Own(slot) if slot.sequence().is_none())
    }
}

/// The state that all memories over one slot, or over one part of a received frame, share.
#[derive(Default)]
pub(super) struct Slot(Mutex<Contents>);

pub(super) struct Contents {
    /// The memories' first byte; offsets of a GstMemory count from here.
    pub(super) base: *mut u8,
    /// Where `base` lies in the slot.
    pub(super) base_offset: u64,
    /// Which part of a received frame it is.
    pub(super) index: usize,
    pub(super) lease: Lease,
    pub(super) tally: Option<Arc<Tally>>,
}

// SAFETY: `base` points into memory that `lease` keeps mapped. Nothing here reads or writes through it but the
// functions of GstMemory, under GStreamer's own rules for mapped memory, which hold in any thread.
unsafe impl Send for Contents {}

impl Default for Contents {
    fn default() -> Self {
        Self {
            base: ptr::null_mut(),
            base_offset: 0,
            index: 0,
            lease: Lease::Gone,
            tally: None,
        }
    }
}

impl Contents {
    /// Gives the slot back.
    pub(super) fn clear(&mut self) {
        self.base = ptr::null_mut();
        self.lease = Lease::Gone;
        self.tally = None;
    }

    /// A received frame, or one part of it, which is mapped. The other value is its size.
    pub(super) fn of_received(
        lease: ReadLease,
        part: Option<usize>,
        tally: &Arc<Tally>,
    ) -> (Self, usize) {
        let bytes = match part.and_then(|index| lease.parts().get(index)) {
            Some(part) => part.map().unwrap_or_default(),
            None => lease.data(),
        };
        let size = bytes.len();
        let contents = Self {
            base: bytes.as_ptr().cast_mut(),
            base_offset: lease.meta().offset,
            index: part.unwrap_or(0),
            lease: Lease::Received(lease),
            tally: Some(tally.clone()),
        };
        (contents, size)
    }
}

impl Slot {
    pub(super) fn new(contents: Contents) -> Self {
        Self(Mutex::new(contents))
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Contents> {
        lock(&self.0)
    }

    /// The same for a slot that no other memory shares.
    pub(super) fn get_mut(&mut self) -> &mut Contents {
        self.0.get_mut().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A place for a memory in a slot that is still to be written.
pub(crate) struct Room {
    slot: OwnSlot,
    base_offset: usize,
}

impl Room {
    /// For a memory with these parameters, whose first byte is the one at `base_offset` in the slot. `None`: the slot is too
    /// small.
    pub(crate) fn new(
        lease: WriteLease,
        base_offset: usize,
        size: usize,
        params: &gst::AllocationParams,
    ) -> Option<Self> {
        let end = base_offset.checked_add(total(size, params)?)?;
        (end <= lease.capacity()).then(|| Self {
            slot: lease.into(),
            base_offset,
        })
    }

    /// Puts the memory there. Its parameters are those that the room is for.
    pub(super) fn enter(
        self,
        contents: &mut Contents,
        size: usize,
        params: &gst::AllocationParams,
        tally: &Arc<Tally>,
    ) {
        let base = self.slot.as_ptr().wrapping_add(self.base_offset);
        let flags = params.flags();
        if flags.contains(gst::MemoryFlags::ZERO_PREFIXED) {
            // SAFETY: the slot is not published, so there is no other right to write these bytes, and they lie within it (`new`).
            unsafe { ptr::write_bytes(base, 0, params.prefix()) };
        }
        if flags.contains(gst::MemoryFlags::ZERO_PADDED) {
            // SAFETY: as above.
            unsafe { ptr::write_bytes(base.add(params.prefix() + size), 0, params.padding()) };
        }
        contents.base = base;
        contents.base_offset = self.base_offset as u64;
        contents.lease = Lease::Own(self.slot);
        contents.tally = Some(tally.clone());
    }
}

/// Bytes of a memory, with its prefix and its padding.
pub(crate) fn total(size: usize, params: &gst::AllocationParams) -> Option<usize> {
    size.checked_add(params.prefix())?
        .checked_add(params.padding())
}
