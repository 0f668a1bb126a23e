// SPDX-License-Identifier: MPL-2.0

//! A slot between its acquisition and its release.

use std::fmt;
use std::sync::Arc;

use xmem_shm::abi::meta::FrameMeta;

use super::devices;
use super::owned::Owned;
use super::part_lease::PartLease;
use super::publish::{commit, republish};
use super::write_lease::WriteLease;
use crate::error::PublishError;
use crate::producer::pool::Pool;

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
        self.slot.pool().name()
    }

    /// The slot's number.
    pub fn slot(&self) -> u32 {
        self.slot.claimed().slot
    }

    /// How often the slot was reused, this time included.
    pub fn generation(&self) -> u32 {
        self.slot.claimed().word.generation()
    }

    /// The number of the first frame that was published in it. `None` before.
    pub fn sequence(&self) -> Option<u64> {
        self.sequence
    }

    /// Makes the frame visible to consumers. From here on the slot must not be written. A frame that is published already is
    /// published once more, with other metadata. Returns the frame's number. Never waits.
    ///
    /// # Errors
    ///
    /// See [`PublishError`]. The slot is unchanged after an error.
    pub fn publish(&mut self, meta: &FrameMeta) -> Result<u64, PublishError> {
        let (pool, claimed) = (self.slot.pool(), self.slot.claimed());
        if self.sequence.is_some() {
            return republish(pool, claimed, meta);
        }
        if claimed.place.device.is_some() {
            devices::update_ready(pool, claimed)?;
        }
        let (guard, info) = commit(pool, claimed, meta, &mut None)?;
        drop(guard);
        self.slot.set_published();
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
