// SPDX-License-Identifier: MPL-2.0

//! Making a frame visible.

use std::sync::{Arc, MutexGuard};

use super::pool::{Claimed, Pool};
use super::regions::Cold;
use super::slots::{Hook, Keep, Place};
use super::state::{Effects, State};
use crate::entry::Entry;
use crate::error::PublishError;
use crate::meta::FrameMeta;
use crate::os::clock::monotonic_ns;
use crate::protocol::lease;
use crate::sticky::Sticky;

/// What was asked of a frame besides its bytes and metadata.
#[derive(Default)]
pub(super) struct Wishes {
    pub(super) hook: Option<Hook>,
    pub(super) keep: Option<u32>,
}

impl Pool {
    /// Publishes a claimed slot, whose payload was checked. The caller gets a reference.
    pub(super) fn publish(
        &self,
        claimed: &Claimed,
        meta: FrameMeta,
        wishes: &mut Wishes,
    ) -> Result<(FrameMeta, Arc<Sticky>), PublishError> {
        let rings = wishes.hook.is_some() || wishes.keep.is_some();
        let mut state = self.lock();
        self.check_room(&state)?;
        if let Some(info) = state.slots.get_mut(claimed.slot) {
            info.hook = wishes.hook.take();
            info.keep = wishes.keep.map(|until| Keep { until, departed: 0 });
        }
        if let Some(cell) = self.control.slot(claimed.slot) {
            lease::publish(cell, claimed.word, rings);
        }
        Ok(self.announce(
            state,
            claimed.slot,
            claimed.word.generation(),
            claimed.place,
            meta,
        ))
    }

    /// Publishes a frame that is published already once more, with other metadata. The caller has a reference, and
    /// gets another one.
    pub(super) fn republish(
        &self,
        slot: u32,
        generation: u32,
        place: Place,
        meta: FrameMeta,
    ) -> Result<(FrameMeta, Arc<Sticky>), PublishError> {
        self.check_payload(&meta, place)?;
        let state = self.lock();
        self.check_room(&state)?;
        Ok(self.announce(state, slot, generation, place, meta))
    }

    pub(super) fn check_payload(&self, meta: &FrameMeta, place: Place) -> Result<(), PublishError> {
        if !self.process.is_current() {
            return Err(PublishError::Forked);
        }
        let end = meta.offset.checked_add(meta.size);
        if end.is_none_or(|end| end > place.len as u64) {
            return Err(PublishError::OutOfSlot {
                offset: meta.offset,
                end: end.unwrap_or(u64::MAX),
                slot_size: place.len,
            });
        }
        Ok(())
    }

    pub(super) fn check_room(&self, state: &State) -> Result<(), PublishError> {
        if state.closed {
            return Err(PublishError::Closed);
        }
        if self.lossless() && self.backlog(state) >= u64::from(self.shape().ring_len) {
            return Err(PublishError::NoRoom);
        }
        Ok(())
    }

    /// The entry, the head, the history; then the wake-ups.
    pub(super) fn announce(
        &self,
        mut state: MutexGuard<'_, State>,
        slot: u32,
        generation: u32,
        place: Place,
        mut meta: FrameMeta,
    ) -> (FrameMeta, Arc<Sticky>) {
        let sequence = self.control.head();
        meta.sequence = sequence;
        meta.slot = slot;
        meta.generation = generation;
        meta.published_at = monotonic_ns();
        meta.sticky_version = state.sticky.version();
        let entry = Entry {
            region: place.region,
            offset: place.offset as u64,
            len: place.len as u64,
            meta,
        };
        self.control.write_entry(&entry);
        let meta = entry.meta;
        // One reference for the caller, one for the history.
        state.slots.reference(slot);
        state.slots.reference(slot);
        if let Some(info) = state.slots.get_mut(slot) {
            info.last_sequence = sequence;
            info.published_at = meta.published_at;
        }
        state.history.push_back(slot);
        // A stream with one more frame is not over.
        self.control.set_eos_at(None);
        self.control.set_head(sequence + 1);
        let mut effects = Effects {
            wake: true,
            ..Effects::default()
        };
        self.trim_history(&mut state, self.settings.history as usize, &mut effects);
        if sequence.is_multiple_of(64) {
            // Lies that cost no slot are found too, if later.
            state.audit(&self.control, &mut effects);
            state
                .sticky
                .forget_before((sequence + 1).saturating_sub(self.shape().ring_len.into()));
            state.retire(
                &self.control,
                Cold::ByNow,
                self.settings.min_slots,
                self.lossless(),
                &mut effects,
            );
        }
        let sticky = state.sticky.current();
        let peers = state.peers.clone();
        drop(state);
        self.run(effects, Some(peers));
        (meta, sticky)
    }

    pub(super) fn trim_history(&self, state: &mut State, keep: usize, effects: &mut Effects) {
        while state.history.len() > keep {
            if let Some(old) = state.history.pop_front() {
                state.dereference(&self.control, old, self.lossless(), effects);
            }
        }
    }
}
