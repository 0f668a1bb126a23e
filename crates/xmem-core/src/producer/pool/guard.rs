// SPDX-License-Identifier: MPL-2.0

//! A locked pool: its state, and operations that involve several parts of it.
//!
//! A change can have effects outside of the state: it wakes consumers, runs hooks, unmaps regions, writes log lines. The guard
//! collects these [`Effects`] and runs them when it is dropped, after the lock is released, because the program's hooks and
//! logger may call back.

use std::ops::{Deref, DerefMut};
use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard};

use xmem_shm::abi::layout::Control;
use xmem_shm::abi::parts::Origin;
use xmem_shm::fault::{self, Point};
use xmem_shm::protocol::lease::{self, SlotState, SlotWord};

use super::Pool;
use super::consumer::{ConsumerRecord, Consumers};
use super::event::Command;
use super::event::Cut;
use super::history::{History, Kept, Span};
use super::lookup::{Layouts, StickyLog};
use super::reach::Origins;
use super::regions::{Cold, Regions};
use super::retain::{Hook, run_hook};
use super::settings::Settings;
use super::share::Shares;
use super::slots::{self, SlotInfo, Slots, Want};
use crate::region::Region;

/// The lock of a pool. Fields are dropped in order: first the lock is released, then the effects run.
pub(in crate::producer) struct Guard<'a> {
    state: MutexGuard<'a, State>,
    effects: Effects<'a>,
}

impl Deref for Guard<'_> {
    type Target = State;

    fn deref(&self) -> &State {
        &self.state
    }
}

impl DerefMut for Guard<'_> {
    fn deref_mut(&mut self) -> &mut State {
        &mut self.state
    }
}

impl<'a> Guard<'a> {
    pub(super) fn new(pool: &'a Pool, state: MutexGuard<'a, State>) -> Self {
        Self {
            state,
            effects: Effects {
                pool,
                wake: None,
                rare: None,
            },
        }
    }

