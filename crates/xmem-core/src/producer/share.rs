// SPDX-License-Identifier: MPL-2.0

//! What consumers may hold where `max_bytes` has room for fewer slots than were promised: a budget is granted when a consumer
//! joins, which may be before anybody knows how large a frame is.

use super::state::State;
use crate::layout::Control;

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
    /// Tells consumers how many slots each may hold at most. Whoever does not let go of any then leaves one to be written.
    #[must_use]
    pub(super) fn share_out(&self, control: &Control) -> Option<Cut> {
        let room = self.regions.room();
        let share = room.map_or(u32::MAX, |room| self.share(control, room));
        let before = control.most_held();
        if share != before {
            control.set_most_held(share);
        }
        let room = room.filter(|_| share < before)?;
        Some(Cut { room, share })
    }

    fn share(&self, control: &Control, room: u32) -> u32 {
        let peers = self.peers.iter();
        let peers: Vec<_> = peers
            .map(|peer| (peer.budget.min(peer.reserved()), peer.held(control)))
            .collect();
        let largest = peers.iter().map(|(budget, _)| *budget).max();
        let largest = largest.unwrap_or(0);
        let taken = |share: u32| {
            // What is held already is nobody else's, however little its holder may hold from now on.
            let each = peers
                .iter()
                .map(|(budget, held)| share.min(*budget).max(*held));
            each.fold(0, u32::saturating_add)
        };
        // One is being written. Who is past its share copies, which takes no slot for long.
        let left = room.saturating_sub(1);
        let too_many = (0..=largest).find(|share| taken(*share) > left);
        match too_many {
            None => u32::MAX,
            Some(too_many) => too_many.saturating_sub(1),
        }
    }
}
