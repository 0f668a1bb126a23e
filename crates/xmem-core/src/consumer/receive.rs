// SPDX-License-Identifier: MPL-2.0

//! Receives frames: finds the next entry, and takes its frame if the slot still has it.

use std::time::{Duration, Instant};

use xmem_shm::abi::entry::Entry;
use xmem_shm::abi::entry::FrameInfo;
use xmem_shm::abi::frame_layout::MetaError;
use xmem_shm::abi::layout::Control;
use xmem_shm::abi::limits::ANSWER_TIME;
use xmem_shm::abi::meta::FrameMeta;
use xmem_shm::fault::{self, Point};
use xmem_shm::os::clock::Deadline;

use super::Consumer;
use super::leases::Purpose;
use super::position::Counted;
use super::take::{Kept, Take};
use super::waiting::{Asked, Waiting};
use crate::error::ReceiveError;
use crate::frame::lease::{Described, ReadLease};

/// The number of entries that are tried before the time is checked.
const LOOKS: u32 = 256;
/// How often a consumer that spins looks for the next entry before it looks for all else, and reads the clock.
const POLLS: u32 = 256;

impl Consumer {
    /// Receives the next frame. Waits at most for `timeout` (`None`: no limit).
    ///
    /// # Errors
    ///
    /// [`ReceiveError::OverBudget`] if a frame is ready and the budget is used up. This error is returned immediately, without
    /// regard to the timeout. Drop a lease, or take the frame with [`receive_with`](Self::receive_with). The frame is not
    /// lost as long as the producer keeps it. For the other errors see [`ReceiveError`].
    pub fn receive(&mut self, timeout: Option<Duration>) -> Result<ReadLease, ReceiveError> {
        self.receive_for(Purpose::Keep, Deadline::after(timeout))
    }

    /// Like [`receive`](Self::receive), but with a budget of 0 each frame is beyond the budget.
    pub(crate) fn receive_within_budget(
        &mut self,
        timeout: Option<Duration>,
    ) -> Result<ReadLease, ReceiveError> {
        self.receive_for(Purpose::KeepWithinBudget, Deadline::after(timeout))
    }

    /// Receives the next frame and calls the function with it, also when the budget is used up. Use it to copy frames.
    ///
    /// A forwarded frame is in another pool. If the budget there is used up too, the lease of the forwarding process keeps the
    /// frame. If that process is killed while the function runs, the frame counts as missed, and the function runs again with
    /// the next one. A clone that is kept beyond the function has no lease on such a frame, which then counts as missed: drop the
    /// clone.
    ///
    /// # Errors
    ///
    /// As [`receive`](Self::receive); [`ReceiveError::OverBudget`] only if a clone was kept beyond the function, or if the budget is 0
    /// and a frame is held.
    pub fn receive_with<T>(
        &mut self,
        timeout: Option<Duration>,
        mut f: impl FnMut(&ReadLease) -> T,
    ) -> Result<T, ReceiveError> {
        let deadline = Deadline::after(timeout);
        loop {
            let lease = self.receive_for(Purpose::CopyOut, deadline)?;
            let copied = f(&lease);
            if lease.has_unleased_clones() {
                self.connection().count_missed(1);
                return Err(ReceiveError::OverBudget {
                    budget: self.connection().budget(),
                });
            }
            if lease.is_intact() {
                if !lease.meta().event {
                    self.connection().count_received();
                }
                return Ok(copied);
            }
            self.connection().count_missed(1);
        }
    }

