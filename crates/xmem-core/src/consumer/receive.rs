// SPDX-License-Identifier: MPL-2.0

//! Receiving: which frame is next, and is it still there.

use std::time::Duration;

use super::Consumer;
use super::questions::ANSWER_TIME;
use super::take::Purpose;
use crate::cancel::Deadline;
use crate::entry::{Entry, EntryWords};
use crate::error::ReceiveError;
use crate::fault::{self, Point};
use crate::lease::ReadLease;
use crate::sync::Ordering;

/// Frames that are looked for before looking at the time.
const LOOKS: u32 = 256;

impl Consumer {
    /// Takes the next frame; waits for it if there is none, at most for `timeout` (`None`: for ever).
    ///
    /// # Errors
    ///
    /// [`ReceiveError::OverBudget`] when there is a frame and it holds as many slots as it may. That is said at once, whatever the
    /// timeout: only the caller can end it, by dropping a lease, or by taking the frame with
    /// [`receive_with`](Self::receive_with). The frame is not lost by that, as long as the producer keeps it. Others as
    /// [`ReceiveError`] says.
    pub fn receive(&mut self, timeout: Option<Duration>) -> Result<ReadLease, ReceiveError> {
        self.receive_for(Purpose::Keep, Deadline::after(timeout))
    }

    /// Takes the next frame for as long as the function runs, also when the budget is used up: for who copies the frame
    /// out.
    ///
    /// Of a forwarded frame, whoever forwarded it holds for us what we have no lease left for where it lies. If that process
    /// is killed while the function runs, the frame counts as missed, and the function runs again with the next one.
    ///
    /// # Errors
    ///
    /// As [`receive`](Self::receive); [`ReceiveError::OverBudget`] only if a clone was kept beyond the function.
    pub fn receive_with<T>(
        &mut self,
        timeout: Option<Duration>,
        mut f: impl FnMut(&ReadLease) -> T,
    ) -> Result<T, ReceiveError> {
        let deadline = Deadline::after(timeout);
        loop {
            let lease = self.receive_for(Purpose::CopyOut, deadline)?;
            let copied = f(&lease);
            if lease.is_intact() {
                return Ok(copied);
            }
            self.count_missed(1);
        }
    }

    fn receive_for(
        &mut self,
        purpose: Purpose,
        deadline: Deadline,
    ) -> Result<ReadLease, ReceiveError> {
        if !self.session.process.is_current() {
            return Err(ReceiveError::Forked);
        }
        loop {
            let asked_at = self.notifier.as_ref().map(|_| self.session.bell.rings());
            match self.take_next(purpose, deadline) {
                Ok(Some(lease)) => return Ok(lease),
                Ok(None) => {}
                Err(error) => {
                    if let (ReceiveError::Timeout, Some(notifier)) = (&error, &self.notifier) {
                        // There is a frame, but not yet what the producer was asked for to take it.
                        notifier.ask(self.waiting().since(asked_at));
                    }
                    return Err(error);
                }
            }
            if self.canceller.is_cancelled() {
                return Err(ReceiveError::Cancelled);
            }
            if deadline.is_over() {
                if let Some(notifier) = &self.notifier {
                    notifier.ask(self.waiting());
                }
                return Err(ReceiveError::Timeout);
            }
            if !self.spin(deadline) {
                self.sleep(deadline);
            }
        }
    }

    /// The next frame that is still there. `None`: there is none yet.
    fn take_next(
        &mut self,
        purpose: Purpose,
        deadline: Deadline,
    ) -> Result<Option<ReadLease>, ReceiveError> {
        self.session.sweep_regions();
        // Then the caller looks at the time, and whether it was called off: a producer that lies could go on for ever.
        for _ in 0..LOOKS {
            self.session.check_flags()?;
            // Before the head: what was published before the end is received before the end.
            let lost = self.session.is_lost();
            let head = self.session.control.head();
            if head <= self.cursor {
                let over = self.is_over();
                // Once at least; but whoever waits for another stream must learn that none can come.
                if over && !(lost && self.told_eos_at == Some(self.cursor)) {
                    self.told_eos_at = Some(self.cursor);
                    return Err(ReceiveError::Eos);
                }
                if lost {
                    return Err(ReceiveError::ProducerLost);
                }
                return Ok(None);
            }
            self.skip_what_is_too_old(head);
            let sequence = self.cursor;
            let entry = match self.session.control.read_entry(sequence) {
                Some(words) => match Entry::decode(&words) {
                    Ok(entry) => entry,
                    Err(error) => return Err(self.corrupt(error.0)),
                },
                // Overwritten since: by far too late.
                None => {
                    self.miss(1);
                    continue;
                }
            };
            if entry.meta.event && !self.events {
                self.move_to(sequence + 1);
                continue;
            }
            if self.newest_only && !entry.meta.event && self.is_outdated(sequence, head) {
                self.miss(1);
                continue;
            }
            fault::point(Point::EntryRead);
            let is_event = entry.meta.event;
            match self.take_entry(sequence, entry, purpose, deadline) {
                Ok(Some(lease)) => return Ok(Some(lease)),
                Ok(None) if is_event => {
                    self.move_to(sequence + 1);
                    continue;
                }
                Ok(None) => {}
                // The frame is missed, as one that comes too late; the next one may find room.
                Err(ReceiveError::Region(_)) if !self.session.control.constants().lossless => {}
                Err(ReceiveError::Corrupt(what)) => return Err(self.corrupt(what)),
                Err(error) => return Err(error),
            }
            self.miss(1);
        }
        Ok(None)
    }

