// SPDX-License-Identifier: MPL-2.0

//! The slot that several memories share.

// A raw pointer is sent between threads.
#![allow(unsafe_code)]

use std::{
    ptr,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicU32, Ordering},
    },
};

use xmem_core::{OwnSlot, PartLease, ReadLease};

use crate::{buffers::allocator::Tally, lock};

/// The state of a slot.
#[derive(Default)]
pub(super) enum Lease {
    /// A slot of a producer in this process: being written, or published.
    Own(OwnSlot),
    Received(ReadLease),
    /// A part of a published frame in several slots.
    Part(PartLease),
    /// No slot. Also the state under the lock while another lease replaces it.
    #[default]
    Gone,
}

impl Lease {
    /// Whether the slot is writable: consumers cannot see it yet.
    pub(super) fn is_writable(&self) -> bool {
        matches!(self, Self::Own(slot) if slot.sequence().is_none())
    }
}

/// What all memories over one slot, or over one part of a received frame, share.
pub(super) struct Slot {
    /// The first byte of the memories. Offsets of a GstMemory count from here.
    pub(super) base: *mut u8,
    /// The position of `base` in the slot.
    pub(super) base_offset: u64,
    /// The index of the part of a received frame.
    pub(super) index: usize,
    pub(super) tally: Option<Arc<Tally>>,
    /// How often the memories are mapped.
    mappings: AtomicU32,
    lease: Mutex<Lease>,
}

// SAFETY: `base` points into memory that `lease` keeps mapped. Only the functions of GstMemory access it, under GStreamer's
// rules for mapped memory, which apply to all threads.
unsafe impl Send for Slot {}
// SAFETY: as above.
unsafe impl Sync for Slot {}

impl Default for Slot {
    fn default() -> Self {
        Self {
            base: ptr::null_mut(),
            base_offset: 0,
            index: 0,
            tally: None,
            mappings: AtomicU32::new(0),
            lease: Mutex::default(),
        }
    }
}

impl Slot {
    pub(super) fn new(lease: Lease, base: *mut u8, base_offset: u64, tally: &Arc<Tally>) -> Self {
        Self {
            base,
            base_offset,
            index: 0,
            tally: Some(tally.clone()),
            mappings: AtomicU32::new(0),
            lease: Mutex::new(lease),
        }
    }

    pub(super) fn note_mapped(&self) {
        self.mappings.fetch_add(1, Ordering::Relaxed);
    }

    /// Release: pairs with [`is_mapped`](Self::is_mapped).
    pub(super) fn note_unmapped(&self) {
        self.mappings.fetch_sub(1, Ordering::Release);
    }

    pub(super) fn is_mapped(&self) -> bool {
        self.mappings.load(Ordering::Acquire) != 0
    }

    pub(super) fn lease(&self) -> MutexGuard<'_, Lease> {
        lock(&self.lease)
    }
}
