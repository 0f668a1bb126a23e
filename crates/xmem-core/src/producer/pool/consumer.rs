// SPDX-License-Identifier: MPL-2.0

//! The consumers of a pool: the producer's record of each, with its lease page and the checks of the values there, and their list.

use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use xmem_shm::abi::layout::{
    CURSOR_LEFT, Control, FLAG_CUT_OFF, FLAG_TIMED_OUT, LeasePage, REGIONS_LET_GO, Reads,
};
use xmem_shm::abi::parts::Origin;
use xmem_shm::abi::wire::StartFrom;
use xmem_shm::fault::{self, Point};
use xmem_shm::lock::lock;
use xmem_shm::os::cred;
use xmem_shm::protocol::lease;
use xmem_shm::sync::{AtomicU32, AtomicU64, Ordering, fence};

use super::reach::Reach;
use super::slots::{self, SlotInfo, Slots};
use crate::stats::{ConsumerStats, device_words};

/// One consumer. Its process writes the lease page, so values there are trusted only within the granted limits.
#[derive(Debug)]
pub(in crate::producer) struct ConsumerRecord {
    id: u64,
    process: cred::Peer,
    name: String,
    /// If not empty, the consumer takes no frames. It only holds frames that the pool with this name forwards.
    via: String,
    start_from: StartFrom,
    /// The requested budget, limited by `max_held`.
    budget: u32,
    page: LeasePage,
    /// The producer's end of its wake socket.
    wake_socket: OwnedFd,
    /// It runs as this process's user or as root.
    is_near: bool,
    /// The control thread was asked to wake it.
    wake_requested: AtomicBool,
    /// It takes no more frames. Its leases are still valid.
    left: AtomicBool,
    /// The slots reserved for it: the most that it may hold.
    reserved: AtomicU32,
    reach: Reach,
    /// How it opened device memory, as text.
    device: Mutex<String>,
    /// It cannot open CUDA events, and reads the marks of frames instead.
    wants_marks: AtomicBool,
    /// It was already reported because it holds the producer up.
    was_named: AtomicBool,
    /// The largest cursor read. A cursor that moves back would hold a lossless pool up forever.
    furthest: AtomicU64,
    awaited: Mutex<Option<Awaited>>,
}

/// For how long the producer has waited for a consumer without progress of either.
#[derive(Debug, Clone, Copy)]
struct Awaited {
    /// The number of waits that had ended, and the consumer's cursor.
    at: (u64, u64),
    waited: Duration,
    /// When the producer last looked.
    looked: Instant,
}

/// The slots that one consumer occupies.
#[derive(Debug, Clone, Copy)]
pub(super) struct Claim {
    /// The requested budget. 0 if it takes no more frames.
    pub(super) requested: u32,
    /// 1 while it may take one frame past its budget.
    pub(super) extra: u32,
    /// The slots that it may hold from before, including the frame past its budget.
    pub(super) kept: u32,
}

impl Claim {
    pub(super) fn budget(self, share: u32) -> u32 {
        self.requested.min(share)
    }

    pub(super) fn kept_budget(self) -> u32 {
        self.kept.saturating_sub(self.extra)
    }

    /// The slots that are reserved for it, if each consumer gets this share.
    pub(super) fn slots(self, share: u32) -> u32 {
        self.budget(share).saturating_add(self.extra).max(self.kept)
    }
}

/// A request to join: the consumer's message, and the kernel's credentials of its process.
#[derive(Debug)]
pub(in crate::producer) struct Joining<'a> {
    pub(in crate::producer) id: u64,
    pub(in crate::producer) process: cred::Peer,
    pub(in crate::producer) max_held: u32,
    pub(in crate::producer) start_from: StartFrom,
    pub(in crate::producer) name: &'a str,
    pub(in crate::producer) via: &'a str,
}

