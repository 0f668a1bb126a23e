// SPDX-License-Identifier: MPL-2.0

//! The slot that several memories share.

// A raw pointer is sent between threads.
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
    /// A slot of a producer in this process: being written, or published.
    Own(OwnSlot),
    Received(ReadLease),
    /// A part of a published frame in several slots.
    Part(PartLease),
    /// No slot. Also the state under the lock while another one replaces it.
    #[default]
    Gone,
}

impl Lease {
    /// Whether the slot is writable: consumers cannot see it yet.
    pub(super) fn is_writable(&self) -> bool {
        matches!(self, Self::Own(slot) if slot.sequence().is_none())
    }
}

/// The state shared by all memories over one slot, or over one part of a received frame.
#[derive(Default)]
pub(super) struct Slot(Mutex<Contents>);

pub(super) struct Contents {
    /// The first byte of the memories. Offsets of a GstMemory count from here.
    pub(super) base: *mut u8,
    /// The position of `base` in the slot.
    pub(super) base_offset: u64,
    /// The index of the part of a received frame.
    pub(super) index: usize,
    pub(super) lease: Lease,
    pub(super) tally: Option<Arc<Tally>>,
}

// SAFETY: `base` points into memory that `lease` keeps mapped. Only the functions of GstMemory access it, under GStreamer's
// rules for mapped memory, which apply to all threads.
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
    /// Releases the slot.
    pub(super) fn clear(&mut self) {
        self.base = ptr::null_mut();
        self.lease = Lease::Gone;
        self.tally = None;
    }

    /// A received frame, or one mapped part of it, and its size.
    pub(super) fn of_received(
        lease: ReadLease,
        part: Option<usize>,
        tally: &Arc<Tally>,
    ) -> (Self, usize) {
        let bytes = match part.and_then(|index| lease.parts().get(index)) {
            Some(part) => part.map().unwrap_or_default(),
            None => lease.bytes().unwrap_or_default(),
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

    /// The contents, for a slot that no other memory shares.
    pub(super) fn get_mut(&mut self) -> &mut Contents {
        self.0.get_mut().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The range of a slot that a memory is to cover. The slot is not published yet.
pub(crate) struct SlotRange {
    slot: OwnSlot,
    base_offset: usize,
}

impl SlotRange {
    /// For a memory with these parameters. Its prefix begins at `base_offset` in the slot. `None`: the slot is too small.
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

    /// Stores the slot in the contents of the memory. The parameters are those of the range.
    pub(super) fn assign_to(
        self,
        contents: &mut Contents,
        size: usize,
        params: &gst::AllocationParams,
        tally: &Arc<Tally>,
    ) {
        let base = self.slot.as_ptr().wrapping_add(self.base_offset);
        let flags = params.flags();
        if flags.contains(gst::MemoryFlags::ZERO_PREFIXED) {
            // SAFETY: the slot is not published, so only this `OwnSlot` may write these bytes, and `new` checked that they are
            // inside of it.
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

/// The size of a memory with its prefix and padding, in bytes.
pub(crate) fn total(size: usize, params: &gst::AllocationParams) -> Option<usize> {
    size.checked_add(params.prefix())?
        .checked_add(params.padding())
}
