// SPDX-License-Identifier: MPL-2.0

//! The producer's side of the slot protocol: acquire, publish, release, reclaim.
//!
//! One lock guards what only this process knows. What a change entails outside (waking consumers, running hooks,
//! unmapping regions) is gathered in [`Effects`] and happens after the lock is released.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::builder::Settings;
use super::control::{Command, Commands};
use super::peer::{Departure, Peer};
use super::regions::{Cold, Full, Regions};
use super::slots::{Hook, Keep, Place, Slots, Use};
use super::sticky_log::StickyLog;
use super::write_lease::OwnHold;
use crate::cancel::Bell;
use crate::consumer::StartFrom;
use crate::entry::Entry;
use crate::error::{AcquireError, PublishError, RegionError};
use crate::layout::{Control, FLAG_CUT_OFF, FLAG_TIMED_OUT, Shape};
use crate::meta::FrameMeta;
use crate::os::clock::monotonic_ns;
use crate::os::fork::ProcessId;
use crate::protocol::lease;
use crate::protocol::slot::{SlotState, SlotWord};
use crate::region::{Region, RegionSettings};
use crate::sticky::Sticky;

/// How many frames a lossless pool's slowest consumer may be behind before the producer waits.
const MAX_BACKLOG: u32 = 8;

/// What is left for an upstream that has not said what it needs: as much as a decoder usually does.
const LIKELY_UPSTREAM_NEED: u32 = 16;

/// A slot that was claimed for writing.
#[derive(Debug)]
pub(super) struct Claimed {
    pub(super) slot: u32,
    pub(super) word: SlotWord,
    pub(super) place: Place,
    pub(super) region: Arc<Region>,
}

/// What was asked of a frame besides its bytes and metadata.
#[derive(Default)]
pub(super) struct Wishes {
    pub(super) hook: Option<Hook>,
    pub(super) keep: Option<u32>,
}

/// What has to happen after the state's lock is released.
#[derive(Default)]
#[must_use]
pub(super) struct Effects {
    hooks: Vec<Hook>,
    regions: Vec<Arc<Region>>,
    /// Regions that consumers are to let go of.
    retired: Vec<u32>,
    cut_off: Vec<u64>,
    wake: bool,
}

/// Runs on whatever thread notices that a frame is not referenced any more, so a panic must not go further.
fn run_hook(hook: Hook) {
    if std::panic::catch_unwind(std::panic::AssertUnwindSafe(hook)).is_err() {
        log::error!("a release hook panicked");
    }
}

#[derive(Debug, Default)]
pub(super) struct Counters {
    pub(super) copied: AtomicU64,
    pub(super) dropped: AtomicU64,
    pub(super) cut_off: AtomicU64,
    pub(super) timed_out: AtomicU64,
}

#[derive(Debug)]
pub(super) struct State {
    pub(super) slots: Slots,
    pub(super) regions: Regions,
    pub(super) peers: Arc<[Arc<Peer>]>,
    /// The slots of the newest frames, oldest first. Each entry is a reference.
    pub(super) history: VecDeque<u32>,
    pub(super) sticky: StickyLog,
    /// `None`: not known yet.
    pub(super) upstream_need: Option<u32>,
    /// Slots of published frames with a hook or a count that wait for consumers.
    watched: Vec<u32>,
    pub(super) closed: bool,
}

impl Drop for Pool {
    fn drop(&mut self) {
        // Frames that consumers held when the pool was closed: the owner gives them up now.
        if self.process.is_current() {
            let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
            for slot in 0..self.settings.max_slots {
                if let Some(hook) = state.slots.get_mut(slot).and_then(|info| info.hook.take()) {
                    run_hook(hook);
                }
            }
        }
    }
}

/// A pool, as its producer has it.
#[derive(Debug)]
pub(super) struct Pool {
    pub(super) name: String,
    pub(super) socket_path: PathBuf,
    pub(super) shm_prefix: String,
    pub(super) settings: Settings,
    pub(super) control: Control,
    pub(super) control_fd: OwnedFd,
    pub(super) process: ProcessId,
    pub(super) commands: Arc<Commands>,
    /// Rings when consumers gave something back, came or went.
    pub(super) bell: Arc<Bell>,
    pub(super) counters: Counters,
    pub(super) closed: AtomicBool,
    state: Mutex<State>,
}

