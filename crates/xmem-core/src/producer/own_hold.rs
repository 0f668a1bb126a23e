// SPDX-License-Identifier: MPL-2.0

//! The producer's own reference to a frame that it published.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use xmem_shm::abi::named::Sticky;
use xmem_shm::protocol::slot::{SlotState, SlotWord};

use super::pool::{Claimed, Pool};
use super::slots::{Place, Use};
use crate::frame::hold::{Hold, Received};
use crate::region::Region;

/// A reference that the producer's own side has to a published frame.
pub(crate) struct OwnHold {
    pub(super) pool: Arc<Pool>,
    pub(super) slot: u32,
    pub(super) generation: u32,
    pub(super) place: Place,
    region: Arc<Region>,
    /// The frame lies elsewhere, in pieces that this does not know.
    pub(super) in_pieces: bool,
}

impl fmt::Debug for OwnHold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OwnHold")
            .field("slot", &self.slot)
            .field("generation", &self.generation)
            .finish_non_exhaustive()
    }
}

impl OwnHold {
    /// Takes over a reference that was counted already.
    pub(super) fn new(pool: Arc<Pool>, claimed: &Claimed) -> Self {
        Self {
            pool,
            slot: claimed.slot,
            generation: claimed.word.generation(),
            place: claimed.place,
            region: claimed.region.clone(),
            in_pieces: false,
        }
    }

    /// Whether the frame lies elsewhere.
    #[cfg(feature = "cuda")]
    pub(crate) fn in_pieces(&self) -> bool {
        self.in_pieces
    }

    pub(super) fn region(&self) -> &Region {
        &self.region
    }
}

impl Hold for OwnHold {
    fn ptr(&self) -> *const u8 {
        self.region.ptr().wrapping_add(self.place.offset)
    }

    fn len(&self) -> usize {
        self.place.len
    }

    fn device_len(&self) -> Option<usize> {
        self.place.device.map(|device| device.len)
    }

    fn pool_name(&self) -> &str {
        &self.pool.name
    }

    fn received(&self) -> Option<&dyn Received> {
        None
    }

    #[cfg(feature = "cuda")]
    fn pin(&self, device: &xmem_cuda::device::Device) {
        self.region.pin(device);
    }
}

impl Drop for OwnHold {
    fn drop(&mut self) {
        if self.pool.process.is_current() {
            self.pool.dereference(self.slot);
        }
    }
}

impl Pool {
    /// A reference of the producer's side to this generation of a slot, if it is still there.
    pub(super) fn read_index(
        self: &Arc<Self>,
        slot: u32,
        generation: u32,
    ) -> Option<(OwnHold, Arc<Sticky>)> {
        if !self.process.is_current() {
            return None;
        }
        let mut state = self.lock();
        let word = SlotWord(self.control.slot(slot)?.load(Ordering::Relaxed));
        let info = state.slots.get(slot)?;
        let place = info.place?;
        if word.generation() != generation
            || word.state() != Some(SlotState::Published)
            || !matches!(info.used, Use::Idle | Use::Referenced(_))
        {
            return None;
        }
        let region = state.regions.get(place.region)?.region.clone();
        state.slots.reference(slot);
        let sticky = state.sticky.current();
        drop(state);
        let claimed = Claimed {
            slot,
            word,
            place,
            region,
        };
        Some((OwnHold::new(self.clone(), &claimed), sticky))
    }
}
