// SPDX-License-Identifier: MPL-2.0

//! Taking frames: which one is next, is it still there, and sleeping until there is one.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::Consumer;
use super::held::{NotTaken, SlotPlace};
use super::notify::Notifier;
use super::questions::{ANSWER_TIME, ASK_AGAIN};
use super::session::Session;
use crate::cancel::{Canceller, Deadline};
use crate::entry::{Entry, EntryWords};
use crate::error::ReceiveError;
use crate::fault::{self, Point};
use crate::layout::{FLAG_CUT_OFF, FLAG_TIMED_OUT};
use crate::lease::{Hold, ReadLease};
use crate::os::clock::monotonic_ns;
use crate::parts::{Part, PartPlace};
use crate::sync::Ordering;

/// Frames that are looked for before looking at the time.
const LOOKS: u32 = 256;

impl Consumer {
    /// Takes the next frame; waits for it if there is none, at most for `timeout` (`None`: for ever).
    ///
    /// # Errors
    ///
    /// [`ReceiveError::OverBudget`] when there is a frame and it holds as many slots as it may; the frame is
    /// not lost by that. Others as
    /// [`ReceiveError`] says.
    pub fn receive(&mut self, timeout: Option<Duration>) -> Result<ReadLease, ReceiveError> {
        self.receive_up_to(timeout, self.session.budget)
    }

    /// Takes the next frame for as long as the function runs, also when the budget is used up: for who copies the frame
    /// out.
    ///
    /// # Errors
    ///
    /// As [`receive`](Self::receive); [`ReceiveError::OverBudget`] only if a clone was kept beyond the function.
    pub fn receive_with<T>(
        &mut self,
        timeout: Option<Duration>,
        f: impl FnOnce(&ReadLease) -> T,
    ) -> Result<T, ReceiveError> {
        let limit = self.session.budget.saturating_add(1);
        let lease = self.receive_up_to(timeout, limit)?;
        Ok(f(&lease))
    }

