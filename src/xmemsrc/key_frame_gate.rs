// SPDX-License-Identifier: MPL-2.0

//! Drops frames that cannot be decoded, until a key frame arrives.

use std::time::{Duration, Instant};

use xmem_core::FrameMeta;
use xmem_core::key_frame::{self, KeyFrame};

use super::{log::CAT, source::Source};

/// A warning is posted after this time.
const WARN_AFTER: Duration = Duration::from_secs(2);
/// Longer intervals between frames do not count as waiting: the pipeline was probably paused.
const MAX_INTERVAL: Duration = Duration::from_secs(1);

#[derive(Debug, Default)]
pub(super) struct KeyFrameGate {
    gate: key_frame::KeyFrameGate,
    /// When the last frame was dropped.
    last_dropped: Option<Instant>,
    /// How long frames have been dropped.
    waited: Duration,
    warned: bool,
}

impl KeyFrameGate {
    /// Frames are missing, so frames that depend on them cannot be decoded.
    pub(super) fn close(&mut self) {
        self.gate.close();
    }

    /// Whether a frame can be decoded, by its flags. Requests a key frame if not.
    pub(super) fn is_decodable(&mut self, source: Source<'_>, meta: &FrameMeta) -> bool {
        if !source.settings.wait_for_keyframe
            || self.passes(meta)
            || source.stream.has_only_key_frames()
        {
            return true;
        }
        gst::log!(CAT, obj = source.element, "Waiting for a key frame");
        if self.gate.should_request(Instant::now()) {
            source.figures.request(source.element, KeyFrame::NOW);
        }
        self.note_dropped();
        self.warn(source, false);
        false
    }

    /// Warns once that no key frame arrives: after some time, or when the stream ends. Without it, the user would not learn why
    /// there are no buffers.
    pub(super) fn warn(&mut self, source: Source<'_>, is_over: bool) {
        if self.should_warn(is_over) {
            gst::element_warning!(
                source.element,
                gst::StreamError::Decode,
                (
                    "No key frame comes from pool {:?}, and frames are dropped until one comes. Set wait-for-keyframe=false if each \
                     frame can be decoded alone, or make the encoder send key frames more often",
                    source.settings.pool
                )
            );
        }
    }

    /// Whether a frame passes. A key frame ends the wait.
    fn passes(&mut self, meta: &FrameMeta) -> bool {
        let passes = self.gate.passes(meta);
        if self.gate.is_open() {
            self.last_dropped = None;
            self.waited = Duration::ZERO;
        }
        passes
    }

    /// Counts the time for which frames are dropped.
    fn note_dropped(&mut self) {
        let now = Instant::now();
        if let Some(last) = self.last_dropped.replace(now) {
            self.waited += now.duration_since(last).min(MAX_INTERVAL);
        }
    }

    fn should_warn(&mut self, is_over: bool) -> bool {
        let is_time = self.waited >= WARN_AFTER || (is_over && self.last_dropped.is_some());
        is_time && !std::mem::replace(&mut self.warned, true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_warns_once() {
        let mut gate = KeyFrameGate::default();
        gate.close();
        assert!(!gate.should_warn(true), "it dropped nothing");
        gate.note_dropped();
        assert!(!gate.should_warn(false), "it has only begun");
        assert!(gate.should_warn(true));
        // More frames are missing.
        gate.close();
        gate.note_dropped();
        assert!(!gate.should_warn(true), "it has warned");
        assert!(gate.passes(&FrameMeta::new(1)));
        gate.close();
        gate.note_dropped();
        assert!(!gate.should_warn(true), "it has warned");
    }
}