/// The form for log lines.
impl fmt::Display for ConsumerRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { id, name, .. } = self;
        write!(f, "consumer {id} ({name:?}, process {})", self.process.pid)
    }
}

impl ConsumerRecord {
    pub(in crate::producer) fn new(
        joining: &Joining<'_>,
        budget: u32,
        page: LeasePage,
        wake_socket: OwnedFd,
    ) -> Self {
        Self {
            id: joining.id,
            process: joining.process,
            name: joining.name.to_owned(),
            via: joining.via.to_owned(),
            start_from: joining.start_from,
            budget,
            page,
            wake_socket,
            is_near: cred::is_own_or_root(joining.process.uid),
            wake_requested: AtomicBool::new(false),
            left: AtomicBool::new(!joining.via.is_empty()),
            reserved: AtomicU32::new(0),
            reach: Reach::default(),
            device: Mutex::default(),
            wants_marks: AtomicBool::new(false),
            was_named: AtomicBool::new(false),
            furthest: AtomicU64::new(0),
            awaited: Mutex::default(),
        }
    }

    pub(in crate::producer) fn id(&self) -> u64 {
        self.id
    }

    pub(in crate::producer) fn pid(&self) -> u32 {
        self.process.pid
    }

    pub(in crate::producer) fn name(&self) -> &str {
        &self.name
    }

    pub(in crate::producer) fn start_from(&self) -> StartFrom {
        self.start_from
    }

    pub(in crate::producer) fn budget(&self) -> u32 {
        self.budget
    }

    /// Whether it follows the stream. Otherwise it only holds frames that another pool forwards.
    pub(in crate::producer) fn follows_stream(&self) -> bool {
        self.via.is_empty()
    }

    /// Wakes the consumer if it sleeps. Returns whether the control thread must do that, by [`wake_by_socket`](Self::wake_by_socket).
    pub(super) fn wake(&self) -> bool {
        self.page.wake() && self.wake_or_defer()
    }

    /// Wakes a consumer of the same user or root by its socket. A message to a socket takes as long as there are descriptors that watch
    /// it, and a process of another user could have any number of them.
    #[cold]
    fn wake_or_defer(&self) -> bool {
        if self.is_near {
            self.page.wake_by_socket(&self.wake_socket);
            return false;
        }
        !self.wake_requested.swap(true, Ordering::Relaxed)
    }

    /// Only for the control thread.
    pub(in crate::producer) fn wake_by_socket(&self) {
        // Before the message, so that a later request sends another one.
        self.wake_requested.store(false, Ordering::Relaxed);
        self.page.wake_by_socket(&self.wake_socket);
    }

    /// Marks the page as cut off, so that the consumer sees that its frames are no longer protected. The caller closes the connection,
    /// which wakes it in any case.
    pub(in crate::producer) fn mark_cut_off(&self) {
        self.page.flags().fetch_or(FLAG_CUT_OFF, Ordering::Release);
        self.wake();
    }

    /// Marks that the producer waited too long. The consumer takes no more frames. It does not sleep, because there are frames for it.
    pub(super) fn mark_timed_out(&self) {
        self.leave();
        self.page
            .flags()
            .fetch_or(FLAG_TIMED_OUT, Ordering::Release);
        fault::point(Point::TimedOutMarked);
        self.wake();
    }

    /// Sets its cursor. Only before it takes frames.
    pub(in crate::producer) fn set_cursor(&self, sequence: u64) {
        self.page.cursor().store(sequence, Ordering::Relaxed);
        fault::point(Point::CursorGiven);
    }

    /// The version of the list up to which it has unmapped removed regions. `None`: it has unmapped all.
    pub(super) fn regions_seen(&self) -> Option<u32> {
        // Pairs with the release store in `MappedRegions::store_report`: memory that is freed after this load is no longer
        // mapped.
        let seen = self.page.regions_seen().load(Ordering::Acquire);
        (seen != REGIONS_LET_GO).then_some(seen as u32)
    }

