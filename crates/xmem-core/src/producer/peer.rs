// SPDX-License-Identifier: MPL-2.0

//! A consumer as its producer sees it: its lease page, and what may be believed of it.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::layout::{CURSOR_LEFT, Control, LeasePage};
use crate::protocol::slot::{SlotState, SlotWord};
use crate::stats::ConsumerStats;

/// Pools of origin that are remembered of a consumer.
const MAX_REACHED: usize = 16;

/// Why a consumer is not connected any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Departure {
    /// It said goodbye.
    Left,
    /// Its process ended, or closed the connection without a word.
    Died,
    /// Its lease page or its messages made no sense.
    CutOff,
    /// It held a lossless pool up for longer than `lossless-timeout`.
    TimedOut,
    /// The pool was closed.
    Closed,
}

#[derive(Debug)]
pub(super) struct Peer {
    pub(super) id: u64,
    pub(super) pid: u32,
    pub(super) uid: u32,
    pub(super) name: String,
    /// Slots it may hold at once.
    pub(super) budget: u32,
    pub(super) page: LeasePage,
    /// It takes no more frames; its leases hold.
    left: AtomicBool,
    /// The pools of origin where it can hold frames itself.
    reaches: Mutex<VecDeque<u64>>,
    /// How it came by device memory.
    device: Mutex<String>,
    /// The largest cursor that was seen. One that goes back would hold a lossless pool up for ever.
    furthest: AtomicU64,
}

impl Peer {
    pub(super) fn new(
        id: u64,
        pid: u32,
        uid: u32,
        name: String,
        budget: u32,
        page: LeasePage,
    ) -> Self {
        Self {
            id,
            pid,
            uid,
            name,
            budget,
            page,
            left: AtomicBool::new(false),
            reaches: Mutex::default(),
            device: Mutex::default(),
            furthest: AtomicU64::new(0),
        }
    }

    /// It says that it can hold frames in another pool.
    pub(super) fn reach(&self, pool_id: u64) {
        let mut reaches = self.reaches.lock().unwrap_or_else(PoisonError::into_inner);
        if reaches.len() == MAX_REACHED {
            reaches.pop_front();
        }
        reaches.push_back(pool_id);
    }

    /// It says how it came by device memory, or why it did not.
    pub(super) fn say_device(&self, works: bool, how: &str) {
        let said = if works {
            how.to_owned()
        } else {
            format!("none: {how}")
        };
        *self.device.lock().unwrap_or_else(PoisonError::into_inner) = said;
    }

    pub(super) fn reaches(&self, pool_id: u64) -> bool {
        let reaches = self.reaches.lock().unwrap_or_else(PoisonError::into_inner);
        reaches.contains(&pool_id)
    }

    /// The slots that are reserved for it: its budget, and one for a frame that is being copied out past the budget.
    pub(super) fn reserved(budget: u32) -> u32 {
        budget + 1
    }

    pub(super) fn has_left(&self) -> bool {
        self.left.load(Ordering::Acquire)
    }

    /// It takes no more frames, so nothing has to wait for it.
    pub(super) fn leave(&self) {
        self.left.store(true, Ordering::Release);
    }

    /// The sequence of the next frame that it takes, and never less than before; `None` when it takes none.
    pub(super) fn cursor(&self) -> Option<u64> {
        if self.has_left() {
            return None;
        }
        let cursor = self.page.cursor().load(Ordering::Relaxed);
        let cursor = self
            .furthest
            .fetch_max(cursor, Ordering::Relaxed)
            .max(cursor);
        if cursor == CURSOR_LEFT {
            return None;
        }
        // Pairs with the release store of the cursor: a lease it took before is visible to loads after this.
        std::sync::atomic::fence(Ordering::Acquire);
        Some(cursor)
    }

    /// Whether it holds this generation of a slot.
    pub(super) fn holds(&self, slot: u32, generation: u32) -> bool {
        self.page
            .leases()
            .get(slot as usize)
            .is_some_and(|lease| lease.load(Ordering::Relaxed) == generation)
    }

    /// Whether it took this generation of a slot at some time.
    pub(super) fn took(&self, slot: u32, generation: u32) -> bool {
        let took = self
            .page
            .taken()
            .get(slot as usize)
            .is_some_and(|taken| taken.load(Ordering::Relaxed) == generation);
        // A consumer stores `taken` while it holds the lease: whoever sees the first sees the second.
        std::sync::atomic::fence(Ordering::Acquire);
        took
    }

    /// What is wrong with its page, if anything is. Only with the pool's state locked: generations stand still then.
    pub(super) fn nonsense(&self, control: &Control, head: u64) -> Option<&'static str> {
        if self.cursor().is_some_and(|cursor| cursor > head) {
            return Some("its cursor is ahead of the stream");
        }
        let mut held = Vec::new();
        for (slot, lease) in (0..).zip(self.page.leases()) {
            let lease = lease.load(Ordering::Relaxed);
            if lease == 0 {
                continue;
            }
            let word = SlotWord(control.slot(slot)?.load(Ordering::Relaxed));
            // Older generations are attempts that came too late; the consumer takes them back itself.
            match lease.wrapping_sub(word.generation()) as i32 {
                1.. => return Some("it leases frames that do not exist yet"),
                0 => held.push((slot, lease)),
                _ => {}
            }
        }
        // The words were not read at one instant, and an honest consumer changes them meanwhile. What is still held in a
        // second look was held all the time in between.
        let limit = Self::reserved(self.budget) as usize;
        let too_many = held.len() > limit
            && held
                .iter()
                .filter(|(slot, lease)| self.holds(*slot, *lease))
                .count()
                > limit;
        too_many.then_some("it holds more frames than its budget")
    }

    /// Figures, with the frames it holds and the time the oldest of them was published.
    pub(super) fn stats(
        &self,
        control: &Control,
        published_at: impl Fn(u32) -> u64,
        now: u64,
    ) -> ConsumerStats {
        let mut held = 0;
        let mut oldest = now;
        for (slot, lease) in (0..).zip(self.page.leases()) {
            let lease = lease.load(Ordering::Relaxed);
            let Some(word) = control.slot(slot) else {
                break;
            };
            let word = SlotWord(word.load(Ordering::Relaxed));
            if lease != 0
                && lease == word.generation()
                && word.state() == Some(SlotState::Published)
            {
                held += 1;
                oldest = oldest.min(published_at(slot));
            }
        }
        let page = &self.page;
        ConsumerStats {
            id: self.id,
            pid: self.pid,
            uid: self.uid,
            name: self.name.clone(),
            budget: self.budget,
            held,
            received: page.received().load(Ordering::Relaxed),
            missed: page.missed().load(Ordering::Relaxed),
            copied: page.copied().load(Ordering::Relaxed),
            oldest_held_age_ns: now - oldest,
            latency_ns: page.latency().load(Ordering::Relaxed),
            leaving: self.has_left(),
            device: self
                .device
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .clone(),
        }
    }
}
