// SPDX-License-Identifier: MPL-2.0

//! The ownership of a slot, which gives the slot back, and the access to its bytes.
#![allow(unsafe_code)] // slices over a claimed slot

use std::sync::Arc;

use xmem_shm::bounds::is_range_inside;
use xmem_shm::protocol::slot::SlotState;

use super::devices;
use super::part_lease::PartLease;
use crate::producer::pool::Pool;
use crate::producer::pool::slots::{Claimed, Place};
use crate::region::Region;

/// A slot that the producer uses. Dropping it gives the slot back.
#[derive(Debug)]
pub(super) struct Owned {
    pool: Arc<Pool>,
    /// The state of its word is `Claimed` before the slot is published, then `Published`, and `Free` if other code gives the
    /// slot back.
    claimed: Claimed,
}

impl Owned {
    pub(super) fn new(pool: Arc<Pool>, claimed: Claimed) -> Self {
        Self { pool, claimed }
    }

    pub(super) fn pool(&self) -> &Arc<Pool> {
        &self.pool
    }

    pub(super) fn claimed(&self) -> &Claimed {
        &self.claimed
    }

    pub(super) fn as_ptr(&self) -> *mut u8 {
        let place = self.claimed.place;
        self.claimed.region.ptr().wrapping_add(place.offset)
    }

    /// The bytes from `at` on, at most up to the end of the slot.
    pub(super) fn bytes(&self, at: usize, len: usize) -> &[u8] {
        let room = self.claimed.place.len.saturating_sub(at);
        let from = self.as_ptr().wrapping_add(at).cast_const();
        // SAFETY: inside of the slot and the region, which `claimed` keeps mapped. While the slot is claimed only its owner may
        // write it, which needs `&mut self`.
        unsafe { std::slice::from_raw_parts(from, len.min(room)) }
    }

    /// The first bytes, at most up to the end of the slot, to be written.
    pub(super) fn bytes_mut(&mut self, len: usize) -> &mut [u8] {
        // SAFETY: as in `bytes`.
        unsafe { std::slice::from_raw_parts_mut(self.as_ptr(), len.min(self.claimed.place.len)) }
    }

    pub(super) fn is_published(&self) -> bool {
        self.claimed.word.state() == Some(SlotState::Published)
    }

    pub(super) fn set_published(&mut self) {
        self.claimed.word = self.claimed.word.with_state(SlotState::Published);
    }

    /// Converts an unpublished slot to a part of frames.
    pub(super) fn into_part(mut self) -> PartLease {
        devices::set_ready(&self.claimed, true);
        let claimed = Claimed {
            region: self.claimed.region.clone(),
            ..self.claimed
        };
        self.disarm();
        PartLease::new(&self.pool, claimed)
    }

    /// Makes the drop a no-op. From now on other code gives the slot back.
    pub(super) fn disarm(&mut self) {
        self.claimed.word = self.claimed.word.with_state(SlotState::Free);
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        match self.claimed.word.state() {
            Some(SlotState::Claimed) => self.pool.abandon(self.claimed.slot, self.claimed.word),
            Some(SlotState::Published) => self.pool.dereference(self.claimed.slot),
            _ => {}
        }
    }
}

/// Writes to bytes of a slot that the caller reserved. No published entry refers to them yet.
pub(super) fn write_attachments(region: &Region, place: Place, at: usize, bytes: &[u8]) {
    let is_reserved = is_range_inside(at as u64, bytes.len() as u64, place.len as u64);
    assert!(is_reserved, "reserved before");
    let to = region.ptr().wrapping_add(place.offset + at);
    // SAFETY: inside of the slot and the region. The slot is claimed, or referenced by its producer. The bytes are after all
    // that its frames refer to (`SlotInfo::filled`), so no process reads them.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
}

/// Whether a slot already has these bytes, as attachments of a published frame.
pub(super) fn has_attachments(
    region: &Region,
    place: Place,
    (at, len): (usize, usize),
    bytes: &[u8],
) -> bool {
    let is_inside = is_range_inside(at as u64, len as u64, place.len as u64);
    if len == 0 || len != bytes.len() || !is_inside {
        return false;
    }
    let from = region.ptr().wrapping_add(place.offset + at);
    // SAFETY: inside of the slot and the region. Published bytes are not written.
    bytes == unsafe { std::slice::from_raw_parts(from.cast_const(), len) }
}
