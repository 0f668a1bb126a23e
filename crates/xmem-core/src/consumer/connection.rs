// SPDX-License-Identifier: MPL-2.0

//! A connection to a producer: the link, the shared memory, and the terms in the welcome.
//!
//! Frames hold a reference to it. It lives until the last frame is dropped, even if the consumer has left.

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use xmem_shm::abi::budget::BudgetLimit;
use xmem_shm::abi::layout::{CURSOR_LEFT, Control, FLAG_CUT_OFF, FLAG_TIMED_OUT, LeasePage};
use xmem_shm::abi::wire::ToProducer;
use xmem_shm::fault::{self, Point};
use xmem_shm::lock::lock;
use xmem_shm::os::clock::{Deadline, monotonic_ns};
use xmem_shm::os::wake_socket::{self, WAITS_PER_DRAIN};
use xmem_shm::sync::{AtomicU32, AtomicU64, Ordering, fence};

use super::link::Link;
use super::lookup::Stickies;
use super::ready::ReadyFd;
use crate::cancel::{Canceller, Wake};
use crate::error::ReceiveError;

/// The consumer's request, and the producer's answer.
pub(super) struct Terms {
    /// The requested budget, and the largest budget that the producer will grant.
    pub(super) asked: u32,
    pub(super) granted: u32,
    pub(super) producer_pid: u32,
    pub(super) pool: String,
    /// The producer's socket.
    pub(super) path: PathBuf,
}

pub(super) struct Connection {
    link: Arc<Link>,
    control: Control,
    page: LeasePage,
    /// Readable after the producer woke this consumer, if it did not sleep on its page.
    wake_socket: OwnedFd,
    /// The number of waits for the wake socket.
    waits: AtomicU32,
    /// Signalled when something of this process wakes the consumer.
    ready: Mutex<Option<ReadyFd>>,
    terms: Terms,
    stickies: Stickies,
    /// How long the producer keeps frames for a consumer that does not ask for more, in nanoseconds. 0: not by time.
    keep_for: u64,
    /// The producer has set this consumer's cursor.
    arrived: AtomicBool,
    warned_of_budget: AtomicBool,
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection")
            .field("pool", &self.terms.pool)
            .field("budget", &self.terms.granted)
            .finish_non_exhaustive()
    }
}

impl Connection {
    pub(super) fn new(
        link: Arc<Link>,
        control: Control,
        page: LeasePage,
        wake_socket: OwnedFd,
        terms: Terms,
    ) -> Self {
        Self {
            stickies: Stickies::new(&link),
            keep_for: page.keep_for().load(Ordering::Relaxed),
            link,
            control,
            page,
            wake_socket,
            waits: AtomicU32::new(0),
            ready: Mutex::default(),
            terms,
            arrived: AtomicBool::new(false),
            warned_of_budget: AtomicBool::new(false),
        }
    }

    pub(super) fn link(&self) -> &Arc<Link> {
        &self.link
    }

    pub(super) fn control(&self) -> &Control {
        &self.control
    }

    pub(super) fn page(&self) -> &LeasePage {
        &self.page
    }