    /// Sets how long frames are kept for it. Only before it joins.
    pub(in crate::producer) fn set_keep_for(&self, ns: u64) {
        self.page.keep_for().store(ns, Ordering::Relaxed);
    }

    /// Records the version of the list of regions with which it joins.
    pub(in crate::producer) fn set_regions_seen(&self, version: u32) {
        let seen = self.page.regions_seen();
        seen.store(version.into(), Ordering::Relaxed);
    }

    pub(in crate::producer) fn wants_marks(&self) -> bool {
        self.wants_marks.load(Ordering::Acquire)
    }

    pub(in crate::producer) fn set_wants_marks(&self) {
        self.wants_marks.store(true, Ordering::Release);
    }

    /// Records that the producer waits for it. `ended`: the number of waits that have ended. Returns for how long it has waited since
    /// either had progress. Short waits one after the other count as one, and the time between two looks at most as `turn`, because
    /// the producer may have done something else meanwhile.
    pub(super) fn note_awaited(&self, ended: u64, turn: Duration) -> Duration {
        let (at, now) = ((ended, self.cursor().unwrap_or(0)), Instant::now());
        let mut awaited = lock(&self.awaited);
        let waited = awaited.filter(|before| before.at == at).map(|before| {
            let since = now.duration_since(before.looked);
            before.waited + since.min(turn)
        });
        let waited = waited.unwrap_or_default();
        *awaited = Some(Awaited {
            at,
            waited,
            looked: now,
        });
        waited
    }

    /// For how long the producer has waited for it at its present position.
    pub(super) fn awaited(&self, ended: u64) -> Duration {
        let at = (ended, self.cursor().unwrap_or(0));
        let awaited = lock(&self.awaited).filter(|awaited| awaited.at == at);
        awaited.map_or(Duration::ZERO, |awaited| awaited.waited)
    }

    /// Records that it was reported because it holds the producer up. `false`: it already was.
    pub(super) fn note_named(&self) -> bool {
        !self.was_named.swap(true, Ordering::Relaxed)
    }

    /// Which pools of origin it can hold frames of.
    pub(in crate::producer) fn reach(&self) -> &Reach {
        &self.reach
    }

    /// Records how it opened device memory, or why that failed.
    pub(in crate::producer) fn set_device(&self, works: bool, how: &str) {
        *lock(&self.device) = device_words(works, how);
    }

    /// The slots that it occupies. `kept` can only shrink, so a page with false values reserves no more slots than were
    /// granted.
    pub(super) fn claim(&self, slots: &Slots) -> Claim {
        // A consumer that only holds frames has no cursor. It leaves with its connection.
        let takes_frames = self.follows_stream();
        // Read before the leases: a consumer takes its last frame before it stores CURSOR_LEFT. Its message may arrive later.
        let sent_goodbye =
            takes_frames && self.page.cursor().load(Ordering::Acquire) == CURSOR_LEFT;
        let leaves = sent_goodbye || takes_frames && self.has_left();
        // A consumer that was timed out may be taking a frame now.
        let extra = u32::from(!sent_goodbye);
        let leases = self.leases(slots);
        let held = leases.filter(|(_, _, lease)| lease.load(Ordering::Acquire) != 0);
        let held = u32::try_from(held.count()).unwrap_or(u32::MAX);
        let reserved = self.reserved.load(Ordering::Relaxed);
        Claim {
            requested: if leaves { 0 } else { self.budget },
            extra,
            kept: reserved.min(held.saturating_add(extra)),
        }
    }

    /// Reserves the slots that it may hold with this share.
    pub(super) fn reserve(&self, share: u32, slots: &Slots) {
        let slots = self.claim(slots).slots(share);
        self.reserved.store(slots, Ordering::Relaxed);
    }

    pub(super) fn has_left(&self) -> bool {
        self.left.load(Ordering::Acquire)
    }

