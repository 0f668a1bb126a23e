// SPDX-License-Identifier: MPL-2.0

//! Frames that came to the sink and did not get into the pool. A flag of the next one shows decoders that they are missing.

use std::sync::Mutex;

use crate::lock;

/// A buffer, distinguished from earlier ones at its address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Seen {
    address: usize,
    pts: Option<gst::ClockTime>,
    dts: Option<gst::ClockTime>,
}

#[derive(Debug, Default)]
struct State {
    /// It came, and was not rendered so far.
    in_hand: Option<Seen>,
    /// Frames are missing before the next one.
    is_open: bool,
    /// How many came and were not rendered, or waited there until a flush or the end.
    skipped: u64,
}

impl State {
    fn skip(&mut self) {
        self.is_open = true;
        self.skipped += 1;
    }
}

#[derive(Debug, Default)]
pub(super) struct Gaps(Mutex<State>);

impl Gaps {
    /// GstBaseSink has looked at a buffer's times. It does so, once or several times, before it renders one, and before it
    /// drops one since that is late or outside of the segment.
    pub(super) fn comes(&self, buffer: &gst::BufferRef) {
        let it = Seen {
            address: buffer.as_ptr().addr(),
            pts: buffer.pts(),
            dts: buffer.dts(),
        };
        let mut state = lock(&self.0);
        let before = state.in_hand.replace(it);
        if before.is_some_and(|before| before != it) {
            state.skip();
        }
    }

    /// How many buffers came and were never handed over. Of a list that is dropped as a whole, one.
    pub(super) fn skipped(&self) -> u64 {
        lock(&self.0).skipped
    }

    /// A buffer is rendered. Returns whether frames before it are missing.
    pub(super) fn close(&self) -> bool {
        let mut state = lock(&self.0);
        state.in_hand = None;
        std::mem::take(&mut state.is_open)
    }

    /// A rendered buffer did not get into the pool, and another figure counts it.
    pub(super) fn open(&self) {
        lock(&self.0).is_open = true;
    }

    /// The same for a frame that no other figure counts.
    pub(super) fn skip(&self) {
        lock(&self.0).skip();
    }

    /// No buffer follows for now: one that came and was not rendered is skipped too.
    pub(super) fn end(&self) {
        let mut state = lock(&self.0);
        if state.in_hand.take().is_some() {
            state.skip();
        }
    }

    /// A new run.
    pub(super) fn reset(&self) {
        *lock(&self.0) = State::default();
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
