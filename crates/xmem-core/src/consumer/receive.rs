// SPDX-License-Identifier: MPL-2.0

//! Receiving: which frame is next, and is it still there.

use std::time::Duration;

use xmem_shm::abi::entry::{Entry, EntryWords};
use xmem_shm::abi::limits::ANSWER_TIME;
use xmem_shm::fault::{self, Point};
use xmem_shm::os::clock::Deadline;

use super::Consumer;
use super::held::Purpose;
use super::missed::Counted;
use crate::error::ReceiveError;
use crate::frame::lease::ReadLease;

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
                // Overwritten since: by far too late. The next entry tells whether it was a frame.
                None => {
                    self.move_to(sequence + 1);
                    continue;
                }
            };
            if entry.meta.sequence != sequence {
                return Err(self.corrupt("an entry is not where it should be"));
            }
            self.reach(Counted::before(&entry.meta));
            let behind = Counted::behind(&entry.meta);
            let (is_event, published_at) = (entry.meta.event, entry.meta.published_at);
            if is_event && !self.events {
                self.pass(behind);
                continue;
            }
            if self.newest_only && !is_event && self.is_outdated(sequence, head) {
                self.miss(behind);
                continue;
            }
            fault::point(Point::EntryRead);
            let taken = self
                .session
                .take(entry, purpose, self.parts, deadline, &self.canceller);
            match taken {
                Ok(Some(lease)) => {
                    self.pass(behind);
                    if !is_event {
                        self.session.count(published_at);
                    }
                    return Ok(Some(lease));
                }
                Ok(None) => {}
                // The frame is missed, as one that comes too late; the next one may find room.
                Err(ReceiveError::Region(_)) if !self.session.control.constants().lossless => {}
                Err(ReceiveError::Corrupt(what)) => return Err(self.corrupt(what)),
                Err(error) => return Err(error),
            }
            if is_event {
                self.pass(behind);
            } else {
                self.miss(behind);
            }
        }
        Ok(None)
    }

    /// The next frame makes no sense. Whoever goes on all the same gets the one after it, and a lossless producer does not wait
    /// for ever.
    fn corrupt(&mut self, what: &'static str) -> ReceiveError {
        self.move_to(self.cursor + 1);
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
        if oldest > self.cursor {
            self.move_to(oldest);
        }
    }

    /// Whether there is a frame behind this one. Events are none.
    fn is_outdated(&self, sequence: u64, head: u64) -> bool {
        (sequence + 1..head).rev().any(|later| {
            let words = self.session.control.read_entry(later);
            words.is_some_and(|words| Entry::decode(&words).is_ok_and(|entry| !entry.meta.event))
        })
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