    fn receive_for(
        &mut self,
        purpose: Purpose,
        deadline: Deadline,
    ) -> Result<ReadLease, ReceiveError> {
        if !self.session.link().is_of_this_process() {
            return Err(ReceiveError::Forked);
        }
        self.asked = None;
        // Those that do not wait here may wait for an answer elsewhere.
        let waits_elsewhere = self.notification.is_some() || deadline.is_now();
        loop {
            let arrivals = waits_elsewhere.then(|| self.session.link().arrivals());
            match self.take_next(purpose, deadline) {
                Ok(Some(lease)) => return Ok(lease),
                Ok(None) => {}
                Err(error) => return Err(self.not_taken(error, arrivals)),
            }
            if self.canceller.is_cancelled() {
                return Err(ReceiveError::Cancelled);
            }
            if deadline.is_over() {
                if let Some(notification) = &self.notification {
                    notification.ask(self.waiting(), &self.canceller);
                }
                return Err(ReceiveError::Timeout);
            }
            if self.busy_poll.is_zero() || !self.spin(deadline) {
                self.sleep(deadline);
            }
        }
    }

    /// Called when no frame was taken. `arrivals`: the number of stored messages before the producer was asked.
    #[cold]
    fn not_taken(&mut self, error: ReceiveError, arrivals: Option<u64>) -> ReceiveError {
        if let ReceiveError::Timeout = &error {
            // A frame exists, but an answer of the producer that is needed for it has not arrived.
            self.asked = arrivals.map(Asked::now);
            if let Some(notification) = &self.notification {
                notification.ask(self.waiting_elsewhere(), &self.canceller);
            }
        }
        error
    }

    /// The next frame that its slot still has. `None`: there is none yet.
    fn take_next(
        &mut self,
        purpose: Purpose,
        deadline: Deadline,
    ) -> Result<Option<ReadLease>, ReceiveError> {
        self.session.regions().sweep();
        // Bounded, so that the caller checks the time and the canceller even if a malicious producer never stops.
        for _ in 0..LOOKS {
            self.connection().check_flags()?;
            // Read before the head, so that frames from before the end are received before the error.
            let lost = self.connection().is_lost();
            let head = self.connection().control().head();
            if head <= self.position.cursor() {
                let over = self.waiting().is_stream_over(self.connection());
                // Returned at least once. A caller that waits for another stream gets `ProducerLost`.
                if over && !(lost && self.eos_reported_at == Some(self.position.cursor())) {
                    self.eos_reported_at = Some(self.position.cursor());
                    self.connection().note_end_seen(self.position.cursor());
                    return Err(ReceiveError::Eos);
                }
                if lost {
                    return Err(ReceiveError::ProducerLost);
                }
                return Ok(None);
            }
            self.session.leases().expect(self.kept.slot());
            // The newest entries are kept in any case. For them the word `oldest`, which the producer writes for each frame, is not
            // read.
            if head - self.position.cursor() > self.control().constants().history.into() {
                self.skip_released(head);
            }
            let sequence = self.position.cursor();
            let Some(entry) = self.connection().control().read_entry(sequence) else {
                // It was overwritten, so it is far too late. The next entry shows whether it was a frame.
                self.position.move_to(sequence + 1);
                continue;
            };
            let passed = self.position.pass_until(Counted::before(&entry));
            if passed > 0 {
                self.count_passed(passed, &entry);
            }
            let after = Counted::after(&entry);
            let (is_event, published_at) = (entry.is_event(), entry.published_at());
            if is_event && !self.events {
                self.position.move_after(after);
                continue;
            }
            if !is_event && self.skips(published_at) {
                self.connection().count_skipped(1);
                self.position.move_after(after);
                continue;
            }
            let is_skipped = (self.newest_only && self.is_outdated(sequence, head))
                || self.is_too_old(&entry, head);
            if !is_event && is_skipped {
                self.position.move_after_missed(after);
                continue;
            }
            fault::point(Point::EntryRead);
            match self.take_described(&entry, purpose, deadline) {
                Ok(Some(lease)) => {
                    self.position.move_after(after);
                    if !is_event {
                        self.connection().note_latency(published_at);
                        // A copy is counted when it is complete.
                        if purpose != Purpose::CopyOut {
                            self.connection().count_received();
                        }
                        if let Some(rate) = &mut self.rate {
                            rate.note_taken(published_at);
                        }
                    }
                    return Ok(Some(lease));
                }
                Ok(None) => {}
                Err(ReceiveError::Corrupt(what)) => return Err(self.corrupt(what)),
                Err(error) => return Err(error),
            }
            if is_event {
                self.position.move_after(after);
            } else {
                self.position.move_after_missed(after);
            }
        }
        Ok(None)
    }

