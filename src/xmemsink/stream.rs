// SPDX-License-Identifier: MPL-2.0

//! The stream that the sink receives: format, sticky state, timeline, beginning and end, and frames that did not reach the pool.

use std::sync::{
    Arc, Mutex,
    atomic::{
        AtomicBool, AtomicU64,
        Ordering::{self, Relaxed},
    },
};

use gst_base::prelude::*;
use xmem_core::{Attachments, Delivery, FrameLayout, FrameMeta, Producer, Sticky};

use super::base::CAT;
use crate::{
    lock,
    stream::{
        description_key::DescriptionKey,
        drm,
        frame::{self, Format, Memory},
        sticky,
        timeline::Timeline,
    },
};

/// The state of the sink's stream.
#[derive(Debug, Default)]
pub(super) struct SinkStream {
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
    reported_wait: bool,
    reported_shortage: bool,
    /// By [`Report`].
    reported: [bool; 3],
}

/// The pool does not have the stream's present state for lack of memory or descriptors, and the next frame tries again. Until then
/// consumers would read frames by the wrong caps.
pub(super) const UNSHARED: gst::FlowError = gst::FlowError::CustomError1;

/// Warnings about frames.
#[derive(Debug, Clone, Copy)]
pub(super) enum Report {
    /// Once for each format.
    Copies,
    /// Once for each format.
    Drops,
    Scarcity,
}

impl State {
    fn set_format(&mut self, caps: &gst::Caps) {
        self.format = Arc::new(Format::from_caps(caps));
        self.valid_size = None;
        self.key = None;
    }
}

impl SinkStream {
    /// Resets at the beginning and end of a run.
    pub(super) fn reset(&self) {
        self.eos.store(false, Ordering::Relaxed);
        self.sticky_is_undelivered.store(false, Ordering::Relaxed);
        let before = std::mem::take(&mut *lock(&self.state));
        drop(before);
    }

    /// The pads have lost their sticky events, and another stream begins. The pool keeps the state of the previous one, which its old
    /// frames have, until it gets the next. What was reported stays reported.
    pub(super) fn forget(&self) {
        let mut state = lock(&self.state);
        let before = std::mem::take(&mut *state);
        state.reported_wait = before.reported_wait;
        state.reported_shortage = before.reported_shortage;
        state.reported = before.reported;
        // Without the lock, because it may release what the caps refer to.
        drop(state);
        drop(before);
    }

    /// Sets the caps of the next frames, which differ from those before. `Err`: why a consumer could not read them.
    pub(super) fn set_caps(&self, caps: &gst::Caps) -> Result<(), String> {
        let caps = sticky::shareable(caps.clone());
        let readable = drm::readable(&caps);
        let state = &mut *lock(&self.state);
        let shared = readable.as_ref().unwrap_or(&caps);
        state.sticky_is_new |= sticky::set_caps(&mut state.sticky, shared)?;
        state.set_format(shared);
        state.doubted_caps = readable.map(|_| caps);
        let [copies, drops, _scarcity] = &mut state.reported;
        (*copies, *drops) = (false, false);
        Ok(())
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
        if !state.key.as_ref()?.matches(buffer) {
            return None;
        }
        Some(Described {
            meta: frame::describe(buffer, state.layout.clone(), &state.attachments),
            memory: state.format.memory,
        })
    }

    /// Stores the attachments of the buffer whose layout was checked last.
    pub(super) fn note_described(&self, buffer: &gst::BufferRef, attachments: &Attachments) {
        let key = DescriptionKey::of(buffer);
        let mut state = lock(&self.state);
        // Samples of the next buffer may be outside of the segment.
        state.key = key.filter(|_| state.format.audio_info.is_none());
        state.attachments = attachments.clone();
    }

