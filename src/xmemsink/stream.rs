// SPDX-License-Identifier: MPL-2.0

//! The stream that the sink receives: format, sticky state, timeline, beginning and end.

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicBool, Ordering},
};

use xmem_core::{Attachments, FrameLayout, FrameMeta, Producer, Sticky};

use super::{log::CAT, messages};
use crate::{
    lock,
    stream::{
        description_key::DescriptionKey,
        drm,
        event::sticky,
        frame::{self, Format, Memory},
        timeline::Timeline,
    },
};

/// The state of the sink's stream.
#[derive(Debug, Default)]
pub(super) struct Stream {
    state: Mutex<State>,
    /// The end of the stream was given to the pool.
    eos: AtomicBool,
    /// The sticky state changed, and no frame or event has delivered it to the consumers yet.
    sticky_is_undelivered: AtomicBool,
}

/// Reads and clears a flag that is checked for each frame. Relaxed: no other data depends on it.
fn take(flag: &AtomicBool) -> bool {
    flag.load(Ordering::Relaxed) && flag.swap(false, Ordering::Relaxed)
}

/// The description of a buffer that is not published yet.
#[derive(Debug)]
pub(super) struct Described {
    pub(super) meta: FrameMeta,
    /// The memory that its caps require.
    pub(super) memory: Memory,
}

/// A frame does not match its caps.
#[derive(Debug)]
pub(super) struct Mismatch {
    pub(super) reason: &'static str,
    /// The number of such frames since the last one that matched.
    pub(super) in_a_row: u32,
}

#[derive(Debug, Default)]
struct State {
    format: Arc<Format>,
    /// The layout of the last frame.
    layout: Arc<FrameLayout>,
    /// The frame size in bytes for which that layout is valid.
    valid_size: Option<usize>,
    /// The number of frames since the last one that matched its caps.
    mismatches: u32,
    /// The attachments of the last frame.
    attachments: Attachments,
    /// The properties of the last frame that decide its layout and attachments. `None`: it has other metas, so its description
    /// is not reused.
    key: Option<DescriptionKey>,
    /// The caps of DMA buffers in place of those in `sticky`, while no frame has shown with which of them consumers can read it.
    doubted_caps: Option<gst::Caps>,
    sticky: Sticky,
    /// The pool does not have the present `sticky` yet.
    sticky_is_new: bool,
    /// The timeline in `sticky`.
    timeline: Option<Timeline>,
    reported_scarcity: bool,
    reported_wait: bool,
    reported_copies: bool,
    reported_drops: bool,
}

impl State {
    fn set_format(&mut self, caps: &gst::Caps) {
        self.format = Arc::new(Format::from_caps(caps));
        self.valid_size = None;
        self.key = None;
    }
}

impl Stream {
    /// Resets at the beginning and end of a run.
    pub(super) fn reset(&self) {
        self.eos.store(false, Ordering::Relaxed);
        self.sticky_is_undelivered.store(false, Ordering::Relaxed);
        let before = std::mem::take(&mut *lock(&self.state));
        drop(before);
    }

    /// Sets the caps of the next frames.
    pub(super) fn set_caps(&self, caps: &gst::Caps) {
        let caps = sticky::shareable(caps.clone());
        let readable = drm::readable(&caps);
        let mut state = lock(&self.state);
        state.set_format(readable.as_ref().unwrap_or(&caps));
        state.doubted_caps = readable.map(|_| caps);
        (state.reported_copies, state.reported_drops) = (false, false);
    }

    /// Called with each frame that is described anew. The first one decides whether consumers get caps of DMA buffers.
    #[cold]
    pub(super) fn settle_caps(&self, buffer: &gst::BufferRef) {
        let mut state = lock(&self.state);
        let Some(caps) = state.doubted_caps.take() else {
            return;
        };
        let format = state.format.video.as_ref().map(|info| info.format());
        if format.is_some_and(|format| drm::is_readable(buffer, format)) {
            return;
        }
        state.set_format(&caps);
        // It fails for fields that consumers cannot read, and the caps in `sticky` have the same ones.
        let _ = sticky::set_caps(&mut state.sticky, &caps);
        state.sticky_is_new = true;
    }