    /// Records that it takes no more frames, so that the producer does not wait for it.
    pub(in crate::producer) fn leave(&self) {
        self.left.store(true, Ordering::Release);
    }

    /// Whether it may take more frames.
    pub(in crate::producer) fn reads(&self) -> bool {
        self.follows_stream() && !self.has_left()
    }

    /// Whether it has a cursor.
    pub(in crate::producer) fn takes_frames(&self) -> bool {
        !self.has_left() && !self.reach.is_awaited()
    }

    /// Whether it may still take the entry with this sequence, which was published this many nanoseconds ago. These loads order
    /// nothing: only a lease protects a frame.
    pub(super) fn wants(&self, sequence: u64, age: u64) -> bool {
        self.takes_frames()
            && self.page.cursor().load(Ordering::Relaxed) <= sequence
            && self.page.keep_for().load(Ordering::Relaxed) > age
    }

    /// The sequence of the next frame that it takes. It never decreases. `None`: it takes none.
    pub(in crate::producer) fn cursor(&self) -> Option<u64> {
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
        // Pairs with the release store of the cursor: leases stored before it are visible to loads after this.
        fence(Ordering::Acquire);
        Some(cursor)
    }

    /// How many entries it is behind. The end of the stream counts as one. `None`: it takes none.
    fn behind(&self, head: u64, end: Option<u64>) -> Option<u64> {
        let behind = head.saturating_sub(self.cursor()?);
        let lacks_end = end.is_some_and(|end| self.page.end_seen().load(Ordering::Acquire) <= end);
        Some(behind.saturating_add(lacks_end.into()))
    }

    /// Whether it holds this generation of a slot. Otherwise its reads have ended.
    pub(in crate::producer) fn holds(&self, slot: u32, generation: u32) -> bool {
        self.page.leases().get(slot as usize).is_some_and(|lease| {
            // Pairs with the release store in `release`, also if no claim follows, as in a closed pool.
            lease.load(Ordering::Acquire) == generation
        })
    }

    /// How often it read this generation of a slot. A frame without a number is read once: when it is taken.
    pub(in crate::producer) fn reads_of(&self, slot: u32, generation: u32) -> u32 {
        let page = &self.page;
        let reads = match page.reads().get(slot as usize) {
            Some(reads) => Reads(reads.load(Ordering::Relaxed)).of(generation),
            None => page.taken().get(slot as usize).map_or(0, |taken| {
                u32::from(taken.load(Ordering::Relaxed) == generation)
            }),
        };
        // A consumer stores these words while it holds the lease. So a load after this one sees the lease.
        fence(Ordering::Acquire);
        reads
    }