    /// The next frame makes no sense. Whoever goes on all the same gets the one after it, and a lossless producer does not wait
    /// for ever.
    fn corrupt(&mut self, what: &'static str) -> ReceiveError {
        self.miss(1);
        ReceiveError::Corrupt(what)
    }

    /// A live consumer that is further behind than the history skips to what is kept for it.
    fn skip_what_is_too_old(&mut self, head: u64) {
        let constants = self.session.control.constants();
        // More than the ring has can only be a lie, but then it must not take for ever.
        let in_ring = head.saturating_sub(constants.shape.ring_len.into());
        let oldest = if constants.lossless {
            in_ring
        } else {
            self.session.control.oldest().clamp(in_ring, head - 1)
        };
        self.miss(oldest.saturating_sub(self.cursor));
    }

    /// Whether there is a frame behind this one. Events are none.
    fn is_outdated(&self, sequence: u64, head: u64) -> bool {
        (sequence + 1..head).rev().any(|later| {
            let words = self.session.control.read_entry(later);
            words.is_some_and(|words| Entry::decode(&words).is_ok_and(|entry| !entry.meta.event))
        })
    }

    /// Goes on in the stream with this frame, or the first one that is there.
    pub(super) fn resume_at(&mut self, cursor: u64) {
        let missed = self.cursor.saturating_sub(cursor);
        if missed > 0 {
            self.count_missed(missed);
        }
        let cursor = cursor.min(self.session.control.head());
        if cursor > self.cursor {
            self.move_to(cursor);
        }
    }

    fn miss(&mut self, frames: u64) {
        if frames > 0 {
            self.count_missed(frames);
            self.move_to(self.cursor.saturating_add(frames));
        }
    }

    fn count_missed(&self, frames: u64) {
        let missed = self.session.page.missed();
        missed.store(
            missed.load(Ordering::Relaxed).saturating_add(frames),
            Ordering::Relaxed,
        );
        fault::point(Point::MissedCounted);
    }

    fn move_to(&mut self, cursor: u64) {
        self.cursor = cursor;
        // Release: whoever sees that we moved on also sees the lease that we took before.
        self.session.page.cursor().store(cursor, Ordering::Release);
        fault::point(Point::CursorMoved);
        // A producer that waits for us to take a frame sees the lease end; but this frame may be held for long.
        if self.session.control.constants().lossless {
            crate::sync::fence(Ordering::SeqCst);
            if self.session.producer_waits() {
                self.session.ring();
            }
        }
    }

    /// `None`: the frame is gone.
    fn take_entry(
        &mut self,
        sequence: u64,
        entry: Entry,
        purpose: Purpose,
        deadline: Deadline,
    ) -> Result<Option<ReadLease>, ReceiveError> {
        if entry.meta.sequence != sequence {
            return Err(ReceiveError::Corrupt("an entry is not where it should be"));
        }
        let (published_at, is_event) = (entry.meta.published_at, entry.meta.event);
        let lease = self
            .session
            .take(entry, purpose, self.parts, deadline, &self.canceller)?;
        if lease.is_some() {
            self.move_to(sequence + 1);
            if !is_event {
                self.session.count(published_at);
            }
        }
        Ok(lease)
    }

    /// Takes the frame that an entry describes, whichever is next. `None`: the frame is gone.
    pub(crate) fn take_index(&self, entry: Entry) -> Result<Option<ReadLease>, ReceiveError> {
        if !self.session.process.is_current() {
            return Err(ReceiveError::Forked);
        }
        self.session.check_flags()?;
        self.session.sweep_regions();
        self.session.take(
            entry,
            Purpose::Keep,
            self.parts,
            Deadline::after(Some(ANSWER_TIME)),
            &self.canceller,
        )
    }

    pub(crate) fn slot_record(&self, slot: u32) -> Option<EntryWords> {
        self.session.control.read_slot_record(slot)
    }
}
