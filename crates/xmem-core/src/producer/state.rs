// SPDX-License-Identifier: MPL-2.0

//! What the producer alone knows of a pool, and what may be done with it while its lock is held.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use xmem_shm::abi::layout::{Control, FLAG_CUT_OFF, REGIONS_LET_GO};
use xmem_shm::fault::{self, Point};
use xmem_shm::protocol::lease;
use xmem_shm::protocol::slot::{SlotState, SlotWord};

use super::builder::Settings;
use super::peer::Peer;
use super::regions::{Cold, Regions};
use super::share::Cut;
use super::slots::{Hook, Slots, Use, Want};
use super::sticky_log::StickyLog;
use crate::region::Region;

/// What has to happen after the state's lock is released.
#[derive(Default)]
#[must_use]
pub(super) struct Effects {
    pub(super) hooks: Vec<Hook>,
    pub(super) regions: Vec<Arc<Region>>,
    /// Regions that consumers are to let go of.
    pub(super) retired: Vec<u32>,
    /// Consumers that are cut off, and why.
    pub(super) cut_off: Vec<(Arc<Peer>, &'static str)>,
    pub(super) cut: Option<Cut>,
    pub(super) wake: bool,
}

/// An entry that is kept for consumers.
#[derive(Debug, Clone, Copy)]
pub(super) struct Kept {
    pub(super) slot: u32,
    pub(super) sequence: u64,
    /// It is no frame.
    pub(super) event: bool,
    /// Somebody is to be told when it is released.
    pub(super) is_waited_for: bool,
    /// When it is decoded, or else presented, in nanoseconds on CLOCK_MONOTONIC. Events without a time have that of the
    /// entry before them.
    pub(super) time: Option<i64>,
}

#[derive(Debug)]
pub(super) struct State {
    pub(super) slots: Slots,
    pub(super) regions: Regions,
    pub(super) peers: Arc<[Arc<Peer>]>,
    /// The newest frames and the events between them, oldest first. Each is a reference to its slot.
    pub(super) history: VecDeque<Kept>,
    /// There was no memory for one more region, so the history has no more than is promised.
    pub(super) is_short: bool,
    pub(super) sticky: StickyLog,
    /// How many events were published, modulo 2^32.
    pub(super) events: u32,
    /// The smallest share of a consumer so far that was logged.
    pub(super) least_share: u32,
    /// The pools that frames were forwarded from, the newest last: number and socket.
    pub(super) origins: VecDeque<(u64, String)>,
    /// `None`: not known yet.
    pub(super) upstream_need: Option<u32>,
    /// Slots of published frames with a hook or a count that wait for consumers.
    pub(super) watched: Vec<u32>,
    pub(super) closed: bool,
}

impl State {
    pub(super) fn new(settings: &Settings, sticky: StickyLog) -> Self {
        Self {
            slots: Slots::new(settings.max_slots),
            regions: Regions::new(settings.mixed_sizes, settings.max_bytes),
            peers: Arc::new([]),
            history: VecDeque::new(),
            events: 0,
            least_share: u32::MAX,
            is_short: false,
            sticky,
            origins: VecDeque::new(),
            upstream_need: None,
            watched: Vec::new(),
            closed: false,
        }
    }

    /// Whether no consumer needs what is in an idle slot. Says nothing for good: only `claim` does.
    pub(super) fn looks_free(&self, control: &Control, slot: u32, lossless: bool) -> bool {
        let (Some(info), Some(word)) = (self.slots.get(slot), control.slot(slot)) else {
            return false;
        };
        let word = SlotWord(word.load(Ordering::Relaxed));
        if word.state() != Some(SlotState::Published) {
            return true;
        }
        let generation = word.generation();
        if let Some(keep) = info.keep {
            let released = self
                .peers
                .iter()
                .filter(|peer| peer.took(slot, generation) && !peer.holds(slot, generation))
                .count() as u32;
            if released.saturating_add(keep.departed) < keep.until {
                return false;
            }
        }
        // The cursor first: a consumer stores its lease before it moves on, so whoever has moved on and holds no
        // lease is done with the frame.
        self.peers.iter().all(|peer| {
            let waits_for_it = lossless
                && peer
                    .cursor()
                    .is_some_and(|cursor| cursor <= info.last_sequence);
            !waits_for_it && !peer.holds(slot, generation)
        })
    }

