// SPDX-License-Identifier: MPL-2.0

//! Frames that came to the sink and did not get into the pool. A flag of the next one shows decoders that they are missing.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

/// A number that no time has.
const NONE: u64 = u64::MAX;

/// A buffer, distinguished from earlier ones at its address.
#[derive(Debug, Default)]
struct Seen {
    /// 0: no buffer.
    address: AtomicU64,
    pts: AtomicU64,
    dts: AtomicU64,
}

impl Seen {
    /// Makes it this buffer. Returns whether it was another one.
    fn replace(&self, buffer: &gst::BufferRef) -> bool {
        let number = |time: Option<gst::ClockTime>| time.map_or(NONE, gst::ClockTime::nseconds);
        let it = [
            (&self.address, buffer.as_ptr().addr() as u64),
            (&self.pts, number(buffer.pts())),
            (&self.dts, number(buffer.dts())),
        ];
        let is_same = it.iter().all(|(word, now)| word.load(Relaxed) == *now);
        let was_there = self.is_there();
        for (word, now) in it {
            word.store(now, Relaxed);
        }
        was_there && !is_same
    }

    fn is_there(&self) -> bool {
        self.address.load(Relaxed) != 0
    }

    fn clear(&self) {
        self.address.store(0, Relaxed);
    }
}

/// The thread that has the pad's stream lock changes this, for each buffer, and others read the figure. Relaxed: no other data
/// goes with it.
#[derive(Debug, Default)]
pub(super) struct Gaps {
    /// It came, and was not rendered so far.
    in_hand: Seen,
    /// Frames are missing before the next one.
    is_open: AtomicBool,
    /// How many came and were not rendered, or waited there until a flush or the end.
    skipped: AtomicU64,
}

impl Gaps {
    /// GstBaseSink has looked at a buffer's times. It does so, once or several times, before it renders one, and before it
    /// drops one since that is late or outside of the segment.
    pub(super) fn comes(&self, buffer: &gst::BufferRef) {
        if self.in_hand.replace(buffer) {
            self.skip();
        }
    }

    /// How many buffers came and were never handed over. Of a list that is dropped as a whole, one.
    pub(super) fn skipped(&self) -> u64 {
        self.skipped.load(Relaxed)
    }

    /// A buffer is rendered. Returns whether frames before it are missing.
    pub(super) fn close(&self) -> bool {
        self.in_hand.clear();
        self.is_open.load(Relaxed) && self.is_open.swap(false, Relaxed)
    }

    /// A rendered buffer did not get into the pool, and another figure counts it.
    pub(super) fn open(&self) {
        self.is_open.store(true, Relaxed);
    }

    /// The same for a frame that no other figure counts.
    pub(super) fn skip(&self) {
        self.open();
        self.skipped.fetch_add(1, Relaxed);
    }

    /// No buffer follows for now: one that came and was not rendered is skipped too.
    pub(super) fn end(&self) {
        if self.in_hand.is_there() {
            self.in_hand.clear();
            self.skip();
        }
    }

    /// A new run.
    pub(super) fn reset(&self) {
        self.in_hand.clear();
        self.is_open.store(false, Relaxed);
        self.skipped.store(0, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_comes_and_is_not_rendered_leaves_a_gap() {
        gst::init().unwrap();
        let mut buffer = gst::Buffer::new();
        let gaps = Gaps::default();
        let mut comes = |seconds| {
            // As if each had the address of the one before.
            buffer
                .get_mut()
                .unwrap()
                .set_pts(gst::ClockTime::from_seconds(seconds));
            gaps.comes(&buffer);
        };
        for seconds in 0..3 {
            comes(seconds);
            comes(seconds);
            assert!(!gaps.close());
        }
        comes(4);
        comes(5);
        assert!(gaps.close());
        comes(6);
        assert!(!gaps.close());
        gaps.open();
        comes(7);
        assert!(gaps.close());
        assert_eq!(gaps.skipped(), 1);
        gaps.end();
        assert_eq!(gaps.skipped(), 1, "it was rendered");
        comes(7);
        gaps.end();
        gaps.end();
        gaps.skip();
        assert_eq!(gaps.skipped(), 3);
        assert!(gaps.close());
        comes(8);
        gaps.reset();
        comes(9);
        assert!(!gaps.close());
    }
}
