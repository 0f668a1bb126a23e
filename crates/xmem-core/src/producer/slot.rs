// SPDX-License-Identifier: MPL-2.0

//! The producer's handles to its slots: of a slot that it writes or has published, of a part of frames, and of a frame.
#![allow(unsafe_code)] // slices over a claimed slot, and its fields without its drop

use std::mem::ManuallyDrop;
use std::path::Path;
use std::ptr;
use std::sync::{Arc, Weak};

use xmem_shm::bounds::is_range_inside;
use xmem_shm::protocol::lease::{SlotState, SlotWord};

use crate::error::PublishError;
use crate::frame::hold::{Hold, Holder, Memory, SlotPlace};
use crate::producer::pool::Pool;
use crate::producer::pool::guard::Guard;
use crate::producer::pool::slots::Place;
use crate::region::Region;

/// A slot of a pool at one of its uses.
#[derive(Debug, Clone, Copy)]
pub(super) struct SlotRef {
    pub(super) number: u32,
    pub(super) word: SlotWord,
    pub(super) place: Place,
}

/// A slot that the producer uses. Dropping it gives the slot back.
///
/// The drop takes the pool's lock. So no slot may be dropped while the guard of its pool lives.
#[derive(Debug)]
pub(super) struct Slot {
    pool: Arc<Pool>,
    /// The state of its word is `Claimed` before the slot is published, then `Published`, and `Free` if other code gives the
    /// slot back.
    at: SlotRef,
    region: Arc<Region>,
}

impl Slot {
    /// Records that a slot that was claimed is being written. Its first `filled` bytes are reserved for the payload.
    pub(super) fn claimed(
        pool: &Arc<Pool>,
        guard: &mut Guard<'_>,
        number: u32,
        word: SlotWord,
        filled: usize,
    ) -> Option<Self> {
        guard.slots.start_writing(number, filled);
        let place = guard.slots.get(number)?.place?;
        let region = guard.regions.touch(place.region)?.clone();
        Some(Self {
            pool: pool.clone(),
            at: SlotRef {
                number,
                word,
                place,
            },
            region,
        })
    }

    pub(super) fn pool(&self) -> &Arc<Pool> {
        &self.pool
    }

    pub(super) fn at(&self) -> &SlotRef {
        &self.at
    }

    pub(super) fn region(&self) -> &Arc<Region> {
        &self.region
    }

    pub(super) fn as_ptr(&self) -> *mut u8 {
        self.region.ptr().wrapping_add(self.at.place.offset)
    }

    /// The bytes from `at` on, at most up to the end of the slot.
    pub(super) fn bytes(&self, at: usize, len: usize) -> &[u8] {
        let room = self.at.place.len.saturating_sub(at);
        let from = self.as_ptr().wrapping_add(at).cast_const();
        // SAFETY: inside of the slot and the region, which `region` keeps mapped. While the slot is claimed only its owner may
        // write it, which needs `&mut self`.
        unsafe { std::slice::from_raw_parts(from, len.min(room)) }
    }

    /// The first bytes, at most up to the end of the slot, to be written.
    pub(super) fn bytes_mut(&mut self, len: usize) -> &mut [u8] {
        // SAFETY: as in `bytes`.
        unsafe { std::slice::from_raw_parts_mut(self.as_ptr(), len.min(self.at.place.len)) }
    }

    pub(super) fn is_published(&self) -> bool {
        self.at.word.state() == Some(SlotState::Published)
    }

    pub(super) fn set_published(&mut self) {
        self.at.word = self.at.word.with_state(SlotState::Published);
    }

    /// Turns an unpublished slot into a part of frames.
    pub(super) fn into_part(mut self) -> PartLease {
        let part = Claimed {
            pool: Arc::downgrade(&self.pool),
            at: self.at,
            region: self.region.clone(),
        };
        self.disarm();
        PartLease(Arc::new(part))
    }

    /// Turns a slot that was just published into a reference to its frame, which publishing counted.
    pub(super) fn into_hold(self) -> Hold {
        let slot = ManuallyDrop::new(self);
        // SAFETY: the fields are read once, because `slot` is neither used afterwards nor dropped.
        let (pool, region) = unsafe { (ptr::read(&slot.pool), ptr::read(&slot.region)) };
        own_hold(pool, &slot.at, region)
    }