    /// Claims an idle slot, if no consumer needs what is in it.
    pub(super) fn claim(&self, control: &Control, slot: u32, lossless: bool) -> Option<SlotWord> {
        if !self.looks_free(control, slot, lossless) {
            return None;
        }
        fault::point(Point::ClaimLooked);
        // The list of consumers cannot change in between: joining takes the same lock as claiming.
        lease::claim(control.slot(slot)?, |generation| {
            self.peers.iter().any(|peer| peer.holds(slot, generation))
        })
    }

    /// If nobody needs an idle frame with a hook or a count any more: takes it out of circulation, runs its hook.
    pub(super) fn finalize(
        &mut self,
        control: &Control,
        slot: u32,
        lossless: bool,
        effects: &mut Effects,
    ) -> bool {
        if self.closed {
            // Nobody writes the slot any more, so the frame stays there for consumers that are behind.
            if !self.looks_free(control, slot, lossless) {
                return false;
            }
        } else {
            let Some(word) = self.claim(control, slot, lossless) else {
                return false;
            };
            if let Some(cell) = control.slot(slot) {
                cell.store(word.with_state(SlotState::Free).0, Ordering::Relaxed);
                fault::point(Point::FrameFinalized);
            }
        }
        if let Some(info) = self.slots.get_mut(slot) {
            info.keep = None;
            effects.hooks.extend(info.hook.take());
        }
        true
    }

    /// Looks again at the frames that wait for consumers.
    pub(super) fn finalize_watched(
        &mut self,
        control: &Control,
        lossless: bool,
        effects: &mut Effects,
    ) {
        let mut watched = std::mem::take(&mut self.watched);
        watched.retain(|slot| {
            let idle = self
                .slots
                .get(*slot)
                .is_some_and(|info| info.used == Use::Idle);
            // Not idle: the producer's side took a reference again; `dereference` comes back to it.
            idle && !self.finalize(control, *slot, lossless, effects)
        });
        self.watched = watched;
    }

    pub(super) fn dereference(
        &mut self,
        control: &Control,
        slot: u32,
        lossless: bool,
        effects: &mut Effects,
    ) {
        if !self.slots.dereference(slot) {
            return;
        }
        let special = self
            .slots
            .get(slot)
            .is_some_and(|info| info.hook.is_some() || info.keep.is_some());
        if special
            && !self.finalize(control, slot, lossless, effects)
            && !self.watched.contains(&slot)
        {
            self.watched.push(slot);
        }
    }

    /// Cuts off the consumers whose pages make no sense.
    pub(super) fn audit(&mut self, control: &Control, effects: &mut Effects) {
        let head = control.head();
        let nonsense = |peer: &Arc<Peer>| Some((peer.clone(), peer.nonsense(control, head)?));
        let liars: Vec<_> = self.peers.iter().filter_map(nonsense).collect();
        for (peer, _) in &liars {
            peer.page.flags().fetch_or(FLAG_CUT_OFF, Ordering::Release);
            peer.page.wake();
            self.remove_peer(control, peer.id);
        }
        effects.cut_off.extend(liars);
    }

    /// A consumer's page does not count any more. Returns it.
    pub(super) fn remove_peer(&mut self, control: &Control, id: u64) -> Option<Arc<Peer>> {
        let peer = self.peers.iter().find(|peer| peer.id == id)?.clone();
        self.peers = self
            .peers
            .iter()
            .filter(|peer| peer.id != id)
            .cloned()
            .collect();
        for slot in 0..control.constants().shape.max_slots {
            let Some(keep) = self.slots.get_mut(slot).and_then(|info| info.keep.as_mut()) else {
                continue;
            };
            let Some(word) = control.slot(slot) else {
                break;
            };
            let word = SlotWord(word.load(Ordering::Relaxed));
            if peer.took(slot, word.generation()) {
                keep.departed = keep.departed.saturating_add(1);
            }
        }
        Some(peer)
    }

