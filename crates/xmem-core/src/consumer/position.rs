// SPDX-License-Identifier: MPL-2.0

//! Where in its stream a consumer is, and which frames it missed on the way there.

use std::sync::Arc;

use xmem_shm::abi::entry::Entry;
use xmem_shm::fault::{self, Point};
use xmem_shm::sync::{Ordering, fence};

use super::connection::Connection;

/// A place in a stream, up to which all missed frames were counted.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Counted {
    sequence: u64,
    /// How many events come before it, modulo 2^32. `None`: not known, so that events count as frames up to the next entry.
    events: Option<u32>,
}

/// The same, and in which pool that is.
#[derive(Debug, Clone, Copy)]
pub(super) struct Whereabouts {
    pool_id: u64,
    cursor: u64,
    counted: Counted,
}

impl Counted {
    /// Before this entry.
    pub(super) fn before(entry: &Entry) -> Self {
        Self {
            sequence: entry.sequence(),
            events: Some(entry.events_before()),
        }
    }

    /// Behind it.
    pub(super) fn behind(entry: &Entry) -> Self {
        let events = entry.events_before().wrapping_add(entry.is_event().into());
        Self {
            sequence: entry.sequence().saturating_add(1),
            events: Some(events),
        }
    }

    /// How many frames lie between the two. Never more than entries, whatever the producer wrote.
    fn frames_until(self, later: Self) -> u64 {
        let entries = later.sequence.saturating_sub(self.sequence);
        let events = match (self.events, later.events) {
            (Some(before), Some(until)) => until.wrapping_sub(before),
            _ => 0,
        };
        entries.saturating_sub(events.into())
    }
}

/// Where a consumer is in the stream of a connection.
#[derive(Debug)]
pub(super) struct Position {
    connection: Arc<Connection>,
    /// The sequence of the next frame.
    cursor: u64,
    /// Up to where it is known which frames were missed.
    counted: Counted,
    /// It goes on in the stream of an earlier consumer.
    resumed: bool,
}

impl Position {
    /// Begins at the place that the producer gave, or goes on behind the last frame taken before.
    pub(super) fn begin(connection: &Arc<Connection>, resumed: Option<Whereabouts>) -> Self {
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
            position.reach(here);
        }
        position
    }

    pub(super) fn cursor(&self) -> u64 {
        self.cursor
    }

    pub(super) fn has_resumed(&self) -> bool {
        self.resumed
    }

    pub(super) fn whereabouts(&self) -> Whereabouts {
        Whereabouts {
            pool_id: self.connection.pool_id(),
            cursor: self.cursor,
            counted: self.counted,
        }
    }

    /// It goes on behind an entry that was taken or skipped.
    pub(super) fn pass(&mut self, behind: Counted) {
        self.counted = behind;
        self.move_to(behind.sequence);
    }

    /// It goes on behind a frame that was missed.
    pub(super) fn miss(&mut self, behind: Counted) {
        self.connection.count_missed(1);
        self.pass(behind);
    }

    /// All frames before this place that were not taken count as missed.
    pub(super) fn reach(&mut self, there: Counted) {
        let missed = self.counted.frames_until(there);
        if missed > 0 {
            self.connection.count_missed(missed);
        }
        self.counted = there;
    }

    pub(super) fn move_to(&mut self, cursor: u64) {
        self.cursor = cursor;
        // Release: a producer that sees the new cursor also sees the lease that was taken before.
        self.connection
            .page()
            .cursor()
            .store(cursor, Ordering::Release);
        fault::point(Point::CursorMoved);
        // A producer that waits for this consumer to take a frame sees the lease end; but this frame may be held for long.
        if self.connection.control().constants().lossless {
            fence(Ordering::SeqCst);
            self.connection.given_back(false);
        }
    }
}

/// The counts at a place, from the entry before it.
fn counted_until(connection: &Connection, cursor: u64) -> Counted {
    let unknown = Counted {
        sequence: cursor,
        events: (cursor == 0).then_some(0),
    };
    let last = cursor.checked_sub(1);
    let entry = last.and_then(|last| connection.control().read_entry(last));
    entry.map_or(unknown, |entry| Counted {
        sequence: cursor,
        ..Counted::behind(&entry)
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
    fn events_are_no_frames() {
        assert_eq!(at(3, 1).frames_until(at(3, 1)), 0);
        assert_eq!(at(3, 1).frames_until(at(10, 1)), 7);
        assert_eq!(at(3, 1).frames_until(at(10, 5)), 3);
        assert_eq!(at(3, u32::MAX).frames_until(at(10, 2)), 4);
        assert_eq!(at(3, None).frames_until(at(10, 5)), 7);
    }

    #[test]
    fn lies_make_no_more_of_them() {
        assert_eq!(at(3, 5).frames_until(at(10, 1)), 0);
        assert_eq!(at(10, 1).frames_until(at(3, 1)), 0);
        assert_eq!(at(0, 0).frames_until(at(u64::MAX, 0)), u64::MAX);
    }
}