    /// Adds a sticky event to the sticky state. Ignores other events, and caps, because a repeated event with equal caps does not
    /// undo what [`settle_caps`](Self::settle_caps) has found out. `Err`: why it cannot be added.
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
    pub(super) fn push_sticky(
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
            warn_of_latency(sink, latency, kept);
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
            // Lossless consumers may not miss a frame.
            Err(error) if error.is_shortage() && producer.delivery() == Delivery::Live => {
                let mut state = lock(&self.state);
                state.sticky_is_new = true;
                let is_reported = std::mem::replace(&mut state.reported_shortage, true);
                drop(state);
                if !is_reported {
                    gst::element_warning!(
                        sink,
                        gst::ResourceError::NoSpaceLeft,
                        ("Frames are dropped until the stream's new caps, segment or tags can be shared: {error}")
                    );
                }
                Err(UNSHARED)
            }
            Err(error) => {
                gst::element_error!(
                    sink,
                    gst::ResourceError::NoSpaceLeft,
                    ("Cannot share the stream's caps, segment or tags: {error}")
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

    /// Whether to report this: true once.
    #[expect(
        clippy::indexing_slicing,
        reason = "a place for each variant of `Report`"
    )]
    pub(super) fn reports(&self, report: Report) -> bool {
        !std::mem::replace(&mut lock(&self.state).reported[report as usize], true)
    }
}

/// Warns that the pool cannot keep frames as long as upstream's latency. The caller holds no lock.
#[cold]
fn warn_of_latency(sink: &gst_base::BaseSink, latency: gst::ClockTime, kept: gst::ClockTime) {
    gst::element_warning!(
        sink,
        gst::ResourceError::NoSpaceLeft,
        (
            "Upstream's latency is {} ms, and the pool can keep frames of this size for {} ms. Consumers that wait for the frames' \
             times wait for that time only, and show no frame that comes later. Reduce the latency of upstream, such as \
             latency=200 of rtspsrc, or set pace=always. Raise history, max-slots or max-bytes if they are set",
            latency.mseconds(),
            kept.mseconds()
        )
    );
}

/// No time has this value.
const NONE: u64 = u64::MAX;

/// Identifies a buffer. Its times distinguish it from earlier buffers at the same address.
#[derive(Debug, Default)]
struct PendingBuffer {
    /// 0: no buffer.
    address: AtomicU64,
    pts: AtomicU64,
    dts: AtomicU64,
}

impl PendingBuffer {
    /// Stores another buffer. Returns whether a different one was stored before.
    fn replace(&self, buffer: &gst::BufferRef) -> bool {
        let number = |time: Option<gst::ClockTime>| time.map_or(NONE, gst::ClockTime::nseconds);
        let it = [
            (&self.address, buffer.as_ptr().addr() as u64),
            (&self.pts, number(buffer.pts())),
            (&self.dts, number(buffer.dts())),
        ];
        let is_other = self.is_set() && it.iter().any(|(word, now)| word.load(Relaxed) != *now);
        for (word, now) in it {
            word.store(now, Relaxed);
        }
        is_other
    }

    fn is_set(&self) -> bool {
        self.address.load(Relaxed) != 0
    }

    fn clear(&self) {
        self.address.store(0, Relaxed);
    }
}

/// Only a thread that holds the pad's stream lock changes these fields. Other threads read the counts. Relaxed: no other data
/// depends on them.
#[derive(Debug, Default)]
pub(super) struct Gaps {
    /// The buffer that arrived and is not rendered yet.
    pending: PendingBuffer,
    /// Frames before the next one are missing.
    are_missing: AtomicBool,
    /// How many buffers arrived and were not rendered. Includes those that waited when a flush or the end of the stream came.
    skipped: AtomicU64,
    /// How many samples were removed from rendered buffers of raw sound.
    clipped: AtomicU64,
}

impl Gaps {
    /// A buffer arrived: GstBaseSink calls `get_times`, once or several times, before it renders a buffer and before it drops
    /// one that is late or outside of the segment. If the previous buffer was not rendered, it counts as skipped.
    pub(super) fn note_arrival(&self, buffer: &gst::BufferRef) {
        if self.pending.replace(buffer) {
            self.note_skipped();
        }
    }

    /// How many buffers arrived and were not rendered. A list that is dropped as a whole counts as one.
    pub(super) fn skipped(&self) -> u64 {
        self.skipped.load(Relaxed)
    }

    /// The pending buffer is rendered. Returns whether frames before it are missing.
    pub(super) fn note_rendered(&self) -> bool {
        self.pending.clear();
        take(&self.are_missing)
    }