    pub(in crate::producer) fn pool(&self) -> &'a Pool {
        self.effects.pool
    }

    fn control(&self) -> &'a Control {
        self.pool().control()
    }

    fn settings(&self) -> &'a Settings {
        self.pool().settings()
    }

    /// Wakes the consumers that are on the list now, after the lock is released.
    pub(in crate::producer) fn wake_consumers(&mut self) {
        self.effects.wake = self.state.consumers.shared();
    }

    /// Runs hooks after the lock is released.
    pub(in crate::producer) fn run_later(&mut self, hooks: impl IntoIterator<Item = Hook>) {
        for hook in hooks {
            self.effects.rare().hooks.push(hook);
        }
    }

    /// Whether hooks or other rare effects run after the lock is released.
    pub(in crate::producer) fn has_rare_effects(&self) -> bool {
        self.effects.rare.is_some()
    }

    /// Whether frames of these pools of origin may be published. In a live pool, a consumer that has not answered yet waits or
    /// misses the frame. In a lossless pool no consumer may miss a frame.
    pub(in crate::producer) fn may_forward(&self, origins: impl Iterator<Item = Origin>) -> bool {
        let reach = self.consumers.reach(origins);
        reach.unwrap_or(!self.pool().lossless())
    }

    /// Sets a consumer's cursor to the first frame that it receives.
    pub(in crate::producer) fn set_start(&self, consumer: &ConsumerRecord) {
        let start = self.history.start(consumer.start_from());
        consumer.set_cursor(start.unwrap_or_else(|| self.control().head()));
    }

    /// How many entries the slowest consumer is behind.
    pub(in crate::producer) fn backlog(&self) -> u64 {
        self.consumers.backlog(self.control().head())
    }

    /// Whether no consumer needs the frame in an idle slot. The answer may change at once: only `claim` is final.
    // Inlined, because it runs for each frame and a call would take longer than the check.
    #[inline(always)]
    pub(in crate::producer) fn looks_free(&self, slot: u32) -> bool {
        let (Some(info), Some(word)) = (self.slots.get(slot), self.control().slot(slot)) else {
            return false;
        };
        let word = SlotWord(word.load(Ordering::Relaxed));
        if word.state() != Some(SlotState::Published) {
            return true;
        }
        let generation = word.generation();
        if let Some(readers) = info.readers()
            && readers.are_awaited(&self.consumers, slot, generation)
        {
            return false;
        }
        let lossless = self.pool().lossless();
        // Read the cursor first: a consumer stores its lease before it moves the cursor. So a consumer with a later cursor and
        // no lease has finished with the frame.
        self.consumers.iter().all(|consumer| {
            let waits_for_it = lossless
                && consumer
                    .cursor()
                    .is_some_and(|cursor| cursor <= info.last_sequence);
            !waits_for_it && !consumer.holds(slot, generation)
        })
    }

    /// Claims an idle slot, if no consumer needs the frame in it.
    pub(in crate::producer) fn claim(&self, slot: u32) -> Option<SlotWord> {
        if !self.looks_free(slot) {
            return None;
        }
        fault::point(Point::ClaimLooked);
        self.claim_unheld(slot)
    }

    /// Claims a slot to which the producer does not write, if no consumer holds the frame in it.
    #[inline(always)]
    fn claim_unheld(&self, slot: u32) -> Option<SlotWord> {
        // The list of consumers cannot change meanwhile, because joining takes the same lock.
        lease::claim(self.control().slot(slot)?, |generation| {
            self.consumers.hold(slot, generation)
        })
    }

    /// Whether upstream may hold one more slot for a frame that does not exist yet. One slot is always left, because a frame in
    /// other memory needs it to be published, and later frames, which may hold all other slots, are published after that frame.
    pub(in crate::producer) fn has_slot_ahead(&self, want: Want) -> bool {
        let held = self.slots.used().saturating_sub(self.history.len() as u32);
        held < self.shares.upstream_most() && self.regions.have_room_for(want, held + 1)
    }

    /// Marks a claimed slot as empty, so that it can be claimed again.
    fn free(&self, slot: u32, word: SlotWord, point: Point) {
        if let Some(cell) = self.control().slot(slot) {
            cell.store(word.with_state(SlotState::Free).0, Ordering::Relaxed);
            fault::point(point);
        }
    }

    /// Gives back a slot that was claimed and not published.
    pub(super) fn abandon(&mut self, slot: u32, word: SlotWord) {
        self.free(slot, word, Point::SlotAbandoned);
        self.slots.set_idle(slot);
    }

    /// Drops one reference of the producer.
    pub(super) fn dereference(&mut self, slot: u32) {
        if self.slots.dereference(slot) && !self.finalize(slot) {
            self.slots.watch(slot);
        }
    }

    /// If no consumer needs an idle frame whose release is waited for, empties its slot and runs its hook.
    fn finalize(&mut self, slot: u32) -> bool {
        let retention = self.slots.retention(slot);
        let is_borrowed = retention.is_some_and(|retention| retention.is_borrowed());
        if self.pool().is_closed() && !is_borrowed {
            // No later frame is written into the slot, so this one stays for consumers that are behind.
            if !self.looks_free(slot) {
                return false;
            }
        } else {
            let Some(word) = self.claim(slot) else {
                return false;
            };
            self.free(slot, word, Point::FrameFinalized);
        }
        let release = self.slots.take_release(slot);
        self.run_later(release);
        true
    }

    /// Runs the hooks of idle frames, although consumers may need the frames. Called when the pool ends, before its consumers are
    /// removed from the list.
    pub(in crate::producer) fn finalize_at_end(&mut self) {
        // The owner of borrowed memory may write to it after the hook. So a frame that no consumer holds is withdrawn. A held
        // frame can still be taken, because the process that holds it may have forwarded it.
        for slot in self.slots.take_borrowed() {
            if let Some(word) = self.claim_unheld(slot) {
                self.free(slot, word, Point::FrameFinalized);
            }
        }
        let releases = self.slots.take_idle_releases();
        self.run_later(releases);
    }

    /// Checks the frames that wait for consumers again.
    pub(in crate::producer) fn finalize_watched(&mut self) {
        let mut watched = self.slots.take_watched();
        // If a slot is not idle, the producer has a reference again. `dereference` then handles the slot.
        watched.retain(|slot| self.slots.is_idle(*slot) && !self.finalize(*slot));
        self.slots.set_watched(watched);
    }

    /// Removes the entries that are too old from the history.
    pub(in crate::producer) fn trim_history(&mut self, span: Span) {
        while self.forget_spare(span) {}
    }

    /// Removes one entry that `span` does not keep from the history. `false`: there is none.
    pub(in crate::producer) fn forget_spare(&mut self, span: Span) -> bool {
        let State {
            history, consumers, ..
        } = &mut *self.state;
        let Some(old) = history.take_spare(span, |sequence, age| consumers.want(sequence, age))
        else {
            return false;
        };
        self.dereference(old.slot);
        true
    }

    /// Removes the entries for which `is_removed` returns true from the history.
    pub(in crate::producer) fn forget_history(
        &mut self,
        is_removed: impl Fn(&Slots, &Kept) -> bool,
    ) {
        let State { history, slots, .. } = &mut *self.state;
        for slot in history.take_if(|kept| is_removed(slots, kept)) {
            self.dereference(slot);
        }
    }

    /// Disconnects the consumers whose pages violate the protocol.
    pub(in crate::producer) fn audit(&mut self) {
        for (consumer, violation) in self
            .consumers
            .protocol_violations(self.control(), &self.slots)
        {
            consumer.mark_cut_off();
            self.remove_consumer(consumer.id());
            self.effects.rare().cut_off.push((consumer, violation));
        }
    }

    /// Checks consumers and trims the state of the pool after the lock is released and consumers are woken, because with many
    /// consumers that takes as long as to wake one.
    pub(in crate::producer) fn tidy_later(&mut self) {
        self.effects.rare().tidy = true;
    }

    fn tidy(&mut self) {
        // Finds violations that did not cost a slot.
        self.audit();
        let ring_len = self.pool().shape().ring_len;
        let oldest = self.control().head().saturating_sub(ring_len.into());
        self.sticky.forget_before(oldest);
        self.retire(Cold::ByNow);
        self.share_out();
    }

    /// Removes a consumer from the list. Its leases no longer protect frames.
    pub(super) fn remove_consumer(&mut self, id: u64) {
        let control = self.control();
        let Some(consumer) = self.consumers.remove(id) else {
            return;
        };
        self.slots.note_departed(|slot| {
            let word = slots::word(control, slot);
            word.map_or(0, |word| consumer.reads_of(slot, word.generation()))
        });
    }

    /// Recomputes the budget of each consumer.
    pub(in crate::producer) fn share_out(&mut self) {
        let (control, settings) = (self.control(), self.settings());
        let State {
            shares,
            consumers,
            regions,
            slots,
            ..
        } = &mut *self.state;
        let cut = shares.share_out(control, settings, consumers, regions, slots);
        if cut.is_some() {
            self.effects.rare().cut = cut;
        }
    }

    /// Takes the unused slots of a region out of use, and removes the region if it has no slots left.
    pub(in crate::producer) fn retire_region(&mut self, id: u32) {
        let idle = |(_, info): &(u32, &SlotInfo)| info.can_be_claimed();
        let slots = self.slots.of_region(id).filter(idle);
        let slots: Vec<u32> = slots.map(|(slot, _)| slot).collect();
        for slot in slots {
            if let Some(word) = self.claim(slot) {
                self.free(slot, word, Point::SlotRetired);
                self.slots.unassign(slot);
            }
        }
        if self.slots.of_region(id).next().is_none() {
            let region = self.regions.retire(id);
            self.unmap_later(region);
            self.announce_gone(id);
            self.show_regions();
        }
    }

    /// Unmaps a region after the lock is released, because that takes milliseconds for a large region.
    fn unmap_later(&mut self, region: Option<Arc<Region>>) {
        if region.is_some() {
            self.effects.rare().regions.extend(region);
        }
    }

    /// Makes consumers unmap a removed region.
    pub(in crate::producer) fn announce_gone(&mut self, id: u32) {
        self.effects.rare().gone.push(id);
    }

    /// Writes the places of a new region's slots to control memory. The slots are not used yet.
    pub(in crate::producer) fn show_places(&self, region: u32) {
        for (slot, info) in self.slots.of_region(region) {
            if let Some(place) = info.place {
                self.control().set_place(slot, &place.shared());
            }
        }
    }

    /// Writes the list of regions to control memory.
    pub(in crate::producer) fn show_regions(&self) {
        self.control()
            .show_regions(self.regions.ids(), self.regions.retired.version());
        fault::point(Point::RegionsShown);
    }

    /// Frees the retired regions that no consumer has mapped any more.
    pub(in crate::producer) fn forget_retired(&mut self) {
        let State {
            regions, consumers, ..
        } = &mut *self.state;
        let released = regions
            .retired
            .forget(|id| consumers.get(id)?.regions_seen());
        self.run_later(released);
    }

    /// Retires regions. Returns how many were removed.
    pub(in crate::producer) fn retire(&mut self, when: Cold) -> usize {
        let before = self.regions.count();
        let min_slots = self.settings().min_slots.max(1);
        for id in self.regions.cold(&self.slots, when) {
            let lost = self.slots.of_region(id).count() as u32;
            let needed = matches!(when, Cold::ByNow | Cold::NotInUse)
                && self.slots.assigned() - lost < min_slots;
            let free = self
                .slots
                .of_region(id)
                .all(|(slot, _)| self.looks_free(slot));
            let asked = matches!(when, Cold::UnfitFor(_) | Cold::PartlyUnfitFor(_));
            if !needed && (free || asked) {
                self.retire_region(id);
            }
        }
        self.forget_retired();
        (before - self.regions.count()) as usize
    }
}

