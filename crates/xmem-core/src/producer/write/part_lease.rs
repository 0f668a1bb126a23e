// SPDX-License-Identifier: MPL-2.0

//! A slot that is a part of frames.

use std::sync::{Arc, Weak};

use crate::producer::pool::Pool;
use crate::producer::pool::slots::Claimed;

/// Keeps a slot claimed that frames have as a part ([`Parts::add_slot`](crate::Parts::add_slot)). The slot is not written
/// any more; dropping the lease gives it back.
///
/// The lease keeps the slot's memory alive, but not the pool. A frame's release hook holds the lease, and if it kept its own
/// pool alive, the pool would live as long as the frame is not released.
#[derive(Debug)]
pub struct PartLease {
    pool: Weak<Pool>,
    claimed: Claimed,
}

impl PartLease {
    pub(super) fn new(pool: &Arc<Pool>, claimed: Claimed) -> Self {
        Self {
            pool: Arc::downgrade(pool),
            claimed,
        }
    }

    pub(super) fn claimed(&self) -> &Claimed {
        &self.claimed
    }

    pub(in crate::producer) fn pool(&self) -> &Weak<Pool> {
        &self.pool
    }

    /// The slot's number.
    pub fn slot(&self) -> u32 {
        self.claimed.slot
    }

    /// How often the slot was reused, this time included.
    pub fn generation(&self) -> u32 {
        self.claimed.word.generation()
    }
}

impl Drop for PartLease {
    fn drop(&mut self) {
        if let Some(pool) = self.pool.upgrade() {
            pool.abandon(self.claimed.slot, self.claimed.word);
        }
    }
}
