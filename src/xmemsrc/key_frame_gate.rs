// SPDX-License-Identifier: MPL-2.0

//! Waiting for a key frame: frames before it cannot be decoded.

use std::time::{Duration, Instant};

use xmem_core::FrameMeta;

use super::{log::CAT, source::Source};
use crate::stream::event::key_frame::KeyFrame;

/// How long to wait for a key frame that was asked for.
const ASK_AGAIN: Duration = Duration::from_secs(1);

/// After this long there is a warning.
const WARN_AFTER: Duration = Duration::from_secs(2);
/// Where frames are further apart, a pipeline is paused, and the delay is not that of the key frame.
const MOST_APART: Duration = Duration::from_secs(1);

#[derive(Debug, Default)]
pub(super) struct KeyFrameGate {
    closed: bool,
    asked: Option<Instant>,
    /// When it last kept a frame back.
    kept_back: Option<Instant>,
    /// How long it has kept frames back.
    waited: Duration,
    warned: bool,
}

impl KeyFrameGate {
    /// Frames are missing: those that refer to them cannot be decoded.
    pub(super) fn close(&mut self) {
        self.closed = true;
        self.asked = None;
    }

    /// Whether a frame can be decoded, by its flags. Asks for a key frame if not.
    pub(super) fn is_decodable(&mut self, source: Source<'_>, meta: &FrameMeta) -> bool {
        let flags = gst::BufferFlags::from_bits_truncate(meta.flags);
        if !source.settings.wait_for_keyframe
            || self.lets_pass(flags)
            || source.stream.has_only_key_frames()
        {
            return true;
        }
        gst::log!(CAT, obj = source.element, "Waiting for a key frame");
        if self.asks() {
            source.figures.request(source.element, KeyFrame::NOW);
        }
        self.keep_back();
        self.warn(source, false);
        false
    }

    /// Warns once that there is no key frame: after a while, or when no more frames come. Otherwise nothing would explain
    /// that no buffers come.
    pub(super) fn warn(&mut self, source: Source<'_>, is_over: bool) {
        if self.warns(is_over) {
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

    /// Whether a frame may pass. A header may, but the gate stays closed.
    fn lets_pass(&mut self, flags: gst::BufferFlags) -> bool {
        if !flags.contains(gst::BufferFlags::DELTA_UNIT) {
            *self = Self {
                warned: self.warned,
                ..Self::default()
            };
        }
        !self.closed || flags.contains(gst::BufferFlags::HEADER)
    }

    /// Whether it is time to ask for a key frame. Then it counts as asked for.
    fn asks(&mut self) -> bool {
        let asks = self.asked.is_none_or(|asked| asked.elapsed() >= ASK_AGAIN);
        if asks {
            self.asked = Some(Instant::now());
        }
        asks
    }

    /// Counts the time that frames are kept back.
    fn keep_back(&mut self) {
        let now = Instant::now();
        if let Some(last) = self.kept_back.replace(now) {
            self.waited += now.duration_since(last).min(MOST_APART);
        }
    }

    fn warns(&mut self, is_over: bool) -> bool {
        let is_time = self.waited >= WARN_AFTER || (is_over && self.kept_back.is_some());
        is_time && !std::mem::replace(&mut self.warned, true)
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
    fn it_warns_once() {
        let mut gate = KeyFrameGate::default();
        gate.close();
        assert!(!gate.warns(true), "it kept nothing back");
        gate.keep_back();
        assert!(!gate.warns(false), "it has only begun");
        assert!(gate.warns(true));
        // More frames are missed.
        gate.close();
        gate.keep_back();
        assert!(!gate.warns(true), "it has warned");
        assert!(gate.lets_pass(gst::BufferFlags::empty()));
        gate.close();
        gate.keep_back();
        assert!(!gate.warns(true), "it has warned");
    }
}
