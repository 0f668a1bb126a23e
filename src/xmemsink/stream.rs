// SPDX-License-Identifier: MPL-2.0

//! The stream that the sink gets: its format, its sticky state, the meaning of its times, its beginning and its end.

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicBool, Ordering},
};

use xmem_core::{Attachments, FrameLayout, FrameMeta, Producer, Sticky};

use super::log::CAT;
use crate::{
    lock,
    stream::{
        event::sticky,
        frame::{self, Format, Memory},
        look::Look,
        timeline::Timeline,
    },
};

/// The state of the sink's stream.
#[derive(Debug, Default)]
pub(super) struct Stream {
    state: Mutex<State>,
    /// The pool has the end of the stream.
    eos: AtomicBool,
    /// No frame or event has brought the pool's sticky state to running consumers yet.
    sticky_is_undelivered: AtomicBool,
}

/// Reads and clears a flag that is checked for each frame. Relaxed: nothing else is published with it.
fn take(flag: &AtomicBool) -> bool {
    flag.load(Ordering::Relaxed) && flag.swap(false, Ordering::Relaxed)
}

/// A buffer on its way into the pool.
#[derive(Debug)]
pub(super) struct Described {
    pub(super) meta: FrameMeta,
    /// The memory that its caps require.
    pub(super) memory: Memory,
}

#[derive(Debug, Default)]
struct State {
    format: Arc<Format>,
    /// The layout of the last frame.
    layout: Arc<FrameLayout>,
    /// The size in bytes of a frame for which that layout was found valid.
    valid_size: Option<usize>,
    /// The attachments of the last frame.
    attachments: Attachments,
    /// The source of both. `None`: it has too much to be compared.
    look: Option<Look>,
    sticky: Sticky,
    /// The pool does not have `sticky` yet.
    sticky_is_new: bool,
    /// The timeline in `sticky`.
    timeline: Option<Timeline>,
    reported_copies: bool,
    reported_drops: bool,
}

impl Stream {
    /// Another run begins, or none is left.
    pub(super) fn reset(&self) {
        self.eos.store(false, Ordering::Relaxed);
        self.sticky_is_undelivered.store(false, Ordering::Relaxed);
        let before = std::mem::take(&mut *lock(&self.state));
        drop(before);
    }

    /// Frames of other caps follow.
    pub(super) fn set_caps(&self, caps: &gst::Caps) {
        let format = Arc::new(Format::from_caps(&sticky::shareable(caps.clone())));
        let mut state = lock(&self.state);
        state.format = format;
        state.valid_size = None;
        state.look = None;
        (state.reported_copies, state.reported_drops) = (false, false);
    }

    /// The format that the caps describe.
    pub(super) fn format(&self) -> Arc<Format> {
        lock(&self.state).format.clone()
    }

    /// Checks where a frame's planes lie, and returns the layout in a form that frames share. Every consumer would fail at an
    /// impossible layout.
    pub(super) fn check(
        &self,
        layout: FrameLayout,
        size: usize,
    ) -> Result<Arc<FrameLayout>, &'static str> {
        let mut state = lock(&self.state);
        if *state.layout != layout {
            state.layout = Arc::new(layout);
            state.valid_size = None;
            state.look = None;
        }
        // Frames copied on a device may lack rows.
        if state.valid_size != Some(size)
            && state.format.memory != Memory::Cuda
            && let Some(planes) = &state.layout.video
        {
            state.format.check(planes, size)?;
            state.valid_size = Some(size);
        }
        Ok(state.layout.clone())
    }

    /// The description of a buffer with the look of the last one.
    pub(super) fn describe(&self, buffer: &gst::BufferRef) -> Option<Described> {
        let state = lock(&self.state);
        let is_like_last = state.look.as_ref()?.is_of(buffer);
        is_like_last.then(|| Described {
            meta: frame::describe(buffer, state.layout.clone(), &state.attachments),
            memory: state.format.memory,
        })
    }

    /// The buffer whose layout was checked last has these attachments.
    pub(super) fn note_look(&self, buffer: &gst::BufferRef, attachments: &Attachments) {
        let look = Look::of(buffer);
        let mut state = lock(&self.state);
        state.look = look;
        state.attachments = attachments.clone();
    }

    /// Takes an event over into the sticky state, if it is one of that. `Err`: why that is impossible.
    pub(super) fn note_event(&self, event: &gst::EventRef) -> Result<(), String> {
        let mut state = lock(&self.state);
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

    /// Gives the pool the sticky state if it has changed, with the meaning of the frames' times, if that is known.
    pub(super) fn share(
        &self,
        sink: &gst_base::BaseSink,
        producer: &Producer,
        timeline: Option<Timeline>,
    ) -> Result<(), gst::FlowError> {
        let mut state = lock(&self.state);
        let is_known = timeline.is_none() || state.timeline == timeline;
        if is_known && !state.sticky_is_new {
            return Ok(());
        }
        if let Some(timeline) = timeline
            && !is_known
        {
            state.timeline = Some(timeline);
            state.sticky.set(sticky::TIMELINE, timeline.to_text());
        }
        state.sticky_is_new = false;
        let sticky = state.sticky.clone();
        drop(state);
        self.share_anew(sink, producer, &sticky)
    }

    #[cold]
    fn share_anew(
        &self,
        sink: &gst_base::BaseSink,
        producer: &Producer,
        sticky: &Sticky,
    ) -> Result<(), gst::FlowError> {
        match producer.set_sticky(sticky) {
            Ok(version) => {
                self.sticky_is_undelivered.store(true, Ordering::Relaxed);
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

    /// An event has brought the sticky state to consumers. Returns whether that was due.
    pub(super) fn note_sticky_delivered(&self) -> bool {
        take(&self.sticky_is_undelivered)
    }

    /// The stream goes on, or a new one begins. Returns whether it was over.
    pub(super) fn begin(&self) -> bool {
        take(&self.eos)
    }

    /// The stream is over.
    pub(super) fn end(&self) {
        self.eos.store(true, Ordering::Relaxed);
    }

    /// Whether no copy of this stream's frames was reported yet. Then it counts as reported.
    pub(super) fn reports_copy(&self) -> bool {
        !std::mem::replace(&mut lock(&self.state).reported_copies, true)
    }

    /// The same for frames that are dropped.
    pub(super) fn reports_drop(&self) -> bool {
        !std::mem::replace(&mut lock(&self.state).reported_drops, true)
    }
}
