// SPDX-License-Identifier: MPL-2.0

//! What consumers may hold where `max_bytes` has room for fewer slots than were promised: a budget is granted when a consumer
//! joins, which may be before anybody knows how large a frame is.

use xmem_shm::abi::layout::Control;

use super::peer::Peer;
use super::regions::Room;
use super::slots::Place;
use super::state::State;

/// Consumers may hold fewer slots than before.
#[derive(Debug, Clone, Copy)]
pub(super) struct Cut {
    /// Slots that `max_bytes` has room for.
    room: u32,
    /// So many each.
    share: u32,
}

impl Cut {
    pub(super) fn say(self, pool: &str) {
        let Self { room, share } = self;
        log::warn!(
            "pool {pool:?}: max-bytes has room for {room} slots of the present size: each consumer may hold {share} of them, and \
             copies frames beyond that; raise max-bytes"
        );
    }
}

impl State {
    /// Tells consumers how many slots each may hold at most, when a region or a consumer came. `Some`: fewer than ever.
    #[must_use]
    pub(super) fn share_out(&mut self, control: &Control) -> Option<Cut> {
        let room = self.regions.room();
        let share = self.share(control, room);
        control.set_most_held(share);
        let room = room.filter(|_| share < self.least_share)?;
        self.least_share = share;
        Some(Cut {
            room: room.slots,
            share,
        })
    }

    /// The same where consumers may have let go of something. Who just copies a frame holds one more than it may, for an
    /// instant, so nobody gets less by that.
    pub(super) fn share_out_more(&self, control: &Control) {
        let share = self.share(control, self.regions.room());
        control.set_most_held(share.max(control.most_held()));
    }

    fn share(&self, control: &Control, room: Option<Room>) -> u32 {
        let Some(room) = room else {
            return u32::MAX;
        };
        // What is held already is nobody else's, however little its holder may hold from now on.
        let slots = |peer: &Peer| {
            let bytes = |slot| self.slots.get(slot).and_then(|info| info.place);
            let bytes: u64 = peer.held(control).filter_map(bytes).map(Place::bytes).sum();
            u32::try_from(bytes.div_ceil(room.slot_bytes)).unwrap_or(u32::MAX)
        };
        let peers = self.peers.iter();
        let peers: Vec<_> = peers
            .map(|peer| (peer.budget.min(peer.reserved()), slots(peer)))
            .collect();
        let largest = peers.iter().map(|(budget, _)| *budget).max();
        let taken = |share: u32| {
            let each = peers
                .iter()
                .map(|(budget, held)| share.min(*budget).max(*held));
            each.fold(0, u32::saturating_add)
        };
        // One is being written, and the producer may keep the one before. Who is past its share copies, which takes no slot
        // for long.
        let left = room.slots.saturating_sub(2);
        let too_many = (0..=largest.unwrap_or(0)).find(|share| taken(*share) > left);
        match too_many {
            None => u32::MAX,
            Some(too_many) => too_many.saturating_sub(1),
        }
    }
}