    /// Makes the drop a no-op. From now on other code gives the slot back.
    pub(super) fn disarm(&mut self) {
        self.at.word = self.at.word.with_state(SlotState::Free);
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        match self.at.word.state() {
            Some(SlotState::Claimed) => self.pool.abandon(self.at.number, self.at.word),
            Some(SlotState::Published) => self.pool.dereference(self.at.number),
            _ => {}
        }
    }
}

/// Keeps a slot claimed that frames have as a part ([`Parts::add_slot`](crate::Parts::add_slot)). The slot is not written
/// any more, and free again after the last clone and the last of these frames.
///
/// The lease keeps the slot's memory alive, but not the pool. Frames hold the lease, and if it kept its own pool alive, the pool
/// would live as long as a frame is not released.
#[derive(Debug, Clone)]
pub struct PartLease(Arc<Claimed>);

#[derive(Debug)]
struct Claimed {
    pool: Weak<Pool>,
    at: SlotRef,
    #[expect(dead_code, reason = "keeps the memory")]
    region: Arc<Region>,
}

impl PartLease {
    pub(super) fn pool(&self) -> &Weak<Pool> {
        &self.0.pool
    }

    pub(super) fn place(&self) -> Place {
        self.0.at.place
    }

    /// The slot's number.
    pub fn slot(&self) -> u32 {
        self.0.at.number
    }

    /// How often the slot was reused, this time included.
    pub fn generation(&self) -> u32 {
        self.0.at.word.generation()
    }
}

impl Drop for Claimed {
    fn drop(&mut self) {
        if let Some(pool) = self.pool.upgrade() {
            pool.abandon(self.at.number, self.at.word);
        }
    }
}

/// A reference to a frame of this pool, which the pool has already counted.
pub(super) fn own_hold(pool: Arc<Pool>, at: &SlotRef, region: Arc<Region>) -> Hold {
    let place = SlotPlace {
        slot: at.number,
        generation: at.word.generation(),
        memory: Memory::Own(region),
        offset: at.place.offset,
        len: at.place.len,
    };
    Hold::new(pool, place)
}

/// The slot of the frame that this reference refers to.
pub(super) fn of_hold<'a>(
    pool: &Arc<Pool>,
    hold: &'a Hold,
) -> Result<(SlotRef, &'a Region), PublishError> {
    let Memory::Own(region) = hold.memory() else {
        return Err(PublishError::OtherPool);
    };
    if !hold.is_of(pool) {
        return Err(PublishError::OtherPool);
    }
    let guard = pool.guard()?;
    let place = guard.slots.get(hold.slot()).and_then(|info| info.place);
    let at = SlotRef {
        number: hold.slot(),
        word: SlotWord::new(hold.generation(), SlotState::Published),
        place: place.ok_or(PublishError::Closed)?,
    };
    Ok((at, region))
}

impl Holder for Pool {
    fn add(&self, slot: u32) {
        if let Some(mut guard) = self.lock() {
            guard.slots.reference(slot);
        }
    }

    fn remove(&self, slot: u32) {
        self.dereference(slot);
    }

    fn is_there(&self, _slot: u32, _generation: u32) -> bool {
        // The references themselves keep the frame.
        true
    }

    fn producer_is_gone(&self) -> bool {
        false
    }

    fn pool_name(&self) -> &str {
        self.name()
    }

    fn pool_id(&self) -> u64 {
        self.control().constants().pool_id
    }

    fn socket_path(&self) -> &Path {
        self.socket_path()
    }
}

/// Writes to bytes of a slot that the caller reserved. No published entry refers to them yet.
pub(super) fn write_attachments(region: &Region, place: Place, at: usize, bytes: &[u8]) {
    let is_reserved = is_range_inside(at as u64, bytes.len() as u64, place.len as u64);
    assert!(is_reserved, "reserved before");
    let to = region.ptr().wrapping_add(place.offset + at);
    // SAFETY: inside of the slot and the region. The slot is claimed, or referenced by its producer. The bytes are after all
    // that its frames refer to (`SlotInfo::filled`), so no process reads them.
    unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
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
