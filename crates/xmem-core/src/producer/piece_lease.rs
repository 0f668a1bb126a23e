// SPDX-License-Identifier: MPL-2.0

//! A slot that is a piece of frames.

use std::sync::{Arc, Weak};

use super::pool::{Claimed, Pool};

/// Keeps a slot claimed that frames have as a piece ([`Parts::add_slot`](crate::Parts::add_slot)). Nobody writes it any
/// more; dropping this gives it back.
///
/// It keeps the slot's memory, but not the pool: what a frame of that pool keeps until it is released must not.
#[derive(Debug)]
pub struct PieceLease {
    pool: Weak<Pool>,
    claimed: Claimed,
}

impl PieceLease {
    pub(super) fn new(pool: &Arc<Pool>, claimed: Claimed) -> Self {
        Self {
            pool: Arc::downgrade(pool),
            claimed,
        }
    }

    pub(super) fn claimed(&self) -> &Claimed {
        &self.claimed
    }

    pub(super) fn pool(&self) -> &Weak<Pool> {
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

impl Drop for PieceLease {
    fn drop(&mut self) {
        if let Some(pool) = self.pool.upgrade()
            && pool.process.is_current()
        {
            pool.abandon(self.claimed.slot, self.claimed.word);
        }
    }
}
