// SPDX-License-Identifier: MPL-2.0

//! Getting a slot to write, and giving it back unpublished.

use std::sync::atomic::Ordering;

use xmem_shm::fault::{self, Point};
use xmem_shm::protocol::slot::{SlotState, SlotWord};

use super::plan::Plan;
use super::pool::{Claimed, Pool};
use super::publish::Span;
use super::regions::{Cold, Full};
use super::slots::{Use, Want};
use super::state::{Effects, State};
use crate::error::AcquireError;
use crate::region::{Region, RegionSettings};

/// Makes a region that was planned. No lock is held.
pub(super) type MakeRegion<'a> = &'a dyn Fn(Plan) -> Result<Region, AcquireError>;

enum Found {
    Slot(Claimed),
    Room(Plan),
}

impl Pool {
    /// Claims a slot in host memory. Never waits.
    pub(super) fn acquire(&self, want: Want) -> Result<Claimed, AcquireError> {
        if want.size == 0 {
            return Err(AcquireError::ZeroSize);
        }
        let make = |plan: Plan| Ok(Region::create(plan.len(), self.region_settings())?);
        self.acquire_in(want, &make)
    }

    /// Claims a slot in regions that are made like this.
    pub(super) fn acquire_in(
        &self,
        want: Want,
        make: MakeRegion<'_>,
    ) -> Result<Claimed, AcquireError> {
        if !self.process.is_current() {
            return Err(AcquireError::Forked);
        }
        let mut effects = Effects::default();
        let result = self.acquire_with(want, make, &mut effects);
        self.run(effects, None);
        result
    }

    fn acquire_with(
        &self,
        want: Want,
        make: MakeRegion<'_>,
        effects: &mut Effects,
    ) -> Result<Claimed, AcquireError> {
        let mut state = self.lock();
        let plan = match self.find(&mut state, want, effects)? {
            Found::Slot(claimed) => return Ok(claimed),
            Found::Room(plan) => plan,
        };
        drop(state);
        // Reserving memory takes milliseconds, so nobody has to wait for it.
        let region = make(plan);
        fault::point(Point::RegionMade);
        let mut state = self.lock();
        let region = match region {
            Ok(region) => region,
            Err(error) => {
                state.regions.abandon(plan);
                state.is_short = true;
                self.trim_history(&mut state, Span::Promised, effects);
                return self.claim_idle(&mut state, want).ok_or(error);
            }
        };
        let State { regions, slots, .. } = &mut *state;
        regions.install(plan, region, slots);
        state.show_regions(&self.control);
        state.share_out(&self.control, &self.settings, effects);
        // Another thread may have been faster, but then it used up what it planned itself.
        let claimed = self.claim_idle(&mut state, want);
        let claimed = claimed.ok_or_else(|| self.exhausted(&state));
        drop(state);
        log::debug!(
            "pool {:?} has a new region of {} slots of {} bytes",
            self.name,
            plan.slots,
            plan.slot_len
        );
        claimed
    }

    /// A slot that is free, or becomes so by letting go of what may go, or else room for a new one.
    fn find(
        &self,
        state: &mut State,
        want: Want,
        effects: &mut Effects,
    ) -> Result<Found, AcquireError> {
        if state.closed {
            return Err(AcquireError::Closed);
        }
        let lossless = self.lossless();
        let settings = &self.settings;
        if let Some(claimed) = self.claim_idle(state, want) {
            return Ok(Found::Slot(claimed));
        }
        // Before the pool grows: is a frame free whose last holder did not ring, does somebody pin slots that are
        // not his?
        state.finalize_watched(&self.control, lossless, effects);
        state.audit(&self.control, effects);
        if let Some(claimed) = self.claim_idle(state, want) {
            return Ok(Found::Slot(claimed));
        }
        state.retire(
            &self.control,
            Cold::ByNow,
            settings.min_slots,
            lossless,
            effects,
        );
        let first = settings
            .min_slots
            .max(state.upstream_need.unwrap_or(0) + settings.history + 2);
        let plan = |state: &mut State| {
            let State { regions, slots, .. } = state;
            regions.plan(slots, want, first, settings.max_slots)
        };
        let mut result = plan(state);
        while matches!(result, Err(Full::Limit))
            && self.forget_spare(state, Span::Promised, effects)
        {
            if let Some(claimed) = self.claim_idle(state, want) {
                return Ok(Found::Slot(claimed));
            }
        }
        // What frames of other sizes leave unused goes first; then the history, which is for late joiners, and
        // single slots, so that one frame that is held does not keep its whole region.
        for when in [Cold::UnfitFor(want), Cold::PartlyUnfitFor(want)] {
            let full = match result {
                Err(full @ (Full::Limit | Full::List)) => full,
                _ => break,
            };
            if matches!(when, Cold::PartlyUnfitFor(_)) {
                state.forget_history_unfit_for(&self.control, want, lossless, effects);
            }
            // Only a region that goes as a whole leaves a place in the list.
            let when = match full {
                Full::List => Cold::UnusedAndUnfitFor(want),
                _ => when,
            };
            state.retire(&self.control, when, 0, lossless, effects);
            result = plan(state);
        }
        // Rather this frame than one before it: `max_slots` has room for them, `max_bytes` may have none.
        if matches!(result, Err(Full::Limit))
            && state.slots.assigned() < settings.max_slots
            && !want.is_ahead
            && let Some(claimed) = self.claim_from_history(state, want, effects)
        {
            return Ok(Found::Slot(claimed));
        }
        let plan = result.map_err(|full| match full {
            Full::TooLarge => AcquireError::TooLarge {
                size: want.slot_size(),
                slot_size: want.slot_bytes(),
                max_bytes: settings.max_bytes,
            },
            Full::Limit | Full::List => self.exhausted(state),
        })?;
        Ok(Found::Room(plan))
    }

