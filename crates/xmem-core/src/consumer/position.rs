// SPDX-License-Identifier: MPL-2.0

//! The position of a consumer in the stream, and the count of frames that it missed.

use std::sync::Arc;

use xmem_shm::abi::entry::Entry;
use xmem_shm::fault::{self, Point};
use xmem_shm::sync::{Ordering, fence};

use super::connection::Connection;

/// A position up to which all missed frames are counted.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Counted {
    sequence: u64,
    /// The number of events before it, modulo 2^32. `None`: not known, so events up to the next entry count as frames.
    events: Option<u32>,
}

/// A position, and its pool.
#[derive(Debug, Clone, Copy)]
pub(super) struct ResumePoint {
    pool_id: u64,
    cursor: u64,
    counted: Counted,
}

impl Counted {
    /// The position before this entry.
    pub(super) fn before(entry: &Entry) -> Self {
        Self {
            sequence: entry.sequence(),
            events: Some(entry.events_before()),
        }
    }

    /// The position after this entry.
    pub(super) fn after(entry: &Entry) -> Self {
        let events = entry.events_before().wrapping_add(entry.is_event().into());
        Self {
            sequence: entry.sequence().saturating_add(1),
            events: Some(events),
        }
    }

    /// The number of frames between two positions. Never more than there are entries, even if the producer wrote invalid
    /// values.
    fn frames_until(self, later: Self) -> u64 {
        let entries = later.sequence.saturating_sub(self.sequence);
        let events = match (self.events, later.events) {
            (Some(before), Some(until)) => until.wrapping_sub(before),
            _ => 0,
        };
        entries.saturating_sub(events.into())
    }
}

/// The position of a consumer in the stream of a connection.
#[derive(Debug)]
pub(super) struct Position {
    connection: Arc<Connection>,
    /// The sequence of the next frame.
    cursor: u64,
    /// The position up to which missed frames are counted.
    counted: Counted,
    /// It continues the stream of an earlier consumer.
    resumed: bool,
}

impl Position {
    /// Starts at the cursor that the producer set, or after the last frame of an earlier consumer.
    pub(super) fn begin(connection: &Arc<Connection>, resumed: Option<ResumePoint>) -> Self {
        let cursor = connection.page().cursor().load(Ordering::Relaxed);
        let mut position = Self {
            connection: connection.clone(),
            cursor,
            counted: counted_until(connection, cursor),
            resumed: false,
        };
        let Some(before) = resumed.filter(|it| it.pool_id == connection.pool_id()) else {
            return position;
        };
        position.resumed = true;
        let cursor = before.cursor.min(connection.control().head());
        if cursor > position.cursor {
            position.move_to(cursor);
            position.counted = before.counted;
        } else {
            let here = position.counted;
            position.counted = before.counted;
            position.count_missed_until(here);
        }
        position
    }

    pub(super) fn cursor(&self) -> u64 {
        self.cursor
    }

    pub(super) fn has_resumed(&self) -> bool {
        self.resumed
    }

    pub(super) fn resume_point(&self) -> ResumePoint {
        ResumePoint {
            pool_id: self.connection.pool_id(),
            cursor: self.cursor,
            counted: self.counted,
        }
    }

    /// Moves after an entry that was taken or skipped.
    pub(super) fn move_after(&mut self, after: Counted) {
        self.counted = after;
        self.move_to(after.sequence);
    }

    /// Moves after a frame that was missed, and counts it.
    pub(super) fn move_after_missed(&mut self, after: Counted) {
        self.connection.count_missed(1);
        self.move_after(after);
    }

    /// Counts all frames before this position that were not taken as missed.
    fn count_missed_until(&mut self, there: Counted) {
        let missed = self.pass_until(there);
        if missed > 0 {
            self.connection.count_missed(missed);
        }
    }

    /// The number of frames before this position that were not taken, for the caller to count.
    pub(super) fn pass_until(&mut self, there: Counted) -> u64 {
        let passed = self.counted.frames_until(there);
        self.counted = there;
        passed
    }

    pub(super) fn move_to(&mut self, cursor: u64) {
        self.cursor = cursor;
        // Release: a producer that reads the new cursor also sees earlier leases.
        self.connection
            .page()
            .cursor()
            .store(cursor, Ordering::Release);
        fault::point(Point::CursorMoved);
        // A waiting producer sees when a lease ends. But this frame may be held for long, so it is notified of the cursor too.
        if self.connection.control().constants().lossless {
            fence(Ordering::SeqCst);
            self.connection.notify_release(false);
        }
    }
}

/// The counts at a position, from the previous entry.
fn counted_until(connection: &Connection, cursor: u64) -> Counted {
    let unknown = Counted {
        sequence: cursor,
        events: (cursor == 0).then_some(0),
    };
    let last = cursor.checked_sub(1);
    let entry = last.and_then(|last| connection.control().read_entry(last));
    entry.map_or(unknown, |entry| Counted {
        sequence: cursor,
        ..Counted::after(&entry)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(sequence: u64, events: impl Into<Option<u32>>) -> Counted {
        Counted {
            sequence,
            events: events.into(),
        }
    }

    #[test]
    fn events_do_not_count_as_frames() {
        assert_eq!(at(3, 1).frames_until(at(3, 1)), 0);
        assert_eq!(at(3, 1).frames_until(at(10, 1)), 7);
        assert_eq!(at(3, 1).frames_until(at(10, 5)), 3);
        assert_eq!(at(3, u32::MAX).frames_until(at(10, 2)), 4);
        assert_eq!(at(3, None).frames_until(at(10, 5)), 7);
    }

    #[test]
    fn invalid_counts_do_not_exceed_the_entries() {
        assert_eq!(at(3, 5).frames_until(at(10, 1)), 0);
        assert_eq!(at(10, 1).frames_until(at(3, 1)), 0);
        assert_eq!(at(0, 0).frames_until(at(u64::MAX, 0)), u64::MAX);
    }
}
