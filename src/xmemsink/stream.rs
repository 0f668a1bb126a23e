// SPDX-License-Identifier: MPL-2.0

//! The stream that the sink gets: its sticky state, what its times stand for, its beginning and its end.

use std::sync::Arc;

use gst::subclass::prelude::*;
use xmem_core::{FrameMeta, Sticky, VideoLayout};

use super::{
    base::Data,
    imp::{CAT, XmemSink},
};
use crate::{
    event::sticky,
    frame::{Format, Memory},
    lock::lock,
    timeline::Timeline,
};

/// What the sink knows of its stream.
#[derive(Debug, Default)]
pub(super) struct Stream {
    pub(super) format: Arc<Format>,
    /// The last layout of planes that is right, and the size of its frame in bytes.
    pub(super) checked: Option<(VideoLayout, u64)>,
    sticky: Sticky,
    /// The pool does not have `sticky` yet.
    sticky_is_new: bool,
    /// No frame or event has brought `sticky` to running consumers yet.
    pub(super) sticky_is_untold: bool,
    /// The pool was told that the stream is over.
    eos: bool,
    /// What `sticky` says of the frames' times. `None`: nothing.
    timeline: Option<Timeline>,
    pub(super) said_copied: bool,
    pub(super) said_dropped: bool,
}

impl Stream {
    /// Checks where the planes are said to be, when that changes. Every consumer would end over it.
    pub(super) fn check(&mut self, meta: &FrameMeta) -> Result<(), &'static str> {
        // What is copied on a device may lack rows.
        let Some(layout) = meta.video.filter(|_| self.format.memory != Memory::Cuda) else {
            return Ok(());
        };
        if self.checked != Some((layout, meta.size)) {
            let size = usize::try_from(meta.size).unwrap_or(usize::MAX);
            self.format.check(&layout, size)?;
            self.checked = Some((layout, meta.size));
        }
        Ok(())
    }
}

impl XmemSink {
    /// Takes an event over into the sticky state, if it is one of that. `Err`: why that cannot be.
    pub(super) fn note_sticky(&self, event: &gst::EventRef) -> Result<(), String> {
        let mut stream = lock(&self.stream);
        if event.type_() == gst::EventType::StreamStart {
            stream.timeline = None;
        }
        let before = stream.sticky.clone();
        let result = sticky::update(&mut stream.sticky, event);
        if stream.sticky != before {
            stream.sticky_is_new = true;
        }
        result
    }

    /// No consumer could use frames without their caps.
    pub(super) fn refuse_caps(&self, reason: &str) {
        gst::element_imp_error!(
            self,
            gst::StreamError::Format,
            ("The caps cannot be shared: {reason}. Have upstream make others, or put `capssetter replace=true` with others \
                 before xmemsink")
        );
    }

    /// The stream goes on, or a new one begins.
    pub(super) fn begin(&self) {
        let was_over = std::mem::take(&mut lock(&self.stream).eos);
        if was_over && let Some(started) = self.started() {
            started.producer.set_eos(false);
        }
    }

    /// The stream is over. Lossless consumers get what is left first. `false`: stopped before that.
    pub(super) fn end(&self, event: &gst::EventRef) -> bool {
        let Some(started) = self.started() else {
            return false;
        };
        if !self.share_rest(&started, event) {
            return false;
        }
        lock(&self.stream).eos = true;
        started.producer.set_eos(true);
        if !started.is_lossless() {
            return true;
        }
        gst::debug!(
            CAT,
            imp = self,
            "Waiting until consumers have got all frames"
        );
        self.wait(Data::Event(event), |cancel| {
            started.producer.drain(None, cancel)
        })
        .is_ok()
    }

    /// Takes what the frames' times stand for over into the sticky state.
    pub(super) fn note_timeline(&self, timeline: Timeline) {
        let mut stream = lock(&self.stream);
        if stream.timeline.replace(timeline) != Some(timeline) {
            stream.sticky.set(sticky::TIMELINE, timeline.to_text());
            stream.sticky_is_new = true;
        }
    }

    /// Gives the pool the sticky state if it has changed.
    pub(super) fn share_sticky(&self) -> Result<(), gst::FlowError> {
        let sticky = {
            let mut stream = lock(&self.stream);
            if !std::mem::take(&mut stream.sticky_is_new) {
                return Ok(());
            }
            stream.sticky.clone()
        };
        let Some(started) = self.started() else {
            return Err(gst::FlowError::Flushing);
        };
        match started.producer.set_sticky(&sticky) {
            Ok(version) => {
                lock(&self.stream).sticky_is_untold = true;
                gst::debug!(
                    CAT,
                    imp = self,
                    "Sticky state {version}: {:?}",
                    sticky.text(sticky::CAPS)
                );
                Ok(())
            }
            Err(error) => {
                gst::element_imp_error!(
                    self,
                    gst::ResourceError::NoSpaceLeft,
                    ("Cannot share the caps: {error}")
                );
                Err(gst::FlowError::Error)
            }
        }
    }
}
