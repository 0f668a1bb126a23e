// SPDX-License-Identifier: MPL-2.0

//! Where in its stream a consumer is, and which frames it missed on the way there.

use xmem_shm::abi::entry::Entry;
use xmem_shm::abi::meta::FrameMeta;
use xmem_shm::fault::{self, Point};
use xmem_shm::sync::Ordering;

use super::Consumer;

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
    pub(super) fn before(meta: &FrameMeta) -> Self {
        Self {
            sequence: meta.sequence,
            events: Some(meta.events_before),
        }
    }

    /// Behind it.
    pub(super) fn behind(meta: &FrameMeta) -> Self {
        let events = meta.events_before.wrapping_add(meta.event.into());
        Self {
            sequence: meta.sequence.saturating_add(1),
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

impl Consumer {
    /// Begins at the place that the producer gave, or goes on behind what was taken before.
    pub(super) fn begin(&mut self, resumed: Option<Whereabouts>) {
        let constants = self.session.control.constants();
        self.counted = self.counted_until(self.cursor);
        let Some(before) = resumed.filter(|it| it.pool_id == constants.pool_id) else {
            return;
        };
        self.resumed = true;
        let cursor = before.cursor.min(self.session.control.head());
        if cursor > self.cursor {
            self.move_to(cursor);
            self.counted = before.counted;
        } else {
            let here = self.counted;
            self.counted = before.counted;
            self.reach(here);
        }
    }

    pub(super) fn whereabouts(&self) -> Whereabouts {
        Whereabouts {
            pool_id: self.session.control.constants().pool_id,
            cursor: self.cursor,
            counted: self.counted,
        }
    }

    /// What is known of a place from the entry before it.
    fn counted_until(&self, cursor: u64) -> Counted {
        let unknown = Counted {
            sequence: cursor,
            events: (cursor == 0).then_some(0),
        };
        let words = cursor
            .checked_sub(1)
            .and_then(|last| self.session.control.read_entry(last));
        let entry = words.and_then(|words| Entry::decode(&words).ok());
        entry.map_or(unknown, |entry| Counted {
            sequence: cursor,
            ..Counted::behind(&entry.meta)
        })
    }

    /// It goes on behind an entry that it took, or that is nothing to take.
    pub(super) fn pass(&mut self, behind: Counted) {
        self.counted = behind;
        self.move_to(behind.sequence);
    }

    /// It goes on behind a frame that it missed.
    pub(super) fn miss(&mut self, behind: Counted) {
        self.count_missed(1);
        self.pass(behind);
    }

    /// It has come as far as this: what it did not take of what lies before, it missed.
    pub(super) fn reach(&mut self, there: Counted) {
        let missed = self.counted.frames_until(there);
        if missed > 0 {
            self.count_missed(missed);
        }
        self.counted = there;
    }

    pub(super) fn count_missed(&self, frames: u64) {
        let missed = self.session.page.missed();
        missed.store(
            missed.load(Ordering::Relaxed).saturating_add(frames),
            Ordering::Relaxed,
        );
        fault::point(Point::MissedCounted);
    }

    pub(super) fn move_to(&mut self, cursor: u64) {
        self.cursor = cursor;
        // Release: whoever sees that we moved on also sees the lease that we took before.
        self.session.page.cursor().store(cursor, Ordering::Release);
        fault::point(Point::CursorMoved);
        // A producer that waits for us to take a frame sees the lease end; but this frame may be held for long.
        if self.session.control.constants().lossless {
            xmem_shm::sync::fence(Ordering::SeqCst);
            if self.session.producer_waits() {
                self.session.ring();
            }
        }
    }
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
