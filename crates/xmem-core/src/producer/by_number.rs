// SPDX-License-Identifier: MPL-2.0

//! Operations of pools of buffers by number: slots that are set aside, counted reads, and timeouts of readers.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use xmem_shm::protocol::slot::{SlotState, SlotWord};

use super::pool::Pool;
use super::pool::commands::Command;
use super::pool::reader::Reader;
use super::pool::retain::Readers;
use super::pool::set_aside::Kind;
use super::pool::slots::{Claimed, SlotInfo};
use super::pool::stats;
use super::pool::timeouts::Unread;
use super::pool::wait;
use super::{Producer, SlotSpec, WriteLease};
use crate::cancel::Wait;
use crate::error::{AcquireError, WaitError};

impl Producer {
    /// Like [`acquire`](Self::acquire), but first takes slots that are set aside for this size, and never slots that are set
    /// aside for another.
    pub(crate) fn acquire_buffer(&self, spec: &SlotSpec) -> Result<WriteLease, AcquireError> {
        let kind = Kind::of(spec.want()?);
        if let Some(claimed) = kind.and_then(|kind| self.claim_set_aside(kind)) {
            return Ok(WriteLease::new(self.inner().clone(), claimed, spec.size()));
        }
        self.acquire_unless(spec, &mut Vec::new(), |other| Some(other) != kind)
    }

    /// Acquires a slot that is not set aside for frames of this kind. `others` keeps the leases of slots that are.
    fn acquire_unless(
        &self,
        spec: &SlotSpec,
        others: &mut Vec<WriteLease>,
        is_other: impl Fn(Kind) -> bool,
    ) -> Result<WriteLease, AcquireError> {
        loop {
            let lease = self.acquire(spec.clone())?;
            let guard = self.inner().guard()?;
            let kind = guard.regions.set_aside.kind(lease.slot());
            drop(guard);
            if !kind.is_some_and(&is_other) {
                return Ok(lease);
            }
            others.push(lease);
        }
    }

    fn claim_set_aside(&self, kind: Kind) -> Option<Claimed> {
        let mut guard = self.inner().lock()?;
        let slots = guard.regions.set_aside.of_kind(kind);
        if slots.is_empty() || self.inner().is_closed() {
            return None;
        }
        guard.finalize_watched();
        let (slot, word, place) = slots.into_iter().find_map(|slot| {
            let info = guard.slots.get(slot)?;
            let place = info.can_be_claimed().then_some(info.place)??;
            Some((slot, guard.claim(slot)?, place))
        })?;
        guard.slots.start_writing(slot, place.filled());
        guard.regions.touch(place.region);
        let region = guard.regions.get(place.region)?.clone();
        Some(Claimed {
            slot,
            word,
            place,
            region,
        })
    }

    /// The maximum number of slots that can be set aside for such frames.
    pub(crate) fn room_to_set_aside(&self, spec: &SlotSpec) -> Result<usize, AcquireError> {
        let kind = Kind::of(spec.want()?);
        let guard = self.inner().guard()?;
        let is_taken = |(slot, info): &(u32, &SlotInfo)| match guard.regions.set_aside.kind(*slot) {
            Some(other) => Some(other) != kind,
            None => stats::is_in_use(&guard, *slot, info),
        };
        let taken = guard.slots.iter().filter(is_taken).count();
        Ok((self.inner().settings().max_slots as usize).saturating_sub(taken))
    }

    /// Sets slots aside for such frames until there are `count`. Returns their numbers. On an error nothing changes.
    pub(crate) fn set_aside(
        &self,
        spec: &SlotSpec,
        count: usize,
    ) -> Result<Vec<u32>, AcquireError> {
        let kind = Kind::of(spec.want()?);
        let mut slots = match (kind, self.inner().lock()) {
            (Some(kind), Some(guard)) => guard.regions.set_aside.of_kind(kind),
            _ => Vec::new(),
        };
        // The leases are held until all are acquired, so that the slots are distinct.
        let (mut added, mut others, mut larger) = (Vec::new(), Vec::new(), Vec::new());
        while slots.len() + added.len() < count {
            match self.acquire_unless(spec, &mut others, |_| true) {
                Ok(lease) if kind.is_some_and(|kind| kind.has_size(lease.payload_len())) => {
                    added.push(lease);
                }
                Ok(lease) => larger.push(lease),
                // If the pool may not grow, a slot that was made for larger frames is used.
                Err(error) => added.push(larger.pop().ok_or(error)?),
            }
        }
        let mut guard = self.inner().guard()?;
        for lease in &added {
            slots.push(lease.slot());
            if let Some(kind) = kind {
                guard.regions.set_aside.add(lease.slot(), kind);
            }
        }
        slots.truncate(count);
        Ok(slots)
    }

