// SPDX-License-Identifier: MPL-2.0

//! The stream that the sink gets: its format, its sticky state, what its times stand for, its beginning and its end.

use std::sync::{Arc, Mutex};

use xmem_core::{FrameMeta, Producer, Sticky, VideoLayout};

use super::log::CAT;
use crate::{
    event::sticky,
    frame::{Format, Memory},
    lock,
    look::Look,
    timeline::Timeline,
};

/// What the sink knows of its stream.
#[derive(Debug, Default)]
pub(super) struct Stream(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    format: Arc<Format>,
    /// The last layout of planes that is right, and the size of its frame in bytes.
    checked: Option<(VideoLayout, u64)>,
    /// The last frame's description, for the next one that looks like it.
    described: Option<(Look, Arc<FrameMeta>)>,
    sticky: Sticky,
    /// The pool does not have `sticky` yet.
    sticky_is_new: bool,
    /// No frame or event has brought `sticky` to running consumers yet.
    sticky_is_undelivered: bool,
    /// The pool has the end of the stream.
    eos: bool,
    /// What `sticky` has of the frames' times.
    timeline: Option<Timeline>,
    reported_copies: bool,
    reported_drops: bool,
}

impl Stream {
    /// Another run begins, or none is left.
    pub(super) fn reset(&self) {
        let before = std::mem::take(&mut *lock(&self.0));
        drop(before);
    }

    /// Frames of other caps follow.
    pub(super) fn set_caps(&self, caps: &gst::Caps) {
        let format = Arc::new(Format::from_caps(&sticky::shareable(caps.clone())));
        let mut state = lock(&self.0);
        state.format = format;
        state.checked = None;
        state.described = None;
        (state.reported_copies, state.reported_drops) = (false, false);
    }

    /// The format that the caps describe.
    pub(super) fn format(&self) -> Arc<Format> {
        lock(&self.0).format.clone()
    }

    /// Checks where a frame's planes lie, when that changes. Every consumer would end over a layout that cannot be.
    pub(super) fn check(&self, meta: &FrameMeta) -> Result<(), &'static str> {
        let mut state = lock(&self.0);
        // What is copied on a device may lack rows.
        let Some(layout) = meta.video.filter(|_| state.format.memory != Memory::Cuda) else {
            return Ok(());
        };
        if state.checked != Some((layout, meta.size)) {
            let size = usize::try_from(meta.size).unwrap_or(usize::MAX);
            state.format.check(&layout, size)?;
            state.checked = Some((layout, meta.size));
        }
        Ok(())
    }

    /// The description of the last frame, if that looks so. It is right but for what differs in each frame.
    pub(super) fn take_description(&self, look: Look) -> Option<Arc<FrameMeta>> {
        let mut state = lock(&self.0);
        let (_, meta) = state.described.take_if(|(last, _)| *last == look)?;
        Some(meta)
    }

    /// Keeps the description of a frame for the next one.
    pub(super) fn keep_description(&self, look: Look, meta: Arc<FrameMeta>) {
        lock(&self.0).described = Some((look, meta));
    }

    /// Takes an event over into the sticky state, if it is one of that. `Err`: why that cannot be.
    pub(super) fn note_event(&self, event: &gst::EventRef) -> Result<(), String> {
        let mut state = lock(&self.0);
        if event.type_() == gst::EventType::StreamStart {
            state.timeline = None;
        }
        let before = state.sticky.clone();
        let result = sticky::update(&mut state.sticky, event);
        if state.sticky != before {
            state.sticky_is_new = true;
        }
        result
    }

    /// Gives the pool the sticky state if it has changed, with what the frames' times stand for, if that is known.
    pub(super) fn share(
        &self,
        sink: &gst_base::BaseSink,
        producer: &Producer,
        timeline: Option<Timeline>,
    ) -> Result<(), gst::FlowError> {
        let sticky = {
            let mut state = lock(&self.0);
            if let Some(timeline) = timeline
                && state.timeline.replace(timeline) != Some(timeline)
            {
                state.sticky.set(sticky::TIMELINE, timeline.to_text());
                state.sticky_is_new = true;
            }
            if !std::mem::take(&mut state.sticky_is_new) {
                return Ok(());
            }
            state.sticky.clone()
        };
        match producer.set_sticky(&sticky) {
            Ok(version) => {
                lock(&self.0).sticky_is_undelivered = true;
                gst::debug!(
                    CAT,
                    obj = sink,
                    "Sticky state {version}: {:?}",
                    sticky.text(sticky::CAPS)
                );
                Ok(())
            }
            Err(error) => {
                gst::element_error!(
                    sink,
                    gst::ResourceError::NoSpaceLeft,
                    ("Cannot share the caps: {error}")
                );
                Err(gst::FlowError::Error)
            }
        }
    }

    /// A frame or an event has brought the sticky state to consumers. Returns whether that was due.
    pub(super) fn note_sticky_delivered(&self) -> bool {
        std::mem::take(&mut lock(&self.0).sticky_is_undelivered)
    }

    /// The stream goes on, or a new one begins. Returns whether it was over.
    pub(super) fn begin(&self) -> bool {
        std::mem::take(&mut lock(&self.0).eos)
    }

    /// The stream is over.
    pub(super) fn end(&self) {
        lock(&self.0).eos = true;
    }

    /// Whether no copy of this stream's frames was reported yet. Then it counts as reported.
    pub(super) fn reports_copy(&self) -> bool {
        !std::mem::replace(&mut lock(&self.0).reported_copies, true)
    }

    /// The same for frames that are dropped.
    pub(super) fn reports_drop(&self) -> bool {
        !std::mem::replace(&mut lock(&self.0).reported_drops, true)
    }
}
