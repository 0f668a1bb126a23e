// SPDX-License-Identifier: MPL-2.0

//! Figures of a pool, gathered.

use std::sync::atomic::Ordering;

use xmem_shm::os::clock::monotonic_ns;
use xmem_shm::protocol::slot::{SlotState, SlotWord};

use super::peer::Peer;
use super::pool::Pool;
use super::slots::Use;
use super::state::State;
use crate::delivery::Delivery;
use crate::stats::{ConsumerStats, PoolStats};

impl Pool {
    pub(super) fn consumer_stats(&self, peer: &Peer, now: i64) -> ConsumerStats {
        self.consumer_stats_in(&self.lock(), peer, now)
    }

    fn consumer_stats_in(&self, state: &State, peer: &Peer, now: i64) -> ConsumerStats {
        let published_at = |slot| {
            state
                .slots
                .get(slot)
                .map_or(now, |info| info.published_at.min(now))
        };
        let waited_for = self.waits_for(state, peer).as_nanos();
        ConsumerStats {
            waited_for_ns: u64::try_from(waited_for).unwrap_or(u64::MAX),
            ..peer.stats(&self.control, published_at, now)
        }
    }

    /// Whether a consumer holds what is in a slot.
    fn leased(&self, state: &State, slot: u32) -> bool {
        let Some(word) = self.control.slot(slot) else {
            return false;
        };
        let word = SlotWord(word.load(Ordering::Relaxed));
        word.state() == Some(SlotState::Published)
            && state
                .peers
                .iter()
                .any(|peer| peer.holds(slot, word.generation()))
    }

    pub(super) fn stats(&self) -> PoolStats {
        let Some(state) = self.lock_here() else {
            return PoolStats {
                pool: self.name.clone(),
                ..PoolStats::default()
            };
        };
        let now = monotonic_ns();
        // In this order, so that nothing is taken for a frame, or for one that was not copied, that is not.
        let entries = self.control.head();
        let events = self.counters.events.load(Ordering::Relaxed);
        let published = entries.saturating_sub(events);
        let copied = self.counters.copied.load(Ordering::Relaxed);
        let sticky = state.sticky.current();
        PoolStats {
            pool: self.name.clone(),
            pid: std::process::id(),
            delivery: match self.settings.delivery {
                Delivery::Live => "live".into(),
                Delivery::Lossless => "lossless".into(),
            },
            published,
            zero_copy: published.saturating_sub(copied),
            copied,
            dropped: self.counters.dropped.load(Ordering::Relaxed),
            slots: state.slots.assigned(),
            slots_held: state
                .slots
                .iter()
                .filter(|(slot, info)| match info.used {
                    Use::Unassigned => false,
                    Use::Writing | Use::Referenced(_) => true,
                    Use::Idle => self.leased(&state, *slot),
                })
                .count() as u32,
            max_slots: self.settings.max_slots,
            budget_limit: self.control.share().limit.to_string(),
            regions: state.regions.count(),
            bytes: state.regions.bytes(),
            devices: state.regions.devices(),
            device_bytes: state.regions.device_bytes(),
            eos: self.control.eos_at().is_some(),
            sticky: sticky
                .iter()
                .filter_map(|(key, value)| {
                    Some((key.to_owned(), std::str::from_utf8(value).ok()?.to_owned()))
                })
                .collect(),
            consumers: state
                .peers
                .iter()
                .map(|peer| self.consumer_stats_in(&state, peer, now))
                .collect(),
            cut_off: self.counters.cut_off.load(Ordering::Relaxed),
            timed_out: self.counters.timed_out.load(Ordering::Relaxed),
        }
    }
}
