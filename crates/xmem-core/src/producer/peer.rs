// SPDX-License-Identifier: MPL-2.0

//! A consumer as its producer sees it: its lease page, and what may be believed of it.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};
use std::sync::{Mutex, MutexGuard};

use xmem_shm::abi::layout::{CURSOR_LEFT, Control, LeasePage};
use xmem_shm::abi::start_from::StartFrom;
use xmem_shm::lock::lock;
use xmem_shm::os::cred;
use xmem_shm::protocol::lease;
use xmem_shm::protocol::slot::{SlotState, SlotWord};

use super::share::Claim;
use crate::stats::{ConsumerStats, device_words};

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
    /// It takes no frames, it only holds some that a pool of this name passes on. Empty: it takes frames.
    pub(super) via: String,
    /// Where it begins.
    pub(super) start_from: StartFrom,
    /// The budget that it asked for, as far as `max_held` allows it.
    pub(super) budget: u32,
    pub(super) page: LeasePage,
    /// It takes no more frames; its leases hold.
    left: AtomicBool,
    /// Slots that are reserved for it: the most that it may hold.
    reserved: AtomicU32,
    /// It has a lease page, and no place in the stream yet: it has not said of every pool of origin whether it reaches it.
    arriving: AtomicBool,
    origins: Mutex<Origins>,
    /// How it came by device memory.
    device: Mutex<String>,
    /// It cannot open events, and looks at what frames are marked with.
    pub(super) wants_marks: AtomicBool,
    /// It was named as one that the producer waits for.
    pub(super) was_named: AtomicBool,
    /// The largest cursor that was seen. One that goes back would hold a lossless pool up for ever.
    furthest: AtomicU64,
}

/// What a consumer said of the pools that frames are forwarded from.
#[derive(Debug, Default)]
struct Origins {
    /// Whether it can hold frames there, the newest last.
    answers: VecDeque<(u64, bool)>,
    /// Those that it has to answer for before it gets its place in the stream.
    awaited: Vec<u64>,
}

/// Who joins, as it says and as the kernel says.
#[derive(Debug)]
pub(super) struct Joining<'a> {
    pub(super) id: u64,
    pub(super) process: cred::Peer,
    pub(super) max_held: u32,
    pub(super) start_from: StartFrom,
    pub(super) name: &'a str,
    pub(super) via: &'a str,
}

impl Peer {
    pub(super) fn new(joining: &Joining<'_>, budget: u32, page: LeasePage) -> Self {
        Self {
            id: joining.id,
            pid: joining.process.pid,
            uid: joining.process.uid,
            name: joining.name.to_owned(),
            via: joining.via.to_owned(),
            start_from: joining.start_from,
            budget,
            page,
            left: AtomicBool::new(!joining.via.is_empty()),
            reserved: AtomicU32::new(0),
            arriving: AtomicBool::new(false),
            origins: Mutex::default(),
            device: Mutex::default(),
            wants_marks: AtomicBool::new(false),
            was_named: AtomicBool::new(false),
            furthest: AtomicU64::new(0),
        }
    }

