// SPDX-License-Identifier: MPL-2.0

//! A slot between its acquisition and its release.

use std::fmt;
use std::sync::Arc;

use xmem_shm::abi::meta::FrameMeta;
use xmem_shm::protocol::slot::SlotState;

use super::devices;
use super::part_lease::PartLease;
use super::publish::{check_payload, publish_claimed, republish};
use super::write_lease::WriteLease;
use crate::error::PublishError;
use crate::producer::pool::Pool;
use crate::producer::pool::slots::Claimed;

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

    fn is_published(&self) -> bool {
        self.claimed.word.state() == Some(SlotState::Published)
    }

    /// Converts an unpublished slot to a part of frames.
    pub(super) fn into_part(mut self) -> PartLease {
        devices::set_ready(&self.claimed, true);
        let claimed = Claimed {
            region: self.claimed.region.clone(),
            ..self.claimed
        };
        self.hand_over();
        PartLease::new(&self.pool, claimed)
    }

    /// From now on other code gives the slot back.
    pub(super) fn hand_over(&mut self) {
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

/// A slot that is written, then published, and stays in place. For memory that other code holds before and after its frame is
/// published. Dropping it gives the slot back. The frame stays for consumers, as with a [`ReadLease`](crate::ReadLease).
///
/// It does not restrict access to the bytes: the caller must ensure that nothing writes them after the frame is published.
pub struct OwnSlot {
    slot: Owned,
    /// The number of the first frame that was published in it.
    sequence: Option<u64>,
}

impl fmt::Debug for OwnSlot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OwnSlot")
            .field("pool", &self.pool())
            .field("slot", &self.slot())
            .field("generation", &self.generation())
            .field("sequence", &self.sequence)
            .finish_non_exhaustive()
    }
}

impl From<WriteLease> for OwnSlot {
    /// Hooks of the lease are dropped.
    fn from(lease: WriteLease) -> Self {
        Self {
            slot: lease.into_slot(),
            sequence: None,
        }
    }
}

impl OwnSlot {
    pub(in crate::producer) fn of_pool(&self) -> &Arc<Pool> {
        self.slot.pool()
    }

    /// The slot's first byte. Valid for reads and writes of the slot's bytes while this lives.
    pub fn as_ptr(&self) -> *mut u8 {
        self.slot.as_ptr()
    }

    /// The name of its pool.
    pub fn pool(&self) -> &str {
        self.slot.pool.name()
    }

    /// The slot's number.
    pub fn slot(&self) -> u32 {
        self.slot.claimed.slot
    }

    /// How often the slot was reused, this time included.
    pub fn generation(&self) -> u32 {
        self.slot.claimed.word.generation()
    }

    /// The number of the first frame that was published in it. `None` before.
    pub fn sequence(&self) -> Option<u64> {
        self.sequence
    }

    /// Makes the frame visible to consumers. From here on the slot must not be written. A frame that is published already is
    /// published once more, with other metadata. `offset`: the payload's first byte in the slot, in the place of the metadata's.
    /// Returns the frame's number. Never waits.
    ///
    /// # Errors
    ///
    /// See [`PublishError`]. The slot stays as it was.
    pub fn publish(&mut self, offset: u64, meta: &FrameMeta) -> Result<u64, PublishError> {
        let Owned { pool, claimed } = &mut self.slot;
        if self.sequence.is_some() {
            return republish(pool, claimed, offset, meta);
        }
        devices::look_if_ready(pool, claimed)?;
        check_payload(offset, meta, claimed.place)?;
        let (guard, info) = publish_claimed(pool, claimed, offset, meta, None)?;
        drop(guard);
        claimed.word = claimed.word.with_state(SlotState::Published);
        self.sequence = Some(info.sequence);
        Ok(info.sequence)
    }

    /// Turns a slot that is not published into a part of frames, as [`WriteLease::into_part`].
    ///
    /// # Errors
    ///
    /// The slot itself, if it is published.
    pub fn into_part(self) -> Result<PartLease, Self> {
        if self.slot.is_published() {
            return Err(self);
        }
        Ok(self.slot.into_part())
    }
}
