// SPDX-License-Identifier: MPL-2.0

//! Waiting for a key frame: what comes before it cannot be decoded.

use std::time::{Duration, Instant};

/// How long to wait for a key frame that was asked for.
const ASK_AGAIN: Duration = Duration::from_secs(1);

/// After this long the user should hear of it.
const SAY_AFTER: Duration = Duration::from_secs(2);

#[derive(Debug, Default)]
pub(super) struct Gate {
    closed: bool,
    asked: Option<Instant>,
    /// When it first kept a frame back since it closed.
    waiting_since: Option<Instant>,
    said: bool,
}

impl Gate {
    /// Frames are missing: what refers to them cannot be decoded.
    pub(super) fn close(&mut self) {
        self.closed = true;
        self.asked = None;
    }

    /// Whether a frame may pass. A header may, but nothing is decodable by that.
    pub(super) fn lets_pass(&mut self, flags: gst::BufferFlags) -> bool {
        if !flags.contains(gst::BufferFlags::DELTA_UNIT) {
            *self = Self::default();
        }
        !self.closed || flags.contains(gst::BufferFlags::HEADER)
    }

    /// Whether it is time to ask for a key frame. Then it counts as asked for.
    pub(super) fn asks(&mut self) -> bool {
        let asks = self.asked.is_none_or(|asked| asked.elapsed() >= ASK_AGAIN);
        if asks {
            self.asked = Some(Instant::now());
        }
        asks
    }

    /// Keeps a frame back.
    pub(super) fn keep_back(&mut self) {
        self.waiting_since.get_or_insert_with(Instant::now);
    }

    /// Whether it is time to say that frames are kept back, which is once: after a while, or when no more come.
    pub(super) fn says(&mut self, is_over: bool) -> bool {
        let waits_long = |since: Instant| is_over || since.elapsed() >= SAY_AFTER;
        self.waiting_since.is_some_and(waits_long) && !std::mem::replace(&mut self.said, true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_key_frame_opens_it() {
        let (delta, header, key) = (
            gst::BufferFlags::DELTA_UNIT,
            gst::BufferFlags::HEADER,
            gst::BufferFlags::empty(),
        );
        let mut gate = Gate::default();
        assert!(gate.lets_pass(delta));
        gate.close();
        assert!(!gate.lets_pass(delta));
        assert!(gate.asks());
        assert!(!gate.asks());
        assert!(gate.lets_pass(delta | header));
        assert!(!gate.lets_pass(delta));
        assert!(gate.lets_pass(key));
        assert!(gate.lets_pass(delta));
        gate.close();
        assert!(gate.asks(), "it is another key frame that is needed now");
    }

    #[test]
    fn it_says_once_that_it_waits() {
        let mut gate = Gate::default();
        for _ in 0..2 {
            gate.close();
            assert!(!gate.says(true), "it kept nothing back");
            gate.keep_back();
            assert!(!gate.says(false), "it has only begun");
            assert!(gate.says(true));
            // More frames are missed.
            gate.close();
            gate.keep_back();
            assert!(!gate.says(true), "that was said");
            assert!(gate.lets_pass(gst::BufferFlags::empty()));
        }
    }
}
