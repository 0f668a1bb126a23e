// SPDX-License-Identifier: MPL-2.0

//! The condition that a consumer waits for.

use std::time::Duration;

use xmem_shm::sync::Ordering;

use super::connection::Connection;
use super::link::ASK_AGAIN;
use crate::cancel::Canceller;

/// The position of a waiting consumer.
#[derive(Debug, Clone, Copy)]
pub(super) struct Waiting {
    cursor: u64,
    passed_eos: Option<u64>,
    /// The number of stored messages when the producer was asked for something. `None`: it was not asked.
    asked_at: Option<u64>,
}

impl Waiting {
    pub(super) fn new(cursor: u64, passed_eos: Option<u64>) -> Self {
        Self {
            cursor,
            passed_eos,
            asked_at: None,
        }
    }

    /// Also waits for an answer of the producer, which was asked when `asked_at` messages were stored.
    pub(super) fn since(self, asked_at: Option<u64>) -> Self {
        Self { asked_at, ..self }
    }

    /// The longest sleep before the next check, because an answer can get lost.
    pub(super) fn at_most(self) -> Option<Duration> {
        self.asked_at.map(|_| ASK_AGAIN)
    }

    /// Whether the consumer must check: something can be received, or never will be.
    pub(super) fn is_over(self, connection: &Connection, canceller: &Canceller) -> bool {
        let has_come = match self.asked_at {
            Some(arrivals) => connection.link().arrivals() != arrivals,
            None => connection.control().head() > self.cursor || self.is_stream_over(connection),
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