impl State {
    pub(super) fn new(max_slots: u32, sticky: StickyLog) -> Self {
        Self {
            slots: Slots::new(max_slots),
            regions: Regions::default(),
            peers: Arc::new([]),
            history: VecDeque::new(),
            sticky,
            upstream_need: None,
            watched: Vec::new(),
            closed: false,
        }
    }

    /// Whether no consumer needs what is in an idle slot. Says nothing for good: only `claim` does.
    fn looks_free(&self, control: &Control, slot: u32, lossless: bool) -> bool {
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
            if released + keep.departed < keep.until {
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
    fn claim(&self, control: &Control, slot: u32, lossless: bool) -> Option<SlotWord> {
        if !self.looks_free(control, slot, lossless) {
            return None;
        }
        // The list of consumers cannot change in between: joining takes the same lock as claiming.
        lease::claim(control.slot(slot)?, |generation| {
            self.peers.iter().any(|peer| peer.holds(slot, generation))
        })
    }

    /// If nobody needs an idle frame with a hook or a count any more: takes it out of circulation, runs its hook.
    fn finalize(
        &mut self,
        control: &Control,
        slot: u32,
        lossless: bool,
        effects: &mut Effects,
    ) -> bool {
        let Some(word) = self.claim(control, slot, lossless) else {
            return false;
        };
        if let Some(cell) = control.slot(slot) {
            cell.store(word.with_state(SlotState::Free).0, Ordering::Relaxed);
        }
        if let Some(info) = self.slots.get_mut(slot) {
            info.keep = None;
            effects.hooks.extend(info.hook.take());
        }
        true
    }

    /// Looks again at the frames that wait for consumers.
    fn finalize_watched(&mut self, control: &Control, lossless: bool, effects: &mut Effects) {
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

    fn dereference(&mut self, control: &Control, slot: u32, lossless: bool, effects: &mut Effects) {
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
    fn audit(&mut self, control: &Control, effects: &mut Effects) {
        let head = control.head();
        let liars: Vec<u64> = self
            .peers
            .iter()
            .filter_map(|peer| {
                let reason = peer.nonsense(control, head)?;
                log::warn!(
                    "cutting off consumer {} ({:?}, pid {}): {reason}",
                    peer.id,
                    peer.name,
                    peer.pid
                );
                peer.page.flags().fetch_or(FLAG_CUT_OFF, Ordering::Release);
                peer.page.wake();
                Some(peer.id)
            })
            .collect();
        for id in &liars {
            self.remove_peer(control, *id);
        }
        effects.cut_off.extend(liars);
    }

    /// A consumer's page does not count any more. Returns it.
    fn remove_peer(&mut self, control: &Control, id: u64) -> Option<Arc<Peer>> {
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
                keep.departed += 1;
            }
        }
        Some(peer)
    }

    /// Takes the places of a region's slots away and lets the region go, as far as nobody holds anything in it.
    fn retire_region(&mut self, control: &Control, id: u32, lossless: bool, effects: &mut Effects) {
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
    fn show_regions(&self, control: &Control) {
        let mut ids = self.regions.ids();
        for word in control.region_ids() {
            word.store(ids.next().unwrap_or(0), Ordering::Relaxed);
        }
        control.set_regions_version(self.regions.version);
    }

    fn forget_retired(&mut self) {
        let Self { regions, peers, .. } = self;
        regions.forget_retired(|id| {
            let peer = peers.iter().find(|peer| peer.id == id)?;
            Some(peer.page.regions_seen().load(Ordering::Relaxed) as u32)
        });
    }

    /// Lets go of regions. Returns how many went.
    fn retire(
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
        self.forget_retired();
        (before - self.regions.count()) as usize
    }

    /// Takes the frames out of the history whose slots are in the way of frames of this size.
    fn forget_history_unfit_for(
        &mut self,
        control: &Control,
        size: usize,
        lossless: bool,
        effects: &mut Effects,
    ) {
        let unfit = |slot: &u32| {
            let place = self.slots.get(*slot).and_then(|info| info.place);
            place.is_some_and(|place| !Regions::fits(place, size))
        };
        let (unfit, kept): (Vec<u32>, Vec<u32>) = self.history.iter().partition(|slot| unfit(slot));
        self.history = kept.into();
        for slot in unfit {
            self.dereference(control, slot, lossless, effects);
        }
    }

    /// Slots that are promised: to upstream, to history, to consumers; and two that are in somebody's hands.
    pub(super) fn reserved(&self, settings: &Settings) -> u32 {
        let consumers: u32 = self
            .peers
            .iter()
            .map(|peer| Peer::reserved(peer.budget))
            .sum();
        // Consumers often come before upstream has said what it needs; then something is left for it.
        let unknown = (settings.max_slots / 8).min(LIKELY_UPSTREAM_NEED);
        self.upstream_need.unwrap_or(unknown) + settings.history + consumers + 2
    }
}

impl Pool {
    #[expect(
        clippy::too_many_arguments,
        reason = "the parts of a pool, put together in one place"
    )]
    pub(super) fn new(
        name: String,
        socket_path: PathBuf,
        settings: Settings,
        control: Control,
        control_fd: OwnedFd,
        commands: Arc<Commands>,
        shm_prefix: String,
        sticky: StickyLog,
    ) -> Self {
        let state = State::new(settings.max_slots, sticky);
        Self {
            name,
            socket_path,
            shm_prefix,
            settings,
            control,
            control_fd,
            process: ProcessId::current(),
            commands,
            bell: Arc::default(),
            counters: Counters::default(),
            closed: AtomicBool::new(false),
            state: Mutex::new(state),
        }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn shape(&self) -> Shape {
        self.control.constants().shape
    }

    pub(super) fn lossless(&self) -> bool {
        self.control.constants().lossless
    }

    /// What follows from a change, with the lock released.
    pub(super) fn run(&self, effects: Effects, peers: Option<Arc<[Arc<Peer>]>>) {
        if effects.wake {
            for peer in peers.iter().flat_map(|peers| peers.iter()) {
                peer.page.wake();
            }
        }
        for id in effects.cut_off {
            self.counters.cut_off.fetch_add(1, Ordering::Relaxed);
            self.commands
                .send(Command::Disconnect(id, Departure::CutOff));
            self.bell.ring();
        }
        for id in effects.retired {
            self.commands.send(Command::RegionGone(id));
        }
        // Unmapping takes milliseconds for large regions, hence out here.
        drop(effects.regions);
        effects.hooks.into_iter().for_each(run_hook);
    }

    /// Claims a slot for a frame of `size` bytes. Never waits.
    pub(super) fn acquire(&self, size: usize) -> Result<Claimed, AcquireError> {
        if size == 0 {
            return Err(AcquireError::ZeroSize);
        }
        if !self.process.is_current() {
            return Err(AcquireError::Forked);
        }
        let mut effects = Effects::default();
        let result = self.acquire_with(size, &mut effects);
        self.run(effects, None);
        result
    }

    fn acquire_with(&self, size: usize, effects: &mut Effects) -> Result<Claimed, AcquireError> {
        let lossless = self.lossless();
        let settings = &self.settings;
        let plan = {
            let mut state = self.lock();
            if state.closed {
                return Err(AcquireError::Closed);
            }
            if let Some(claimed) = self.claim_idle(&mut state, size) {
                return Ok(claimed);
            }
            // Before the pool grows: is a frame free whose last holder did not ring, does somebody pin slots that are
            // not his?
            state.finalize_watched(&self.control, lossless, effects);
            state.audit(&self.control, effects);
            if let Some(claimed) = self.claim_idle(&mut state, size) {
                return Ok(claimed);
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
                regions.plan(slots, size, first, settings.max_slots, settings.max_bytes)
            };
            let mut result = plan(&mut state);
            // What frames of other sizes leave unused goes first; then the history, which is for late joiners, and
            // single slots, so that one frame that is held does not keep its whole region.
            for when in [Cold::UnfitFor(size), Cold::PartlyUnfitFor(size)] {
                if !matches!(result, Err(Full::Limit)) {
                    break;
                }
                if matches!(when, Cold::PartlyUnfitFor(_)) {
                    state.forget_history_unfit_for(&self.control, size, lossless, effects);
                }
                state.retire(&self.control, when, 0, lossless, effects);
                result = plan(&mut state);
            }
            result.map_err(|full| match full {
                Full::TooLarge => AcquireError::TooLarge {
                    size,
                    max_bytes: settings.max_bytes,
                },
                Full::Limit => AcquireError::Exhausted {
                    pool: self.name.clone(),
                    slots: state.slots.assigned(),
                    max_slots: settings.max_slots,
                    max_bytes: settings.max_bytes,
                },
            })?
        };
        // Reserving memory takes milliseconds, so nobody has to wait for it.
        let region = Region::create(plan.len(), self.region_settings());
        let mut state = self.lock();
        let region = match region {
            Ok(region) => region,
            Err(error) => {
                state.regions.abandon(plan);
                return Err(error.into());
            }
        };
        let State { regions, slots, .. } = &mut *state;
        regions.install(plan, region, slots);
        state.show_regions(&self.control);
        log::debug!(
            "pool {:?} has a new region of {} slots of {} bytes",
            self.name,
            plan.slots,
            plan.slot_len
        );
        // Another thread may have been faster, but then it used up what it planned itself.
        self.claim_idle(&mut state, size)
            .ok_or_else(|| AcquireError::Exhausted {
                pool: self.name.clone(),
                slots: state.slots.assigned(),
                max_slots: settings.max_slots,
                max_bytes: settings.max_bytes,
            })
    }

    fn region_settings(&self) -> RegionSettings<'_> {
        RegionSettings {
            backing: self.settings.backing,
            shm_prefix: &self.shm_prefix,
            peers_may_write: self.settings.peers_may_write,
        }
    }

    fn claim_idle(&self, state: &mut State, size: usize) -> Option<Claimed> {
        let lossless = self.lossless();
        let (slot, word) = state
            .slots
            .idle()
            .filter(|slot| {
                state.slots.get(*slot).is_some_and(|info| {
                    info.hook.is_none() && info.place.is_some_and(|p| Regions::fits(p, size))
                })
            })
            .find_map(|slot| Some((slot, state.claim(&self.control, slot, lossless)?)))?;
        self.start_writing(state, slot, word)
    }

    fn start_writing(&self, state: &mut State, slot: u32, word: SlotWord) -> Option<Claimed> {
        state.slots.start_writing(slot);
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
        let mut state = self.lock();
        if state.closed
            || state.slots.get(slot)?.used != Use::Idle
            || state.slots.get(slot)?.hook.is_some()
        {
            return None;
        }
        // Whoever asked for it gets the frame itself, so a count of readers that are still to come has no say.
        let keep = state.slots.get_mut(slot)?.keep.take();
        match state.claim(&self.control, slot, self.lossless()) {
            Some(word) => self.start_writing(&mut state, slot, word),
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
        }
        state.slots.stop_writing(slot);
        drop(state);
        self.notice();
    }

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

    fn check_room(&self, state: &State) -> Result<(), PublishError> {
        if state.closed {
            return Err(PublishError::Closed);
        }
        if self.lossless() && self.backlog(state) >= u64::from(self.shape().ring_len) {
            return Err(PublishError::NoRoom);
        }
        Ok(())
    }

    /// The entry, the head, the history; then the wake-ups.
    fn announce(
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

    fn trim_history(&self, state: &mut State, keep: usize, effects: &mut Effects) {
        while state.history.len() > keep {
            if let Some(old) = state.history.pop_front() {
                state.dereference(&self.control, old, self.lossless(), effects);
            }
        }
    }

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

    /// A reference of the producer's side is gone.
    pub(super) fn dereference(&self, slot: u32) {
        let mut effects = Effects::default();
        self.lock()
            .dereference(&self.control, slot, self.lossless(), &mut effects);
        self.run(effects, None);
        self.notice();
    }

    /// "Keep the frame until `count` consumers took and released it."
    pub(super) fn set_keep(&self, slot: u32, count: u32) -> bool {
        if !self.process.is_current() {
            return false;
        }
        let mut state = self.lock();
        let Some(cell) = self.control.slot(slot) else {
            return false;
        };
        if SlotWord(cell.load(Ordering::Relaxed)).state() != Some(SlotState::Published) {
            return false;
        }
        lease::ask_to_ring(cell);
        if let Some(info) = state.slots.get_mut(slot) {
            let departed = info.keep.map_or(0, |keep| keep.departed);
            info.keep = Some(Keep {
                until: count,
                departed,
            });
        }
        true
    }

    /// Something may have come free in this process.
    fn notice(&self) {
        if self.control.waiting().load(Ordering::Relaxed) != 0 {
            self.bell.ring();
        }
    }

    /// A consumer says that it gave something back.
    pub(super) fn on_bell(&self) {
        let mut effects = Effects::default();
        self.lock()
            .finalize_watched(&self.control, self.lossless(), &mut effects);
        self.run(effects, None);
        self.bell.ring();
    }

    /// A consumer joins: from here on its page counts.
    pub(super) fn add_peer(&self, peer: Arc<Peer>, start_from: StartFrom) {
        let mut state = self.lock();
        let kept = state.history.len() as u64;
        let behind = match start_from {
            StartFrom::Next => 0,
            StartFrom::Newest => kept.min(1),
            StartFrom::Oldest => kept,
        };
        let cursor = self.control.head() - behind;
        peer.page.cursor().store(cursor, Ordering::Relaxed);
        peer.page
            .regions_seen()
            .store(state.regions.version.into(), Ordering::Relaxed);
        state.peers = state.peers.iter().cloned().chain([peer]).collect();
        drop(state);
        self.bell.ring();
    }

    /// A consumer is gone: from here on its page does not count. Returns it, if it was there.
    pub(super) fn remove_peer(&self, id: u64) -> Option<Arc<Peer>> {
        let mut effects = Effects::default();
        let mut state = self.lock();
        let peer = state.remove_peer(&self.control, id);
        state.finalize_watched(&self.control, self.lossless(), &mut effects);
        state.forget_retired();
        drop(state);
        self.run(effects, None);
        self.bell.ring();
        peer
    }

    /// How far the slowest consumer is behind.
    pub(super) fn backlog(&self, state: &State) -> u64 {
        let head = self.control.head();
        state
            .peers
            .iter()
            .filter_map(|peer| peer.cursor())
            .map(|cursor| head.saturating_sub(cursor))
            .max()
            .unwrap_or(0)
    }

    /// How far consumers of a lossless pool may be behind before the producer waits.
    pub(super) fn max_backlog(&self) -> u64 {
        // Not more than there can be slots for, besides what is promised to others.
        let settings = &self.settings;
        let room = settings.max_slots.saturating_sub(2).max(1);
        u64::from(MAX_BACKLOG.max(settings.history).min(room))
    }

    /// Stops waiting for the consumers that are furthest behind; what they hold stays theirs.
    pub(super) fn give_up_on_slowest(&self) {
        if !self.process.is_current() {
            return;
        }
        let state = self.lock();
        let head = self.control.head();
        let behind = |peer: &Peer| {
            peer.cursor()
                .map_or(0, |cursor| head.saturating_sub(cursor))
        };
        let most = state
            .peers
            .iter()
            .map(|peer| behind(peer))
            .max()
            .unwrap_or(0);
        for peer in state
            .peers
            .iter()
            .filter(|peer| most > 0 && behind(peer) == most)
        {
            log::warn!(
                "consumer {} ({:?}, pid {}) held the pool up for longer than lossless-timeout",
                peer.id,
                peer.name,
                peer.pid
            );
            peer.leave();
            peer.page
                .flags()
                .fetch_or(FLAG_TIMED_OUT, Ordering::Release);
            peer.page.wake();
            self.counters.timed_out.fetch_add(1, Ordering::Relaxed);
            self.commands.send(Command::TimedOut(peer.id));
        }
        drop(state);
        self.bell.ring();
    }

    /// Lets go of every region that is not needed. Returns how many went.
    pub(super) fn collect(&self) -> usize {
        if !self.process.is_current() {
            // Inherited through fork: the words in control memory are the parent's to write.
            return 0;
        }
        let mut effects = Effects::default();
        let mut state = self.lock();
        state.finalize_watched(&self.control, self.lossless(), &mut effects);
        let gone = state.retire(
            &self.control,
            Cold::NotInUse,
            self.settings.min_slots,
            self.lossless(),
            &mut effects,
        );
        drop(state);
        self.run(effects, None);
        gone
    }

    pub(super) fn set_sticky(&self, sticky: &Sticky) -> Result<u64, RegionError> {
        if !self.process.is_current() {
            return Err(RegionError::Forked);
        }
        let mut state = self.lock();
        let head = self.control.head();
        let version = state.sticky.push(sticky, head)?;
        drop(state);
        self.commands.send(Command::PushSticky);
        Ok(version)
    }

    pub(super) fn set_eos(&self, eos: bool) {
        if !self.process.is_current() {
            return;
        }
        let state = self.lock();
        self.control.set_eos_at(eos.then(|| self.control.head()));
        let peers = state.peers.clone();
        drop(state);
        for peer in peers.iter() {
            peer.page.wake();
        }
    }

    /// No frame comes any more. Consumers keep what they hold.
    pub(super) fn close(&self) {
        let mut effects = Effects::default();
        let mut state = self.lock();
        if std::mem::replace(&mut state.closed, true) {
            return;
        }
        self.closed.store(true, Ordering::Release);
        self.control.set_closed();
        effects.wake = true;
        self.trim_history(&mut state, 0, &mut effects);
        let peers = state.peers.clone();
        drop(state);
        self.run(effects, Some(peers));
        self.bell.ring();
    }
}
