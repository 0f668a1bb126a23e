// SPDX-License-Identifier: MPL-2.0

//! The producer's own references to the frames that it published.

use std::path::Path;
use std::sync::Arc;

use xmem_shm::protocol::slot::{SlotState, SlotWord};

use crate::error::PublishError;
use crate::frame::hold::{Hold, Holder, Memory, SlotPlace};
use crate::producer::pool::Pool;
use crate::producer::pool::slots::Claimed;

/// Takes over a reference that is already counted.
pub(in crate::producer) fn own_hold(pool: Arc<Pool>, claimed: &Claimed) -> Hold {
    let place = SlotPlace {
        slot: claimed.slot,
        generation: claimed.word.generation(),
        memory: Memory::Own(claimed.region.clone()),
        offset: claimed.place.offset,
        len: claimed.place.len,
    };
    Hold::new(pool, place)
}

/// The slot of the frame that this reference refers to.
pub(in crate::producer) fn own_claimed(
    pool: &Arc<Pool>,
    hold: &Hold,
) -> Result<Claimed, PublishError> {
    let Memory::Own(region) = hold.memory() else {
        return Err(PublishError::OtherPool);
    };
    if !hold.is_of(pool) {
        return Err(PublishError::OtherPool);
    }
    let guard = pool.guard()?;
    let place = guard.slots.get(hold.slot()).and_then(|info| info.place);
    Ok(Claimed {
        slot: hold.slot(),
        word: SlotWord::new(hold.generation(), SlotState::Published),
        place: place.ok_or(PublishError::Closed)?,
        region: region.clone(),
    })
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
