// SPDX-License-Identifier: MPL-2.0

//! Waiting for a key frame: what comes before it cannot be decoded.

use std::time::{Duration, Instant};

/// How long to wait for a key frame that was asked for.
const ASK_AGAIN: Duration = Duration::from_secs(1);

/// After this long the user should hear of it.
const SAY_AFTER: Duration = Duration::from_secs(2);
/// Where frames are further apart, somebody is paused, and it is not the key frame that is waited for.
const MOST_APART: Duration = Duration::from_secs(1);

#[derive(Debug, Default)]
pub(super) struct KeyFrameGate {
    closed: bool,
    asked: Option<Instant>,
    /// When it last kept a frame back.
    kept_back: Option<Instant>,
    /// How long it has kept frames back.
    waited: Duration,
    said: bool,
}

impl KeyFrameGate {
    /// Frames are missing: what refers to them cannot be decoded.
    pub(super) fn close(&mut self) {
        self.closed = true;
        self.asked = None;
    }

    /// Whether a frame may pass. A header may, but nothing is decodable by that.
    pub(super) fn lets_pass(&mut self, flags: gst::BufferFlags) -> bool {
        if !flags.contains(gst::BufferFlags::DELTA_UNIT) {
            *self = Self {
                said: self.said,
                ..Self::default()
            };
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
        let now = Instant::now();
        if let Some(last) = self.kept_back.replace(now) {
            self.waited += now.duration_since(last).min(MOST_APART);
        }
    }

    /// Whether it is time to say that frames are kept back, which is once: after a while, or when no more come.
    pub(super) fn says(&mut self, is_over: bool) -> bool {
        let is_time = self.waited >= SAY_AFTER || (is_over && self.kept_back.is_some());
        is_time && !std::mem::replace(&mut self.said, true)
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
        let mut gate = KeyFrameGate::default();
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
        let mut gate = KeyFrameGate::default();
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
        gate.close();
        gate.keep_back();
        assert!(!gate.says(true), "that was said");
    }
}