    /// The slot of the oldest frame for consumers that are still to come, if nobody else has anything to do with it.
    fn claim_from_history(
        &self,
        state: &mut State,
        want: Want,
        effects: &mut Effects,
    ) -> Option<Claimed> {
        let can_be_had = |slot: u32| {
            let times = state.history.iter().filter(|kept| kept.slot == slot);
            let only_here = Use::Referenced(times.count() as u32);
            state.slots.get(slot).is_some_and(|info| {
                info.used == only_here && info.place.is_some_and(|place| want.fits(place))
            }) && state.looks_free(&self.control, slot, self.lossless())
        };
        let oldest = state.history.iter().find(|kept| can_be_had(kept.slot));
        let slot = oldest?.slot;
        state.forget_history(&self.control, self.lossless(), effects, |_, kept| {
            kept.slot == slot
        });
        self.claim_idle(state, want)
    }

    fn exhausted(&self, state: &State) -> AcquireError {
        AcquireError::Exhausted {
            pool: self.name.clone(),
            slots: state.slots.assigned(),
            max_slots: self.settings.max_slots,
            max_bytes: self.settings.max_bytes,
        }
    }

    fn region_settings(&self) -> RegionSettings<'_> {
        RegionSettings {
            backing: self.settings.backing,
            shm_prefix: &self.shm_prefix,
            peers_may_write: self.settings.peers_may_write,
        }
    }

    /// A slot for such a frame.
    fn claim_idle(&self, state: &mut State, want: Want) -> Option<Claimed> {
        let lossless = self.lossless();
        let (slot, word) = state
            .slots
            .idle()
            .filter(|slot| {
                state.slots.get(*slot).is_some_and(|info| {
                    info.hook.is_none() && info.place.is_some_and(|p| want.fits(p))
                })
            })
            .find_map(|slot| Some((slot, state.claim(&self.control, slot, lossless)?)))?;
        self.start_writing(state, slot, word, want.filled())
    }

    fn start_writing(
        &self,
        state: &mut State,
        slot: u32,
        word: SlotWord,
        filled: usize,
    ) -> Option<Claimed> {
        state.slots.start_writing(slot, filled);
        state.watched.retain(|s| *s != slot);
        let place = state.slots.get(slot)?.place?;
        state.regions.touch(place.region);
        Some(Claimed {
            slot,
            word,
            place,
            region: state.regions.get(place.region)?.region.clone(),
        })
    }

    /// Claims this very slot, with the frame that is in it, if nobody else has a reference to it.
    pub(super) fn acquire_index(&self, slot: u32) -> Option<Claimed> {
        if !self.process.is_current() {
            return None;
        }
        let mut effects = Effects::default();
        let mut state = self.lock();
        // A frame that all its readers are done with is none any more, also before they were heard.
        state.finalize_watched(&self.control, self.lossless(), &mut effects);
        let claimed = self.claim_index(&mut state, slot);
        drop(state);
        self.run(effects, None);
        claimed
    }

    fn claim_index(&self, state: &mut State, slot: u32) -> Option<Claimed> {
        if state.closed
            || state.slots.get(slot)?.used != Use::Idle
            || state.slots.get(slot)?.hook.is_some()
        {
            return None;
        }
        let place = state.slots.get(slot)?.place?;
        // Whoever asked for it gets the frame itself, so a count of readers that are still to come has no say.
        let keep = state.slots.get_mut(slot)?.keep.take();
        match state.claim(&self.control, slot, self.lossless()) {
            // All that its holder writes is published as its payload, and attachments go behind that.
            Some(word) => self.start_writing(state, slot, word, place.filled()),
            None => {
                state.slots.get_mut(slot)?.keep = keep;
                None
            }
        }
    }

    /// Gives a slot back that was claimed and not published.
    pub(super) fn abandon(&self, slot: u32, word: SlotWord) {
        let mut state = self.lock();
        if let Some(cell) = self.control.slot(slot) {
            cell.store(word.with_state(SlotState::Free).0, Ordering::Relaxed);
            fault::point(Point::SlotAbandoned);
        }
        state.slots.stop_writing(slot);
        drop(state);
        self.notice();
    }
}