    /// Its lease words. It cannot hold frames in slots that never had a place.
    fn leases<'a>(
        &'a self,
        slots: &'a Slots,
    ) -> impl Iterator<Item = (u32, &'a SlotInfo, &'a AtomicU32)> {
        let leases = slots.iter().zip(self.page.leases());
        leases.map(|((slot, info), lease)| (slot, info, lease))
    }

    /// The slots that it holds.
    pub(super) fn held<'a>(
        &'a self,
        control: &Control,
        slots: &'a Slots,
    ) -> impl Iterator<Item = &'a SlotInfo> {
        let is_held = |slot: u32, lease: u32| {
            let word = slots::word(control, slot);
            lease != 0 && word.is_some_and(|word| word.generation() == lease)
        };
        self.leases(slots)
            .filter(move |(slot, _, lease)| is_held(*slot, lease.load(Ordering::Relaxed)))
            .map(|(_, info, _)| info)
    }

    /// How its page violates the protocol, if it does. Requires the pool's lock, so that no generation changes.
    pub(super) fn protocol_violation(
        &self,
        control: &Control,
        slots: &Slots,
        head: u64,
    ) -> Option<&'static str> {
        if self.cursor().is_some_and(|cursor| cursor > head) {
            return Some("its cursor is ahead of the stream");
        }
        let mut held = Vec::new();
        for (slot, _, word) in self.leases(slots) {
            let lease = word.load(Ordering::Relaxed);
            if lease == 0 {
                continue;
            }
            let generation = slots::word(control, slot)?.generation();
            // Older generations are late attempts, which the consumer withdraws itself.
            match lease.wrapping_sub(generation) as i32 {
                1.. => return Some("it leases frames that do not exist yet"),
                0 => held.push((word, lease)),
                _ => {}
            }
        }
        // The words were not read at one instant, and a correct consumer may change them meanwhile. A lease that is found twice
        // was there all the time.
        let limit = self.reserved.load(Ordering::Relaxed) as usize;
        let too_many = held.len() > limit && lease::still_held(&held) > limit;
        too_many.then_some("it holds more frames than it may")
    }

    /// Its figures, with the frames that it holds and the publication time of the oldest.
    pub(super) fn stats(&self, control: &Control, slots: &Slots, now: i64) -> ConsumerStats {
        let mut held = 0;
        let mut oldest = now;
        for (slot, info, lease) in self.leases(slots) {
            let lease = lease.load(Ordering::Relaxed);
            let word = slots::word(control, slot);
            if lease != 0 && word.is_some_and(|word| word.published() == Some(lease)) {
                held += 1;
                oldest = oldest.min(info.published_at);
            }
        }
        let page = &self.page;
        ConsumerStats {
            id: self.id,
            pid: self.process.pid,
            uid: self.process.uid,
            name: self.name.clone(),
            budget: self.budget.min(control.share().most),
            held,
            received: page.received().load(Ordering::Relaxed),
            missed: page.missed().load(Ordering::Relaxed),
            skipped: page.skipped().load(Ordering::Relaxed),
            copied: page.copied().load(Ordering::Relaxed),
            dropped: page.dropped().load(Ordering::Relaxed),
            oldest_held_age_ns: (now - oldest).cast_unsigned(),
            latency_ns: page.latency().load(Ordering::Relaxed),
            waited_for_ns: 0,
            leaving: self.has_left() && self.follows_stream(),
            via: self.via.clone(),
            device: lock(&self.device).clone(),
        }
    }
}

/// The list of a pool's consumers. It changes only under the pool's lock, and slots are claimed under the same lock. So a
/// consumer that may hold a frame is on the list before any slot is claimed.
#[derive(Debug)]
pub(in crate::producer) struct Consumers(Arc<[Arc<ConsumerRecord>]>);

impl Consumers {
    pub(super) fn new() -> Self {
        Self(Arc::new([]))
    }

    pub(in crate::producer) fn iter(&self) -> impl Iterator<Item = &Arc<ConsumerRecord>> {
        self.0.iter()
    }

    pub(in crate::producer) fn len(&self) -> usize {
        self.0.len()
    }

    /// The present list, for use without the lock. `None`: it is empty.
    pub(super) fn shared(&self) -> Option<Arc<[Arc<ConsumerRecord>]>> {
        (!self.0.is_empty()).then(|| self.0.clone())
    }

    pub(super) fn get(&self, id: u64) -> Option<&Arc<ConsumerRecord>> {
        self.0.iter().find(|consumer| consumer.id() == id)
    }

    pub(in crate::producer) fn add(&mut self, consumer: Arc<ConsumerRecord>) {
        self.0 = self.0.iter().cloned().chain([consumer]).collect();
    }

    pub(super) fn remove(&mut self, id: u64) -> Option<Arc<ConsumerRecord>> {
        let consumer = self.get(id)?.clone();
        let others = self.0.iter().filter(|consumer| consumer.id() != id);
        self.0 = others.cloned().collect();
        Some(consumer)
    }

    /// Whether any consumer holds this generation of a slot.
    pub(super) fn hold(&self, slot: u32, generation: u32) -> bool {
        self.iter().any(|consumer| consumer.holds(slot, generation))
    }

