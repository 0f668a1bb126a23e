// SPDX-License-Identifier: MPL-2.0

//! What is known of a stream that went on without this consumer, until it is back in it.

use xmem_core::{Consumer, FrameMeta};

/// The last frame or event that was taken.
#[derive(Debug, Clone, Copy)]
pub(super) struct Last {
    pub(super) sequence: u64,
    published_at: i64,
}

impl Last {
    pub(super) fn of(meta: &FrameMeta) -> Self {
        Self {
            sequence: meta.sequence,
            published_at: meta.published_at,
        }
    }
}

/// A producer that waits for this consumer no longer, and how far it had come.
#[derive(Debug, Clone, Copy)]
pub(super) struct LeftBehind {
    producer: u32,
    last: Last,
}

/// What the first frame is after that.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum First {
    /// It was taken before: it is kept for who joins.
    Known,
    /// So many were missed before it.
    Missed(u64),
}

impl LeftBehind {
    pub(super) fn by(producer: &Consumer, last: Last) -> Self {
        Self {
            producer: producer.producer_pid(),
            last,
        }
    }

    pub(super) fn first(self, producer: u32, meta: &FrameMeta) -> First {
        let Last {
            sequence,
            published_at,
        } = self.last;
        // Another stream counts from 0 again, and all of it was published later.
        if producer != self.producer {
            First::Missed(0)
        } else if meta.sequence > sequence {
            First::Missed(meta.sequence - sequence - 1)
        } else if meta.published_at <= published_at {
            First::Known
        } else {
            First::Missed(0)
        }
    }
}