    /// Takes the places of a region's slots away and lets the region go, as far as nobody holds anything in it.
    pub(super) fn retire_region(
        &mut self,
        control: &Control,
        id: u32,
        lossless: bool,
        effects: &mut Effects,
    ) {
        let slots: Vec<u32> = self.slots.of_region(id).map(|(slot, _)| slot).collect();
        for slot in slots {
            let idle = self
                .slots
                .get(slot)
                .is_some_and(|info| info.used == Use::Idle && info.hook.is_none());
            if !idle {
                continue;
            }
            if let Some(word) = self.claim(control, slot, lossless) {
                if let Some(cell) = control.slot(slot) {
                    cell.store(word.with_state(SlotState::Free).0, Ordering::Relaxed);
                    fault::point(Point::SlotRetired);
                }
                self.slots.unassign(slot);
            }
        }
        if self.slots.of_region(id).next().is_none() {
            effects.regions.extend(self.regions.retire(id));
            effects.retired.push(id);
            self.show_regions(control);
        }
    }

    /// Tells consumers which regions there are.
    pub(super) fn show_regions(&self, control: &Control) {
        control.show_regions(self.regions.ids(), self.regions.retired.version());
        fault::point(Point::RegionsShown);
    }

    pub(super) fn forget_retired(&mut self, effects: &mut Effects) {
        let Self { regions, peers, .. } = self;
        let released = regions.retired.forget(|id| {
            let peer = peers.iter().find(|peer| peer.id == id)?;
            // Pairs with the release store in `say_let_go`: what is freed then is mapped nowhere any more.
            let seen = peer.page.regions_seen().load(Ordering::Acquire);
            (seen != REGIONS_LET_GO).then_some(seen as u32)
        });
        effects.hooks.extend(released);
    }

    /// Lets go of regions. Returns how many went.
    pub(super) fn retire(
        &mut self,
        control: &Control,
        when: Cold,
        min_slots: u32,
        lossless: bool,
        effects: &mut Effects,
    ) -> usize {
        let before = self.regions.count();
        for id in self.regions.cold(&self.slots, when) {
            let lost = self.slots.of_region(id).count() as u32;
            let needed = matches!(when, Cold::ByNow | Cold::NotInUse)
                && self.slots.assigned() - lost < min_slots.max(1);
            let free = self
                .slots
                .of_region(id)
                .all(|(slot, _)| self.looks_free(control, slot, lossless));
            let asked = matches!(when, Cold::UnfitFor(_) | Cold::PartlyUnfitFor(_));
            if !needed && (free || asked) {
                self.retire_region(control, id, lossless, effects);
            }
        }
        self.forget_retired(effects);
        (before - self.regions.count()) as usize
    }

    /// Takes the frames out of the history whose slots are in the way of such frames.
    pub(super) fn forget_history_unfit_for(
        &mut self,
        control: &Control,
        want: Want,
        lossless: bool,
        effects: &mut Effects,
    ) {
        self.forget_history(control, lossless, effects, |state, kept| {
            let place = state.slots.get(kept.slot).and_then(|info| info.place);
            place.is_some_and(|place| !want.fits(place))
        });
    }

    /// Takes some entries out of the history.
    pub(super) fn forget_history(
        &mut self,
        control: &Control,
        lossless: bool,
        effects: &mut Effects,
        goes: impl Fn(&Self, &Kept) -> bool,
    ) {
        let goes = |kept: &Kept| goes(self, kept);
        let (gone, stays): (Vec<_>, Vec<_>) = self.history.iter().copied().partition(goes);
        self.history = stays.into();
        for kept in gone {
            self.dereference(control, kept.slot, lossless, effects);
        }
    }
}
