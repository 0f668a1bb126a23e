// SPDX-License-Identifier: MPL-2.0

//! Waiting for a frame: by looking for a while, and then asleep.

use std::time::{Duration, Instant};

use xmem_shm::os::clock::Deadline;
use xmem_shm::sync::Ordering;

use super::Consumer;
use super::questions::ASK_AGAIN;
use super::session::Session;
use crate::cancel::Canceller;

/// Where a consumer is that waits.
#[derive(Debug, Clone, Copy)]
pub(super) struct Waiting {
    cursor: u64,
    passed_eos: Option<u64>,
    /// How often the session's bell had rung when the producer was asked for something. `None`: it was not asked.
    asked_at: Option<u64>,
}

impl Waiting {
    /// The same for an answer of the producer, which was asked when the bell had rung this often.
    pub(super) fn since(self, asked_at: Option<u64>) -> Self {
        Self { asked_at, ..self }
    }

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

impl Consumer {
    pub(super) fn waiting(&self) -> Waiting {
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
    pub(super) fn is_over(&self) -> bool {
        self.waiting().is_stream_over(&self.session)
    }

    /// Looks for a while without sleeping. Returns whether there is something.
    pub(super) fn spin(&self, deadline: Deadline) -> bool {
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

    pub(super) fn sleep(&self, deadline: Deadline) {
        match &self.notifier {
            None => self.session.page.sleep(deadline.left(), || self.is_ready()),
            // Its thread is the one that sleeps on the wake word.
            Some(notifier) => {
                notifier.ask(self.waiting());
                notifier.wait(deadline);
            }
        }
    }
}
