// SPDX-License-Identifier: MPL-2.0

//! The key frames of an encoded stream: frames that refer to one that was not sent are no use.

use std::time::{Duration, Instant};

use xmem_core::{FrameMeta, Sticky};

/// The request that xmemsink answers with a key frame, with all headers, as soon as possible.
pub(super) const REQUEST: (&str, [u8; 9]) = ("force-key-unit", [1, 0, 0, 0, 0, 0, 0, 0, 0]);

/// How long to wait for a key frame that was asked for.
const ASK_AGAIN: Duration = Duration::from_secs(1);

/// GST_BUFFER_FLAG_DELTA_UNIT and GST_BUFFER_FLAG_HEADER.
const DELTA_UNIT: u32 = 1 << 13;
const HEADER: u32 = 1 << 10;

/// Whether frames refer to other frames, by their caps. Frames without caps do not.
pub(super) fn is_encoded(sticky: &Sticky) -> bool {
    let caps = sticky.text("caps").unwrap_or_default();
    let end = caps.find([',', ';', '(']).unwrap_or(caps.len());
    let name = caps.get(..end).unwrap_or_default().trim();
    let is_single =
        name.ends_with("/x-raw") || name.starts_with("image/") || name == "application/x-yuv4mpeg";
    name.contains('/') && !is_single
}

/// Keeps frames back until there is a key frame.
#[derive(Debug, Default)]
pub(super) struct KeyFrameGate {
    is_open: bool,
    asked: Option<Instant>,
}

impl KeyFrameGate {
    /// A frame is missing.
    pub(super) fn close(&mut self) {
        *self = Self::default();
    }

    /// Whether a frame may pass. A header may, but the gate stays closed.
    pub(super) fn passes(&mut self, meta: &FrameMeta) -> bool {
        self.is_open |= meta.flags & DELTA_UNIT == 0;
        self.is_open || meta.flags & HEADER != 0
    }

    /// Whether it is time to ask for a key frame. Then it counts as asked for.
    pub(super) fn asks(&mut self, now: Instant) -> bool {
        let is_asked = |asked| now.saturating_duration_since(asked) < ASK_AGAIN;
        if self.is_open || self.asked.is_some_and(is_asked) {
            return false;
        }
        self.asked = Some(now);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(flags: u32) -> FrameMeta {
        FrameMeta {
            flags,
            ..FrameMeta::new(1)
        }
    }

    #[test]
    fn frames_wait_for_a_key_frame() {
        let mut gate = KeyFrameGate::default();
        assert!(!gate.passes(&frame(DELTA_UNIT)));
        assert!(gate.passes(&frame(DELTA_UNIT | HEADER)));
        assert!(!gate.passes(&frame(DELTA_UNIT)));
        assert!(gate.passes(&frame(0)) && gate.passes(&frame(DELTA_UNIT)));
        gate.close();
        assert!(!gate.passes(&frame(DELTA_UNIT)));
    }

    #[test]
    fn a_key_frame_is_asked_for_once_a_second() {
        let (mut gate, now) = (KeyFrameGate::default(), Instant::now());
        assert!(gate.asks(now) && !gate.asks(now) && gate.asks(now + ASK_AGAIN));
        assert!(gate.passes(&frame(0)) && !gate.asks(now + 9 * ASK_AGAIN));
    }

    #[test]
    fn caps_tell_what_is_encoded() {
        for (caps, encoded) in [
            ("video/x-h264, stream-format=(string)byte-stream", true),
            ("audio/mpeg", true),
            ("video/x-raw,format=NV12", false),
            ("video/x-raw(memory:DMABuf), format=NV12", false),
            ("image/jpeg", false),
            ("", false),
        ] {
            let mut sticky = Sticky::new();
            sticky.set("caps", caps);
            assert_eq!(is_encoded(&sticky), encoded, "{caps}");
        }
        assert!(!is_encoded(&Sticky::new()));
    }
}