/// Effects that run after the lock is released.
struct Effects<'a> {
    pool: &'a Pool,
    /// These consumers are woken.
    wake: Option<Arc<[Arc<ConsumerRecord>]>>,
    /// Boxed, because most guards have none.
    rare: Option<Box<Rare>>,
}

#[derive(Default)]
struct Rare {
    /// Consumers to disconnect, with the reason.
    cut_off: Vec<(Arc<ConsumerRecord>, &'static str)>,
    cut: Option<Cut>,
    /// Regions that consumers must unmap.
    gone: Vec<u32>,
    /// Regions to unmap in this process.
    regions: Vec<Arc<Region>>,
    hooks: Vec<Hook>,
    tidy: bool,
}

impl Effects<'_> {
    fn rare(&mut self) -> &mut Rare {
        self.rare.get_or_insert_default()
    }
}

impl Drop for Effects<'_> {
    fn drop(&mut self) {
        if let Some(consumers) = &self.wake {
            for consumer in consumers.iter() {
                if consumer.wake() {
                    self.pool.commands().send(Command::Wake(consumer.id()));
                }
            }
        }
        if let Some(rare) = self.rare.take() {
            rare.run(self.pool);
        }
    }
}

impl Rare {
    #[cold]
    fn run(self, pool: &Pool) {
        for (consumer, reason) in self.cut_off {
            pool.counters().cut_off.fetch_add(1, Ordering::Relaxed);
            let command = Command::CutOff(consumer.id(), reason);
            pool.commands().send(command);
            pool.notifier().notify();
        }
        if let Some(cut) = self.cut {
            cut.warn(pool.name());
            pool.commands().send(Command::BudgetsCut(cut));
        }
        for id in self.gone {
            pool.commands().send(Command::RegionGone(id));
        }
        drop(self.regions);
        self.hooks.into_iter().for_each(run_hook);
        if self.tidy
            && let Ok(mut guard) = pool.guard()
        {
            guard.tidy();
        }
    }
}

/// The parts of the state. Each keeps its own invariants. Operations that involve several are methods of the guard.
#[derive(Debug)]
pub(in crate::producer) struct State {
    pub(in crate::producer) slots: Slots,
    pub(in crate::producer) regions: Regions,
    pub(in crate::producer) consumers: Consumers,
    pub(in crate::producer) history: History,
    pub(in crate::producer) shares: Shares,
    pub(in crate::producer) layouts: Layouts,
    pub(in crate::producer) sticky: StickyLog,
    pub(in crate::producer) origins: Origins,
    /// The number of published events.
    pub(in crate::producer) events: u64,
}

impl State {
    pub(super) fn new(settings: &Settings, sticky: StickyLog) -> Self {
        Self {
            slots: Slots::default(),
            regions: Regions::new(settings.mixed_sizes, settings.max_bytes),
            consumers: Consumers::new(),
            history: History::new(settings),
            shares: Shares::default(),
            layouts: Layouts::default(),
            sticky,
            origins: Origins::default(),
            events: 0,
        }
    }
}