    /// Counts frames before this entry that were not taken.
    #[cold]
    fn count_passed(&self, passed: u64, entry: &Entry) {
        let missed = match &self.rate {
            Some(rate) => rate.missed_of(passed, entry.published_at()),
            None => passed,
        };
        if missed > 0 {
            self.connection().count_missed(missed);
        }
        if passed > missed {
            self.connection().count_skipped(passed - missed);
        }
    }

    fn skips(&self, published_at: i64) -> bool {
        let rate = self.rate.as_ref();
        rate.is_some_and(|rate| rate.skips(published_at))
    }

    /// The next entry is invalid. Moves the cursor after it, so that the next call continues there, and a lossless producer
    /// does not wait forever.
    #[cold]
    fn corrupt(&mut self, what: &'static str) -> ReceiveError {
        self.position.move_to(self.position.cursor() + 1);
        ReceiveError::Corrupt(what)
    }

    /// This consumer is further behind than the history: if it is live, moves to the oldest entry that is kept for it.
    #[inline(never)]
    fn skip_released(&mut self, head: u64) {
        let constants = self.connection().control().constants();
        // A valid head is at most one ring length away. The limit keeps the loop short if it is invalid.
        let in_ring = head.saturating_sub(constants.shape.ring_len.into());
        let oldest = if constants.lossless {
            in_ring
        } else {
            self.connection()
                .control()
                .oldest()
                .clamp(in_ring, head - 1)
        };
        if oldest > self.position.cursor() {
            self.position.move_to(oldest);
        }
    }

    /// Skips the entry that [`receive_with`](Self::receive_with) refused with [`ReceiveError::OverBudget`]. Returns its description
    /// without the attachments, because these need a lease. `None`: it is gone.
    #[cold]
    pub(crate) fn skip_next(&mut self) -> Option<(FrameInfo, FrameMeta)> {
        let sequence = self.position.cursor();
        let control = self.connection().control();
        let Some(entry) = control.read_entry(sequence) else {
            self.position.move_to(sequence + 1);
            return None;
        };
        let place = control.place(entry.slot());
        let described = self.session.layouts().describe(&entry, control);
        let meta = described.ok().flatten().map(|it| it.meta(&entry));
        let after = Counted::after(&entry);
        if place.is_none() || meta.is_none() {
            self.position.move_after_missed(after);
            return None;
        }
        self.position.move_after(after);
        if !entry.is_event() {
            self.connection().note_latency(entry.published_at());
            self.connection().count_received();
        }
        let info = place.map(|place| entry.info(place.storage, place.device_id));
        info.zip(meta)
    }

    /// Whether a frame is older than what is kept for this consumer. The consumer leaves it out even if the producer keeps it for
    /// another one, because otherwise one consumer with a long wait would delay each slow one as much.
    fn is_too_old(&self, entry: &Entry, head: u64) -> bool {
        let promised = self.connection().control().constants().history;
        head.saturating_sub(entry.sequence()) > promised.into()
            && self.is_kept_for_others(entry, head)
    }

    #[inline(never)]
    fn is_kept_for_others(&self, entry: &Entry, head: u64) -> bool {
        let keep_for = self.connection().keep_for();
        let newest = self.connection().control().read_entry(head - 1);
        keep_for > 0
            && newest.is_some_and(|newest| {
                let age = newest.published_at().saturating_sub(entry.published_at());
                u64::try_from(age).is_ok_and(|age| age >= keep_for)
            })
    }

    /// Whether a newer frame exists. Events do not count.
    fn is_outdated(&self, sequence: u64, head: u64) -> bool {
        (sequence + 1..head).rev().any(|later| {
            let entry = self.connection().control().read_entry(later);
            entry.is_some_and(|entry| !entry.is_event())
        })
    }