    fn receive_up_to(
        &mut self,
        timeout: Option<Duration>,
        limit: u32,
    ) -> Result<ReadLease, ReceiveError> {
        if !self.session.process.is_current() {
            return Err(ReceiveError::Forked);
        }
        let deadline = Deadline::after(timeout);
        loop {
            let asked_at = self.notifier.as_ref().map(|_| self.session.bell.rings());
            match self.take_next(limit, deadline) {
                Ok(Some(lease)) => return Ok(lease),
                Ok(None) => {}
                Err(error) => {
                    if let (ReceiveError::Timeout, Some(notifier)) = (&error, &self.notifier) {
                        // There is a frame, but not yet what the producer was asked for to take it.
                        notifier.ask(Waiting {
                            asked_at,
                            ..self.waiting()
                        });
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

    fn sleep(&self, deadline: Deadline) {
        match &self.notifier {
            None => self.session.page.sleep(deadline.left(), || self.is_ready()),
            // Its thread is the one that sleeps on the wake word.
            Some(notifier) => {
                notifier.ask(self.waiting());
                notifier.wait(deadline);
            }
        }
    }

    /// Has an eventfd become readable when there is something to receive, or a reason why there will be nothing: for
    /// programs whose loop waits for descriptors. It must be non-blocking, and may outlive the consumer; others may make
    /// it readable too.
    ///
    /// It stays readable until a [`receive`](Self::receive) found nothing; receive with a timeout of zero until
    /// [`ReceiveError::Timeout`] before waiting for it. That also comes when a frame's memory is new here and the producer
    /// was just asked for it.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let pool = dir.path().join("p.sock");
    /// # let pool = pool.to_str().unwrap();
    /// # use std::{sync::Arc, time::Duration};
    /// # use xmem_core::{Consumer, FrameMeta, Producer, ReceiveError};
    /// use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
    ///
    /// let producer = Producer::builder(pool).build()?;
    /// let mut consumer = Consumer::builder(pool).connect()?;
    /// let fd = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
    /// consumer.notify(fd.clone())?;
    ///
    /// assert!(matches!(consumer.receive(Some(Duration::ZERO)), Err(ReceiveError::Timeout)));
    /// producer.acquire(3)?.publish(FrameMeta::new(3))?;
    /// let frame = loop {
    ///     poll(&mut [PollFd::new(&fd, PollFlags::IN)], None)?;
    ///     match consumer.receive(Some(Duration::ZERO)) {
    ///         Err(ReceiveError::Timeout) => {}
    ///         result => break result?,
    ///     }
    /// };
    /// assert_eq!(frame.len(), 3);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// If no thread can be started.
    pub fn notify(&mut self, eventfd: Arc<OwnedFd>) -> io::Result<()> {
        // Two of them would take wake-ups from each other.
        self.notifier = None;
        let notifier = Notifier::start(&self.session, eventfd, &self.canceller)?;
        notifier.ask(self.waiting());
        self.notifier = Some(notifier);
        Ok(())
    }

    fn waiting(&self) -> Waiting {
        Waiting {
            cursor: self.cursor,
            passed_eos: self.passed_eos,
            asked_at: None,
        }
    }

    /// Whether looking is worth it: there is a frame, or a reason why there will be none.
    fn is_ready(&self) -> bool {
        self.waiting().is_over(&self.session, &self.canceller)
    }

    /// Whether the stream is over, and the caller does not wait for what comes after that.
    fn is_over(&self) -> bool {
        self.waiting().is_stream_over(&self.session)
    }

    /// Looks for a while without sleeping. Returns whether there is something.
    fn spin(&self, deadline: Deadline) -> bool {
        if self.busy_poll.is_zero() {
            return false;
        }
        let start = Instant::now();
        let time = deadline.left_up_to(self.busy_poll);
        while start.elapsed() < time {
            if self.is_ready() {
                return true;
            }
            std::hint::spin_loop();
        }
        false
    }

    /// The next frame that is still there. `None`: there is none yet.
    fn take_next(
        &mut self,
        limit: u32,
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
                Some(words) => {
                    Entry::decode(&words).map_err(|error| ReceiveError::Corrupt(error.0))?
                }
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
            fault::point(Point::EntryRead);
            match self.take_entry(sequence, entry, limit, deadline) {
                Ok(Some(lease)) => return Ok(Some(lease)),
                Ok(None) => {}
                // The frame is missed, as one that comes too late; the next one may find room.
                Err(ReceiveError::Region(_)) if !self.session.control.constants().lossless => {}
                Err(error) => return Err(error),
            }
            self.miss(1);
        }
        Ok(None)
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

    fn miss(&mut self, frames: u64) {
        if frames > 0 {
            let missed = self.session.page.missed();
            missed.store(
                missed.load(Ordering::Relaxed).saturating_add(frames),
                Ordering::Relaxed,
            );
            fault::point(Point::MissedCounted);
            self.move_to(self.cursor.saturating_add(frames));
        }
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
        limit: u32,
        deadline: Deadline,
    ) -> Result<Option<ReadLease>, ReceiveError> {
        if entry.meta.sequence != sequence {
            return Err(ReceiveError::Corrupt("an entry is not where it should be"));
        }
        let published_at = entry.meta.published_at;
        let lease = self
            .session
            .take(entry, limit, self.parts, deadline, &self.canceller)?;
        if lease.is_some() {
            self.move_to(sequence + 1);
            self.session.count(published_at);
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
            self.session.budget,
            self.parts,
            Deadline::after(Some(ANSWER_TIME)),
            &self.canceller,
        )
    }

    pub(crate) fn slot_record(&self, slot: u32) -> Option<EntryWords> {
        self.session.control.read_slot_record(slot)
    }
}

/// Where a consumer is that waits.
#[derive(Debug, Clone, Copy)]
pub(super) struct Waiting {
    cursor: u64,
    passed_eos: Option<u64>,
    /// How often the session's bell had rung when the producer was asked for something. `None`: it was not asked.
    asked_at: Option<u64>,
}

impl Waiting {
    /// When to look again in any case: an answer can get lost.
    pub(super) fn at_most(self) -> Option<Duration> {
        self.asked_at.map(|_| ASK_AGAIN)
    }

    /// Whether looking is worth it.
    pub(super) fn is_over(self, session: &Session, canceller: &Canceller) -> bool {
        let has_come = match self.asked_at {
            Some(rings) => session.bell.rings() != rings,
            None => session.control.head() > self.cursor || self.is_stream_over(session),
        };
        has_come
            || session.is_lost()
            || session.page.flags().load(Ordering::Relaxed) != 0
            || canceller.is_cancelled()
    }

    fn is_stream_over(self, session: &Session) -> bool {
        let eos_at = session.control.eos_at();
        eos_at.is_some_and(|at| at <= self.cursor) && self.passed_eos != Some(self.cursor)
    }
}

impl Session {
    /// What the producer has said about this consumer.
    fn check_flags(&self) -> Result<(), ReceiveError> {
        let flags = self.page.flags().load(Ordering::Relaxed);
        if flags & FLAG_CUT_OFF != 0 {
            Err(ReceiveError::CutOff)
        } else if flags & FLAG_TIMED_OUT != 0 {
            Err(ReceiveError::TimedOut)
        } else {
            Ok(())
        }
    }

    /// Takes the frame that an entry describes. `None`: the frame is gone.
    fn take(
        self: &Arc<Self>,
        entry: Entry,
        limit: u32,
        wants_parts: bool,
        deadline: Deadline,
        cancel: &Canceller,
    ) -> Result<Option<ReadLease>, ReceiveError> {
        let meta = &entry.meta;
        if meta.generation == 0 {
            return Err(ReceiveError::Corrupt("an entry without a generation"));
        }
        let Some(sticky) = self.sticky(meta.sticky_version, deadline, cancel)? else {
            return Ok(None);
        };
        let Some(view) = self.region(entry.region, deadline, cancel)? else {
            return Ok(None);
        };
        let place = usize::try_from(entry.offset)
            .ok()
            .zip(usize::try_from(entry.len).ok());
        let Some((offset, len)) = place.filter(|(offset, len)| {
            offset
                .checked_add(*len)
                .is_some_and(|end| end <= view.len())
        }) else {
            return Err(ReceiveError::Corrupt("a slot lies outside its region"));
        };
        if !view.has_slots() {
            return Err(ReceiveError::Corrupt(
                "a slot lies in somebody else's memory",
            ));
        }
        self.held
            .wait_for_device(self, meta.slot, deadline, cancel)?;
        let place = SlotPlace {
            slot: meta.slot,
            generation: meta.generation,
            view,
            offset,
            len,
        };
        match self.held.take(self, place, limit) {
            Ok(held) => ReadLease::new(Hold::Consumer(held), entry, sticky, &|places| {
                self.find_parts(places, wants_parts, deadline, cancel)
            }),
            Err(NotTaken::Gone) => Ok(None),
            Err(NotTaken::OverBudget) => Err(ReceiveError::OverBudget {
                budget: self.budget,
            }),
        }
    }

    /// Finds the pieces of a frame that is held. `None`: one is gone, or whoever asks cannot take it as it is.
    fn find_parts(
        &self,
        places: Vec<PartPlace>,
        wants_parts: bool,
        deadline: Deadline,
        cancel: &Canceller,
    ) -> Result<Option<Vec<Part>>, ReceiveError> {
        let mut parts = Vec::with_capacity(places.len());
        for place in places {
            let Some(view) = self.region(place.region, deadline, cancel)? else {
                return Ok(None);
            };
            let held_there = match place.origin {
                Some(origin) => match self.hold_at_origin(origin, &view, deadline, cancel)? {
                    Ok(held) => Some(held),
                    Err(NotTaken::Gone) => return Ok(None),
                    Err(NotTaken::OverBudget) => {
                        return Err(ReceiveError::OverBudget {
                            budget: self.budget,
                        });
                    }
                },
                None => None,
            };
            let part = Part::new(view, place, held_there)
                .ok_or(ReceiveError::Corrupt("a piece lies outside its region"))?;
            parts.push(part);
        }
        if wants_parts {
            return Ok(Some(parts));
        }
        if parts.iter().all(Part::is_on_device) {
            // It is for the device to read.
            return Ok(Some(parts));
        }
        let readable = match parts.as_slice() {
            [part] => part.map().map(drop).map_err(|error| error.to_string()),
            parts => Err(format!("it lies in {} pieces", parts.len())),
        };
        match readable {
            Ok(()) => Ok(Some(parts)),
            Err(reason) => {
                log::warn!(
                    "pool {:?}: missing a frame, since {reason}: ask for `parts` to take such frames",
                    self.pool_name()
                );
                Ok(None)
            }
        }
    }

    /// Only this side writes the words.
    fn count(&self, published_at: u64) {
        let page = &self.page;
        page.received().store(
            page.received().load(Ordering::Relaxed).wrapping_add(1),
            Ordering::Relaxed,
        );
        fault::point(Point::ReceivedCounted);
        let latency = monotonic_ns().saturating_sub(published_at);
        let before = page.latency().load(Ordering::Relaxed);
        let smoothed = if before == 0 {
            latency
        } else {
            before - before / 8 + latency / 8
        };
        page.latency().store(smoothed, Ordering::Relaxed);
    }
}
