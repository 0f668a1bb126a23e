// SPDX-License-Identifier: MPL-2.0

//! How a consumer waits: for what, and until when.

use std::time::Duration;

use xmem_shm::abi::layout::LeasePage;
use xmem_shm::os::clock::monotonic_ns;
use xmem_shm::sync::Ordering;

use super::connection::Connection;
use super::link::ASK_AGAIN;
use super::rate::pause_until;
use crate::cancel::Canceller;

/// A question to the producer, without whose answer the next frame cannot be taken.
#[derive(Debug, Clone, Copy)]
pub(super) struct Asked {
    /// The number of stored messages before it.
    arrivals: u64,
    /// When to ask again, on CLOCK_MONOTONIC, because an answer can get lost.
    again: i64,
}

impl Asked {
    /// Just now. `arrivals`: the number of stored messages before.
    pub(super) fn now(arrivals: u64) -> Self {
        Self {
            arrivals,
            again: monotonic_ns().saturating_add(ASK_AGAIN.as_nanos() as i64),
        }
    }
}

/// The position of a waiting consumer.
#[derive(Debug, Clone, Copy)]
pub(super) struct Waiting {
    cursor: u64,
    passed_eos: Option<u64>,
    /// `None`: the producer was not asked for anything.
    asked: Option<Asked>,
    /// No frame is received before this time, on CLOCK_MONOTONIC. `i64::MIN`: at any time.
    not_before: i64,
}

impl Waiting {
    pub(super) fn new(cursor: u64, passed_eos: Option<u64>) -> Self {
        Self {
            cursor,
            passed_eos,
            asked: None,
            not_before: i64::MIN,
        }
    }

    pub(super) fn not_before(self, not_before: i64) -> Self {
        Self { not_before, ..self }
    }

    pub(super) fn for_answer(self, asked: Option<Asked>) -> Self {
        Self { asked, ..self }
    }

    /// Sleeps unless `ready` returns true, at most for `time` (`None`: no limit). The producer wakes the consumer only if frames can be
    /// received.
    pub(super) fn sleep(
        self,
        page: &LeasePage,
        time: Option<Duration>,
        ready: impl FnOnce() -> bool,
    ) {
        match self.pause() {
            Some(pause) => page.pause(time.map_or(pause, |time| time.min(pause)), ready),
            None => page.sleep(time, ready),
        }
    }

    /// How long to sleep without being woken for frames. `None`: frames can be received now.
    pub(super) fn pause(self) -> Option<Duration> {
        match self.not_before {
            i64::MIN => None,
            due => pause_until(due),
        }
    }

    /// The longest sleep before the next check, because an answer can get lost.
    pub(super) fn at_most(self) -> Option<Duration> {
        self.asked.map(|asked| {
            let left = asked.again.saturating_sub(monotonic_ns());
            Duration::from_nanos(u64::try_from(left).unwrap_or(0))
        })
    }

    /// Whether the consumer must check: something can be received, or never will be.
    pub(super) fn is_over(self, connection: &Connection, canceller: &Canceller) -> bool {
        let has_come = match self.asked {
            Some(asked) => {
                connection.link().arrivals() != asked.arrivals || asked.again <= monotonic_ns()
            }
            None => {
                (connection.control().head() > self.cursor && self.pause().is_none())
                    || self.is_stream_over(connection)
            }
        };
        has_come
            || connection.is_lost()
            || connection.page().flags().load(Ordering::Relaxed) != 0
            || canceller.is_cancelled()
    }

    /// Whether the stream has ended, and the caller does not wait for the next one.
    pub(super) fn is_stream_over(self, connection: &Connection) -> bool {
        let eos_at = connection.control().eos_at();
        eos_at.is_some_and(|at| at <= self.cursor) && self.passed_eos != Some(self.cursor)
    }
}