    /// Takes the frame of an entry. `None`: the slot has another frame.
    fn take_described(
        &mut self,
        entry: &Entry,
        purpose: Purpose,
        deadline: Deadline,
    ) -> Result<Option<ReadLease>, ReceiveError> {
        let take = Take {
            session: &self.session,
            purpose,
            wants_parts: self.parts,
            wants_dmabuf: self.dmabuf,
            deadline,
            cancel: &self.canceller,
        };
        match self.session.layouts().describe(entry, self.control()) {
            Ok(Some(described)) => take.frame(entry, described, &mut self.kept),
            Ok(None) => Ok(None),
            Err(MetaError(reason)) => Err(ReceiveError::Corrupt(reason)),
        }
    }

    pub(super) fn waiting(&self) -> Waiting {
        let waiting = Waiting::new(self.position.cursor(), self.passed_eos);
        match &self.rate {
            // A lossless producer waits until this consumer has skipped a frame.
            Some(rate) if !self.connection().control().constants().lossless => {
                waiting.not_before(rate.due())
            }
            _ => waiting,
        }
    }

    /// Whether [`receive`](Self::receive) should be called: a frame can be received, or never will be, or the wait was cancelled. The
    /// frame may be one that the consumer skips, so that nothing is received without a wait.
    pub fn is_ready(&self) -> bool {
        let waiting = self.waiting_elsewhere();
        // A forked child does not have the lease page, and gets an error.
        !self.session.link().is_of_this_process()
            || waiting.is_over(self.connection(), &self.canceller)
    }

    /// How to wait after a receive call that did not.
    pub(super) fn waiting_elsewhere(&self) -> Waiting {
        self.waiting().for_answer(self.asked)
    }

    /// As `is_ready`, during a receive call.
    fn has_come(&self) -> bool {
        self.waiting().is_over(self.connection(), &self.canceller)
    }

    /// Polls without sleeping for `busy_poll`. Returns whether something can be received.
    #[inline(never)]
    fn spin(&self, deadline: Deadline) -> bool {
        let start = Instant::now();
        let time = deadline.left_up_to(self.busy_poll);
        let next = self.position.cursor();
        loop {
            if self.has_come() {
                return true;
            }
            for _ in 0..POLLS {
                // Not the head: its cache line stays with the producer, and comes together with the frame.
                if self.control().has_entry(next) {
                    self.control().expect_to_read(next);
                    self.session.leases().expect(self.kept.slot());
                    if self.has_come() {
                        return true;
                    }
                }
                std::hint::spin_loop();
            }
            if start.elapsed() >= time {
                return false;
            }
        }
    }

    fn sleep(&self, deadline: Deadline) {
        match &self.notification {
            None => {
                let page = self.connection().page();
                self.waiting()
                    .sleep(page, deadline.left(), || self.has_come());
            }
            Some(notification) => {
                notification.ask(self.waiting(), &self.canceller);
                notification.ready().wait(deadline.left());
            }
        }
    }

    /// Takes the frame of any entry. `None`: the slot has another frame.
    pub(crate) fn take_index(
        &self,
        entry: &Entry,
        meta: FrameMeta,
    ) -> Result<Option<ReadLease>, ReceiveError> {
        if !self.session.link().is_of_this_process() {
            return Err(ReceiveError::Forked);
        }
        self.connection().check_flags()?;
        self.session.regions().sweep();
        let take = Take {
            session: &self.session,
            purpose: Purpose::Keep,
            wants_parts: self.parts,
            wants_dmabuf: self.dmabuf,
            deadline: Deadline::after(Some(ANSWER_TIME)),
            cancel: &self.canceller,
        };
        take.frame(entry, Described::Whole(meta), &mut Kept::default())
    }

    pub(crate) fn control(&self) -> &Control {
        self.connection().control()
    }
}