    /// How many reads of this generation of a slot are over.
    pub(super) fn reads_over(&self, slot: u32, generation: u32) -> u32 {
        let over = self.iter().map(|consumer| {
            // In this order: see there.
            let reads = consumer.reads_of(slot, generation);
            if consumer.holds(slot, generation) {
                0
            } else {
                reads
            }
        });
        over.fold(0, u32::saturating_add)
    }

    /// How many reads of this frame have begun.
    pub(in crate::producer) fn reads_begun(&self, slot: u32, generation: u32) -> u32 {
        let begun = self.iter().map(|it| it.reads_of(slot, generation));
        begun.fold(0, u32::saturating_add)
    }

    /// The consumers that may take frames.
    pub(in crate::producer) fn readers(&self) -> Arc<[u64]> {
        let readers = self.iter().filter(|it| it.reads());
        readers.map(|it| it.id()).collect()
    }

    /// Those of the given consumers that may still take this frame and have not.
    pub(in crate::producer) fn awaited(
        &self,
        ids: &[u64],
        slot: u32,
        generation: u32,
    ) -> impl Iterator<Item = &Arc<ConsumerRecord>> {
        let named = self.iter().filter(|it| ids.contains(&it.id()));
        named.filter(move |it| it.reads() && it.reads_of(slot, generation) == 0)
    }

    /// Whether each of those that take frames can hold frames of these pools of origin. `None`: some answers are missing, and the
    /// others are yes.
    pub(in crate::producer) fn reach(&self, origins: impl Iterator<Item = Origin>) -> Option<bool> {
        let mut reach = Some(true);
        for origin in origins {
            for consumer in self.iter().filter(|it| it.takes_frames()) {
                match consumer.reach().of(origin.pool_id) {
                    Some(true) => {}
                    Some(false) => return Some(false),
                    None => reach = None,
                }
            }
        }
        reach
    }

    /// How many entries the slowest consumer is behind.
    pub(super) fn backlog(&self, head: u64) -> u64 {
        let cursors = self.iter().filter_map(|consumer| consumer.cursor());
        let behind = cursors.map(|cursor| head.saturating_sub(cursor));
        behind.max().unwrap_or(0)
    }

    /// Whether the entry with this sequence is kept for a consumer, this many nanoseconds after it was published.
    pub(super) fn want(&self, sequence: u64, age: u64) -> bool {
        self.iter().any(|consumer| consumer.wants(sequence, age))
    }

    /// The consumers that are furthest behind, and by how many entries. The end of the stream counts as one.
    pub(in crate::producer) fn slowest(
        &self,
        control: &Control,
    ) -> (u64, Vec<Arc<ConsumerRecord>>) {
        let (head, end, most) = (control.head(), control.eos_at(), self.most_behind(control));
        let is_slowest = |consumer: &&Arc<ConsumerRecord>| {
            most > 0 && consumer.behind(head, end).is_some_and(|it| it >= most)
        };
        (most, self.iter().filter(is_slowest).cloned().collect())
    }

    /// How many entries the slowest consumer is behind. The end of the stream counts as one.
    pub(super) fn most_behind(&self, control: &Control) -> u64 {
        let (head, end) = (control.head(), control.eos_at());
        let behind = self.iter().filter_map(|it| it.behind(head, end));
        behind.max().unwrap_or(0)
    }

    /// The consumers whose pages violate the protocol, with the violation.
    pub(super) fn protocol_violations(
        &self,
        control: &Control,
        slots: &Slots,
    ) -> Vec<(Arc<ConsumerRecord>, &'static str)> {
        let head = control.head();
        let violation = |consumer: &Arc<ConsumerRecord>| {
            Some((
                consumer.clone(),
                consumer.protocol_violation(control, slots, head)?,
            ))
        };
        self.iter().filter_map(violation).collect()
    }
}