    /// A rendered buffer was not published, and is counted elsewhere.
    pub(super) fn note_missing(&self) {
        self.are_missing.store(true, Relaxed);
    }

    /// A buffer was not published, and is not counted elsewhere.
    pub(super) fn note_skipped(&self) {
        self.note_missing();
        self.skipped.fetch_add(1, Relaxed);
    }

    pub(super) fn clipped(&self) -> u64 {
        self.clipped.load(Relaxed)
    }

    /// Samples outside of the segment are removed from the buffer that is rendered.
    pub(super) fn note_clipped(&self, samples: u64) {
        self.clipped.fetch_add(samples, Relaxed);
    }

    /// No buffer follows for now. A pending buffer counts as skipped.
    pub(super) fn note_end(&self) {
        if self.pending.is_set() {
            self.pending.clear();
            self.note_skipped();
        }
    }

    /// Starts a new run.
    pub(super) fn reset(&self) {
        self.pending.clear();
        self.are_missing.store(false, Relaxed);
        self.skipped.store(0, Relaxed);
        self.clipped.store(0, Relaxed);
    }
}

/// How many frames were later than max-lateness. GstBaseSink counts them, but from 0 again after a pause, a flush and a segment.
#[derive(Debug, Default)]
pub(super) struct Late {
    state: Mutex<LateState>,
}

#[derive(Debug, Default)]
struct LateState {
    total: u64,
    /// The count of GstBaseSink that is part of `total`.
    included: u64,
}

impl Late {
    /// Adds what GstBaseSink has counted, and returns the sum. Called before GstBaseSink counts from 0 again, and directly after
    /// that, because its count could otherwise reach the previous one without being noticed.
    pub(super) fn update(&self, sink: &gst_base::BaseSink) -> u64 {
        // Read under the lock, since an older count would look like a restart. GstBaseSink only takes the object lock for it.
        let mut state = lock(&self.state);
        let present = counted(sink);
        state.add(present);
        state.total
    }

    /// Starts a new run.
    pub(super) fn reset(&self, sink: &gst_base::BaseSink) {
        let mut state = lock(&self.state);
        *state = LateState {
            total: 0,
            included: counted(sink),
        };
    }
}

impl LateState {
    fn add(&mut self, present: u64) {
        let is_restarted = present < self.included;
        let before = if is_restarted { 0 } else { self.included };
        self.total += present - before;
        self.included = present;
    }
}

/// GstBaseSink's own count.
fn counted(sink: &gst_base::BaseSink) -> u64 {
    sink.stats().get("dropped").unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_count_that_restarts_is_summed_up() {
        let mut late = LateState::default();
        for (present, total) in [(0, 0), (3, 3), (3, 3), (4, 4), (0, 4), (4, 8), (1, 9)] {
            late.add(present);
            assert_eq!(late.total, total, "at {present}");
        }
    }

    #[test]
    fn a_buffer_that_is_not_rendered_leaves_a_gap() {
        gst::init().unwrap();
        let mut buffer = gst::Buffer::new();
        let gaps = Gaps::default();
        let mut arrive = |seconds| {
            // All buffers have the same address.
            buffer
                .get_mut()
                .unwrap()
                .set_pts(gst::ClockTime::from_seconds(seconds));
            gaps.note_arrival(&buffer);
        };
        for seconds in 0..3 {
            arrive(seconds);
            arrive(seconds);
            assert!(!gaps.note_rendered());
        }
        arrive(4);
        arrive(5);
        assert!(gaps.note_rendered());
        arrive(6);
        assert!(!gaps.note_rendered());
        gaps.note_missing();
        arrive(7);
        assert!(gaps.note_rendered());
        assert_eq!(gaps.skipped(), 1);
        gaps.note_end();
        assert_eq!(gaps.skipped(), 1, "it was rendered");
        arrive(7);
        gaps.note_end();
        gaps.note_end();
        gaps.note_skipped();
        assert_eq!(gaps.skipped(), 3);
        assert!(gaps.note_rendered());
        arrive(8);
        gaps.reset();
        arrive(9);
        assert!(!gaps.note_rendered());
    }
}