    pub(super) fn wake_socket(&self) -> BorrowedFd<'_> {
        self.wake_socket.as_fd()
    }

    /// The descriptor that is signalled when something of this process wakes the consumer.
    pub(super) fn set_ready(&self, ready: Option<ReadyFd>) {
        *lock(&self.ready) = ready;
    }

    /// Asks the producer to wake this consumer by its socket.
    pub(super) fn announce_by_socket(&self) {
        // Before the announcement, so that no later wake-up is taken.
        let waits = self.waits.fetch_add(1, Ordering::Relaxed);
        if waits.is_multiple_of(WAITS_PER_DRAIN) {
            wake_socket::drain(&self.wake_socket);
        }
        self.page.announce_by_socket();
    }

    /// Wakes the consumer, whichever way it sleeps.
    pub(super) fn wake_own(&self) {
        self.page.wake_own();
        let ready = lock(&self.ready).clone();
        if let Some(ready) = ready {
            ready.signal();
        }
    }

    pub(super) fn terms(&self) -> &Terms {
        &self.terms
    }

    pub(super) fn stickies(&self) -> &Stickies {
        &self.stickies
    }

    /// Whether this was not inherited through fork.
    pub(super) fn is_of_this_process(&self) -> bool {
        self.link.is_of_this_process()
    }

    pub(super) fn pool_id(&self) -> u64 {
        self.control.constants().pool_id
    }

    pub(super) fn pool_name(&self) -> &str {
        &self.terms.pool
    }

    /// The present budget.
    pub(super) fn budget(&self) -> u32 {
        // A forked child does not map the memory.
        if self.is_of_this_process() {
            self.budget_here()
        } else {
            self.terms.granted
        }
    }

    /// The present budget, if this is no forked child.
    #[inline]
    pub(super) fn budget_here(&self) -> u32 {
        self.terms.granted.min(self.control.share().most)
    }

    /// The setting that limits the budget. A forked child may hold nothing.
    pub(super) fn budget_limit(&self) -> BudgetLimit {
        if !self.is_of_this_process() {
            return BudgetLimit::Asked;
        }
        let share = self.control.share();
        if share.most < self.terms.granted {
            share.limit
        } else if self.terms.granted < self.terms.asked {
            BudgetLimit::MaxHeld
        } else {
            BudgetLimit::Asked
        }
    }

    /// Logs once why a used-up budget is smaller than requested.
    #[cold]
    pub(super) fn warn_of_budget(&self) {
        let limit = self.budget_limit();
        if limit != BudgetLimit::Asked && !self.warned_of_budget.swap(true, Ordering::Relaxed) {
            log::warn!(
                "pool {:?}: all {} slots that this consumer may hold at once are held: raise {limit} of the producer",
                self.pool_name(),
                self.budget()
            );
        }
    }

    /// Whether the producer is gone. Frames that it published before are still in the ring.
    pub(super) fn is_lost(&self) -> bool {
        self.link.is_lost() || self.control.closed()
    }

    /// Asks for what is needed to take a frame, and waits until `check` returns the answer. `None`: the producer of a live pool is
    /// gone. Its consumer then misses the frame, and may receive later ones and the end of the stream. In a lossless pool that is
    /// an error, because a later frame would follow a gap.
    #[cold]
    pub(super) fn ask<T>(
        &self,
        question: &ToProducer,
        deadline: Deadline,
        cancel: &Canceller,
        check: impl FnMut() -> Option<T>,
    ) -> Result<Option<T>, ReceiveError> {
        match self.link.ask(question, deadline, cancel, check) {
            Err(ReceiveError::ProducerLost) if !self.control.constants().lossless => Ok(None),
            answer => answer.map(Some),
        }
    }

    /// Checks the flags with which the producer ends this consumer.
    pub(super) fn check_flags(&self) -> Result<(), ReceiveError> {
        let flags = self.page.flags().load(Ordering::Relaxed);
        if flags & FLAG_CUT_OFF != 0 {
            Err(ReceiveError::CutOff)
        } else if flags & FLAG_TIMED_OUT != 0 {
            Err(ReceiveError::TimedOut)
        } else {
            Ok(())
        }
    }

    /// The caller gets the end of the stream, at this cursor. A lossless producer waits for that before it goes on.
    #[cold]
    pub(super) fn note_end_seen(&self, cursor: u64) {
        let seen = cursor.saturating_add(1);
        self.page.end_seen().store(seen, Ordering::Release);
        // Pairs with the fence of a producer that begins to wait: either this thread sees that it waits, or the producer sees the
        // word.
        fence(Ordering::SeqCst);
        self.notify_release(false);
    }

    /// Notifies the producer of a release, if it `asked` for that or is waiting. The caller has executed a full fence.
    pub(super) fn notify_release(&self, asked: bool) {
        if asked || self.control.waiting().load(Ordering::Relaxed) != 0 {
            self.link.notify_producer();
        }
    }

    pub(super) fn set_arrived(&self) {
        self.arrived.store(true, Ordering::Release);
    }

    /// Waits until the producer has set this consumer's cursor.
    pub(super) fn wait_for_place(&self, deadline: Deadline, cancel: &Canceller) -> bool {
        // Cancelling does not wake this wait.
        let turn = Duration::from_millis(50);
        let check = || self.arrived.load(Ordering::Acquire).then_some(());
        self.link.wait_for(deadline, cancel, turn, check).is_some()
    }

    /// Notifies the producer that this consumer leaves, and ends the control thread. Held frames stay held.
    pub(super) fn leave(&self) {
        // The cursor as well as the message, because the producer's queue may be full, and it must not wait for this consumer.
        self.page.cursor().store(CURSOR_LEFT, Ordering::Release);
        fault::point(Point::LeaveMarked);
        let _ = self.link.send(&ToProducer::Leave);
        self.link.stop();
    }

    /// How long the producer keeps frames for this consumer after they were published, in nanoseconds. 0: not by time.
    pub(super) fn keep_for(&self) -> u64 {
        self.page.keep_for().load(Ordering::Relaxed)
    }

    /// Asks the producer to keep frames for longer, by this time in all.
    pub(super) fn keep_for_longer(&self, by: Duration) {
        // A forked child does not map the page.
        if self.keep_for > 0 && self.is_of_this_process() {
            let by = u64::try_from(by.as_nanos()).unwrap_or(u64::MAX);
            let keep_for = self.keep_for.saturating_add(by);
            // Relaxed, like the loads: no other data depends on it.
            self.page.keep_for().store(keep_for, Ordering::Relaxed);
        }
    }

    /// Increments a figure. Only this side writes the word.
    pub(super) fn count(&self, figure: fn(&LeasePage) -> &AtomicU64) {
        let figure = figure(&self.page);
        figure.store(
            figure.load(Ordering::Relaxed).wrapping_add(1),
            Ordering::Relaxed,
        );
    }

    pub(super) fn count_received(&self) {
        self.count(LeasePage::received);
        fault::point(Point::ReceivedCounted);
    }

    /// A frame was taken that was published at this time.
    pub(super) fn note_latency(&self, published_at: i64) {
        let latency = monotonic_ns()
            .saturating_sub(published_at)
            .max(0)
            .cast_unsigned();
        let before = self.page.latency().load(Ordering::Relaxed);
        let smoothed = if before == 0 {
            latency
        } else {
            before - before / 8 + latency / 8
        };
        self.page.latency().store(smoothed, Ordering::Relaxed);
    }

    pub(super) fn count_missed(&self, frames: u64) {
        add(self.page.missed(), frames);
        fault::point(Point::MissedCounted);
    }

    pub(super) fn count_skipped(&self, frames: u64) {
        add(self.page.skipped(), frames);
    }
}

/// Adds to a count that only this thread changes.
fn add(count: &AtomicU64, frames: u64) {
    let before = count.load(Ordering::Relaxed);
    count.store(before.saturating_add(frames), Ordering::Relaxed);
}

impl Wake for Connection {
    fn wake(&self) {
        // A forked child does not map the page.
        if !self.is_of_this_process() {
            return;
        }
        self.link.notify();
        self.wake_own();
    }
}
