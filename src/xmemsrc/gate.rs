// SPDX-License-Identifier: MPL-2.0

//! Waiting for a key frame: what comes before it cannot be decoded.

use std::time::{Duration, Instant};

/// How long to wait for a key frame that was asked for.
const ASK_AGAIN: Duration = Duration::from_secs(1);

#[derive(Debug, Default)]
pub(super) struct Gate {
    closed: bool,
    asked: Option<Instant>,
}

impl Gate {
    /// Frames are missing: what refers to them cannot be decoded.
    pub(super) fn close(&mut self) {
        self.closed = true;
        self.asked = None;
    }

    /// Whether a frame may pass. A header may, but nothing is decodable by that.
    pub(super) fn lets_pass(&mut self, flags: gst::BufferFlags) -> bool {
        self.closed &= flags.contains(gst::BufferFlags::DELTA_UNIT);
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
}