    /// The format that the caps describe.
    pub(super) fn format(&self) -> Arc<Format> {
        lock(&self.state).format.clone()
    }

    /// Checks where the planes of a frame are, and returns the layout in a form that frames share. Consumers would refuse an
    /// invalid layout.
    pub(super) fn check(
        &self,
        layout: FrameLayout,
        size: usize,
    ) -> Result<Arc<FrameLayout>, Mismatch> {
        let mut state = lock(&self.state);
        if *state.layout != layout {
            state.layout = Arc::new(layout);
            state.valid_size = None;
            state.key = None;
        }
        // A frame that will be copied on a device may lack rows.
        if state.valid_size != Some(size) && state.format.memory != Memory::Cuda {
            if let Err(reason) = state.format.check(state.layout.video.as_ref(), size) {
                state.mismatches += 1;
                state.key = None;
                let in_a_row = state.mismatches;
                return Err(Mismatch { reason, in_a_row });
            }
            state.valid_size = Some(size);
        }
        state.mismatches = 0;
        Ok(state.layout.clone())
    }

    /// The description of the last frame, if it applies to this buffer too.
    pub(super) fn describe(&self, buffer: &gst::BufferRef) -> Option<Described> {
        let state = lock(&self.state);
        let is_like_last = state.key.as_ref()?.matches(buffer);
        is_like_last.then(|| Described {
            meta: frame::describe(buffer, state.layout.clone(), &state.attachments),
            memory: state.format.memory,
        })
    }

    /// Stores the attachments of the buffer whose layout was checked last.
    pub(super) fn note_described(&self, buffer: &gst::BufferRef, attachments: &Attachments) {
        let key = DescriptionKey::of(buffer);
        let mut state = lock(&self.state);
        state.key = key;
        state.attachments = attachments.clone();
    }

    /// Adds a sticky event to the sticky state. Ignores other events. `Err`: why it cannot be added.
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

    /// Gives the pool the sticky state, with the timeline if it is known. Does nothing if neither changed.
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
        let too_long = timeline.and_then(|timeline| {
            let kept = timeline.kept.filter(|kept| *kept < timeline.latency)?;
            (!std::mem::replace(&mut state.reported_wait, true)).then_some((timeline.latency, kept))
        });
        drop(state);
        if let Some((latency, kept)) = too_long {
            messages::warn_of_latency(sink, latency, kept);
        }
        self.share_changed(sink, producer, &sticky)
    }

    #[cold]
    fn share_changed(
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

    /// An event delivered the sticky state to the consumers. Returns whether that was due.
    pub(super) fn note_sticky_delivered(&self) -> bool {
        take(&self.sticky_is_undelivered)
    }

    /// The stream continues or a new one begins. Returns whether it had ended.
    pub(super) fn begin(&self) -> bool {
        take(&self.eos)
    }

    /// The stream has ended.
    pub(super) fn end(&self) {
        self.eos.store(true, Ordering::Relaxed);
    }

    /// Returns true once for each format: a copy of a frame is to be reported.
    pub(super) fn is_first_copy(&self) -> bool {
        !std::mem::replace(&mut lock(&self.state).reported_copies, true)
    }

    /// Returns true once: upstream has few buffers left.
    pub(super) fn is_first_scarcity(&self) -> bool {
        !std::mem::replace(&mut lock(&self.state).reported_scarcity, true)
    }

    /// Returns true once for each format: a dropped frame is to be reported.
    pub(super) fn is_first_drop(&self) -> bool {
        !std::mem::replace(&mut lock(&self.state).reported_drops, true)
    }
}