    /// Ends that slots are set aside. Returns how many were.
    pub(crate) fn give_up(&self, slots: &[u32]) -> usize {
        let Some(mut guard) = self.inner().lock() else {
            return 0;
        };
        let set_aside = &mut guard.regions.set_aside;
        slots
            .iter()
            .filter(|slot| set_aside.give_up(**slot))
            .count()
    }

    /// The connected consumers.
    pub(crate) fn readers(&self) -> Vec<Reader> {
        let Some(guard) = self.inner().lock() else {
            return Vec::new();
        };
        let readers = guard.consumers.iter().filter(|it| it.reads());
        readers.map(|it| Reader::of(it)).collect()
    }

    /// Whether a slot has the frame of this generation.
    pub(crate) fn has_published(&self, slot: u32, generation: u32) -> bool {
        self.inner().has_published(slot, generation)
    }

    /// Counts a read by this process. The caller holds the frame.
    pub(crate) fn count_read(&self, slot: u32, generation: u32) {
        if let Some(mut guard) = self.inner().lock()
            && self.has_published(slot, generation)
        {
            let read = |other| u32::from(other == slot);
            guard.slots.note_departed(read);
        }
    }

    /// Empties a published slot after this time, unless its readers have taken the frame. `index`: the number for the report.
    pub(crate) fn give_up_after(&self, slot: u32, generation: u32, index: u32, timeout: Duration) {
        let Some(mut guard) = self.inner().lock() else {
            return;
        };
        // A time that the clock cannot represent counts as no timeout.
        if let Some(until) = Instant::now().checked_add(timeout) {
            guard.timeouts.add(slot, generation, index, until);
        }
        drop(guard);
        self.inner().commands().send(Command::LookAtTimeouts);
    }

    /// Waits until each count is used up and no frame with a count is being read.
    pub(crate) fn wait_until_read(&self, wait: Wait<'_>) -> Result<(), WaitError> {
        wait::wait(self.inner(), wait, || {
            let mut guard = self.inner().lock()?;
            guard.finalize_watched();
            let all = guard.slots.iter().all(|(_, info)| info.readers().is_none());
            all.then_some(())
        })
    }
}

impl Pool {
    pub(super) fn has_published(&self, slot: u32, generation: u32) -> bool {
        let word = self.control().slot(slot);
        let word = word.map(|word| SlotWord(word.load(Ordering::Relaxed)));
        word.is_some_and(|word| {
            word.generation() == generation && word.state() == Some(SlotState::Published)
        })
    }

    /// The time at which the next frame times out.
    pub(super) fn next_timeout(&self) -> Option<Instant> {
        self.lock_on_own_thread().timeouts.next()
    }

    /// Empties the frames whose readers did not take them in time.
    pub(super) fn give_up_unread(&self) -> Vec<Unread> {
        let mut guard = self.lock_on_own_thread();
        let mut unread = Vec::new();
        for (slot, generation, index) in guard.timeouts.take_over(Instant::now()) {
            let readers = guard.slots.get(slot).and_then(SlotInfo::readers);
            let Some(readers) = readers.filter(|_| self.has_published(slot, generation)) else {
                continue;
            };
            let missing = readers.left(&guard.consumers, slot, generation);
            if missing == 0 {
                continue;
            }
            let (count, ids) = match readers {
                Readers::Count { until, .. } => (*until, guard.consumers.readers()),
                Readers::Named(ids) => (ids.len() as u32, ids.clone()),
            };
            let late = guard.consumers.awaited(&ids, slot, generation);
            unread.push(Unread {
                index,
                count,
                missing,
                readers: late.map(ToString::to_string).collect(),
            });
            // A reader that already took the frame still holds it.
            guard.slots.keep_for_more(slot, 0, 0);
        }
        guard.finalize_watched();
        drop(guard);
        if !unread.is_empty() {
            self.notifier().notify();
        }
        unread
    }
}