    fn origins(&self) -> MutexGuard<'_, Origins> {
        lock(&self.origins)
    }

    /// It gets its place in the stream when it has answered for these pools.
    pub(super) fn awaits(&self, pool_ids: Vec<u64>) {
        self.arriving.store(!pool_ids.is_empty(), Ordering::Release);
        self.origins().awaited = pool_ids;
    }

    pub(super) fn is_arriving(&self) -> bool {
        self.arriving.load(Ordering::Acquire)
    }

    pub(super) fn arrive(&self) {
        self.arriving.store(false, Ordering::Release);
    }

    /// It says whether it can hold frames in another pool. Returns whether no further answer is awaited.
    pub(super) fn answer(&self, pool_id: u64, yes: bool) -> bool {
        let mut origins = self.origins();
        origins.answers.retain(|(known, _)| *known != pool_id);
        if origins.answers.len() == MAX_REACHED {
            origins.answers.pop_front();
        }
        origins.answers.push_back((pool_id, yes));
        origins.awaited.retain(|awaited| *awaited != pool_id);
        origins.awaited.is_empty()
    }

    /// Whether it can hold frames in another pool. `None`: it has not said so yet.
    pub(super) fn reaches(&self, pool_id: u64) -> Option<bool> {
        let origins = self.origins();
        let answer = origins.answers.iter().find(|(known, _)| *known == pool_id);
        answer.map(|(_, yes)| *yes)
    }

    /// It says how it came by device memory, or why it did not.
    pub(super) fn say_device(&self, works: bool, how: &str) {
        *lock(&self.device) = device_words(works, how);
    }

    /// What it takes of the slots. What it keeps from before only becomes less, so a consumer that lies about it pins no more
    /// than it was granted.
    pub(super) fn claim(&self) -> Claim {
        // A consumer that only holds frames has no cursor, and goes with its connection.
        let takes_frames = self.via.is_empty();
        // Before the look at the leases: the last frame is taken before the goodbye. Its message may still be on the way.
        let said_goodbye =
            takes_frames && self.page.cursor().load(Ordering::Acquire) == CURSOR_LEFT;
        let leaves = said_goodbye || takes_frames && self.has_left();
        // One that is given up on may be taking a frame now.
        let look = u32::from(!said_goodbye);
        let leases = self.page.leases().iter();
        let held = leases.filter(|lease| lease.load(Ordering::Acquire) != 0);
        let held = u32::try_from(held.count()).unwrap_or(u32::MAX);
        let reserved = self.reserved.load(Ordering::Relaxed);
        Claim {
            asked: if leaves { 0 } else { self.budget },
            look,
            kept: reserved.min(held.saturating_add(look)),
        }
    }

    /// Reserves what it may hold where each consumer gets this share.
    pub(super) fn reserve(&self, share: u32) {
        let slots = self.claim().slots(share);
        self.reserved.store(slots, Ordering::Relaxed);
    }

    pub(super) fn has_left(&self) -> bool {
        self.left.load(Ordering::Acquire)
    }

    /// It takes no more frames, so nothing has to wait for it.
    pub(super) fn leave(&self) {
        self.left.store(true, Ordering::Release);
    }

    /// Whether it has a place in the stream.
    pub(super) fn takes_frames(&self) -> bool {
        !self.has_left() && !self.is_arriving()
    }

    /// The sequence of the next frame that it takes, and never less than before; `None` when it takes none.
    pub(super) fn cursor(&self) -> Option<u64> {
        if !self.takes_frames() {
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
        fence(Ordering::Acquire);
        Some(cursor)
    }

    /// Whether it holds this generation of a slot. If it does not any more, its reads are over.
    pub(super) fn holds(&self, slot: u32, generation: u32) -> bool {
        self.page.leases().get(slot as usize).is_some_and(|lease| {
            // Pairs with the release store in `release`, also where no claim follows: in a pool that is closed.
            lease.load(Ordering::Acquire) == generation
        })
    }

    /// Whether it took this generation of a slot at some time.
    pub(super) fn took(&self, slot: u32, generation: u32) -> bool {
        let took = self
            .page
            .taken()
            .get(slot as usize)
            .is_some_and(|taken| taken.load(Ordering::Relaxed) == generation);
        // A consumer stores `taken` while it holds the lease: whoever sees the first sees the second.
        fence(Ordering::Acquire);
        took
    }

    /// The slots that it holds.
    pub(super) fn held(&self, control: &Control) -> impl Iterator<Item = u32> {
        let is_held = |slot: u32, lease: u32| {
            let word = control.slot(slot).map(|word| word.load(Ordering::Relaxed));
            lease != 0 && word.is_some_and(|word| SlotWord(word).generation() == lease)
        };
        let leases = (0..).zip(self.page.leases());
        leases
            .filter(move |(slot, lease)| is_held(*slot, lease.load(Ordering::Relaxed)))
            .map(|(slot, _)| slot)
    }

    /// What is wrong with its page, if anything is. Only with the pool's state locked: generations stand still then.
    pub(super) fn nonsense(&self, control: &Control, head: u64) -> Option<&'static str> {
        if self.cursor().is_some_and(|cursor| cursor > head) {
            return Some("its cursor is ahead of the stream");
        }
        let mut held = Vec::new();
        for (slot, word) in (0..).zip(self.page.leases()) {
            let lease = word.load(Ordering::Relaxed);
            if lease == 0 {
                continue;
            }
            let slot_word = SlotWord(control.slot(slot)?.load(Ordering::Relaxed));
            // Older generations are attempts that came too late; the consumer takes them back itself.
            match lease.wrapping_sub(slot_word.generation()) as i32 {
                1.. => return Some("it leases frames that do not exist yet"),
                0 => held.push((word, lease)),
                _ => {}
            }
        }
        // The words were not read at one instant, and an honest consumer changes them meanwhile. What is still held in a
        // second look was held all the time in between.
        let limit = self.reserved.load(Ordering::Relaxed) as usize;
        let too_many = held.len() > limit && lease::still_held(&held) > limit;
        too_many.then_some("it holds more frames than it may")
    }

    /// Figures, with the frames it holds and the time the oldest of them was published.
    pub(super) fn stats(
        &self,
        control: &Control,
        published_at: impl Fn(u32) -> i64,
        now: i64,
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
            budget: self.budget.min(control.share().most),
            held,
            received: page.received().load(Ordering::Relaxed),
            missed: page.missed().load(Ordering::Relaxed),
            copied: page.copied().load(Ordering::Relaxed),
            dropped: page.dropped().load(Ordering::Relaxed),
            oldest_held_age_ns: (now - oldest).cast_unsigned(),
            latency_ns: page.latency().load(Ordering::Relaxed),
            waited_for_ns: 0,
            leaving: self.has_left() && self.via.is_empty(),
            via: self.via.clone(),
            device: lock(&self.device).clone(),
        }
    }
}
