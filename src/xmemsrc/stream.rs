// SPDX-License-Identifier: MPL-2.0

//! The stream that the source outputs: caps, format, and how the producer plays it: its speed and direction, its segment, and what one
//! frame is.

use std::{
    mem::{replace, take},
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicU64, Ordering},
    },
};

use xmem_core::{FrameLayout, FrameMeta, Sticky, key_frame};

use super::settings::XmemSrcTimestampMode;
use crate::{
    buffers::{bufferpool::ReceivedBuffers, planes::Planes},
    cuda, lock,
    stream::{
        caps,
        frame::{Format, Memory},
        sticky,
        timeline::Timeline,
    },
};

#[derive(Debug, Default)]
pub(super) struct SourceStream {
    state: Mutex<State>,
    /// Counts the changes of the values that a [`Snapshot`] copies.
    version: AtomicU64,
}

#[derive(Debug, Default)]
struct State {
    sticky: Sticky,
    caps: Option<gst::Caps>,
    /// An error about refused caps was posted.
    reported_refusal: bool,
    /// Whether frames are sent in device memory. `None`: not known yet.
    on_device: Option<bool>,
    format: Arc<Format>,
    playback: Playback,
    /// Downstream can read a GstVideoMeta.
    video_meta: bool,
    /// The CUDA stream of downstream, if it reported one.
    reader: Option<Arc<cuda::Stream>>,
}

/// Whether frames are in other memory than the caps of the format state.
fn differs(format: &Format, on_device: Option<bool>) -> bool {
    on_device.is_some_and(|on_device| on_device != (format.memory == Memory::Cuda))
}

/// The streaming thread's copy of the stream's state, and the buffers for its frames. It is refreshed only after a change.
#[derive(Debug)]
pub(super) struct Snapshot {
    version: u64,
    has_caps: bool,
    format: Arc<Format>,
    playback: Playback,
    any_layout: bool,
    /// The samples of raw sound are to be reversed.
    is_reversed: bool,
    reader: Option<Arc<cuda::Stream>>,
    /// `None`: no layout was checked yet.
    checked: Option<CheckedLayout>,
    buffers: ReceivedBuffers,
}

/// The error for a frame that no buffer can be made for.
pub(super) const NO_BUFFER: &str = "there is no buffer for it";

/// A layout that was checked.
#[derive(Debug)]
struct CheckedLayout {
    layout: Arc<FrameLayout>,
    /// The size of a frame in bytes, on which the validity depends.
    size: usize,
    planes: Option<Planes>,
    /// The buffers have this layout.
    is_set: bool,
}

impl CheckedLayout {
    fn is_for(&self, layout: &Arc<FrameLayout>, size: usize) -> bool {
        Arc::ptr_eq(&self.layout, layout) && (layout.video.is_none() || self.size == size)
    }
}

impl Snapshot {
    pub(super) fn new(buffers: ReceivedBuffers) -> Self {
        Self {
            version: 0,
            has_caps: false,
            format: Arc::default(),
            playback: Playback::default(),
            any_layout: false,
            is_reversed: false,
            reader: None,
            checked: None,
            buffers,
        }
    }

    pub(super) fn format(&self) -> &Arc<Format> {
        &self.format
    }

    pub(super) fn playback(&self) -> &Playback {
        &self.playback
    }

    /// Checks a layout that another process wrote, as [`Format::check`]. Does nothing if it is the layout of the previous
    /// frame.
    pub(super) fn check(
        &mut self,
        layout: &Arc<FrameLayout>,
        size: usize,
    ) -> Result<Option<&Planes>, &'static str> {
        let known = self.checked.as_ref();
        if !known.is_some_and(|checked| checked.is_for(layout, size)) {
            self.check_new(layout, size)?;
        }
        Ok(self.planes())
    }

    /// The planes of the last checked layout.
    fn planes(&self) -> Option<&Planes> {
        self.checked.as_ref()?.planes.as_ref()
    }

    /// Checks a layout, and returns a buffer with its planes, whose memory has no slot.
    pub(super) fn buffer(
        &mut self,
        layout: &Arc<FrameLayout>,
        size: usize,
    ) -> Result<gst::Buffer, String> {
        self.check(layout, size)?;
        let no_buffer = || NO_BUFFER.to_owned();
        let checked = self.checked.as_mut().ok_or_else(no_buffer)?;
        if !replace(&mut checked.is_set, true) {
            self.buffers.set_layout(checked.planes.as_ref());
        }
        self.buffers.acquire().map_err(|_| no_buffer())
    }

    #[cold]
    fn check_new(&mut self, layout: &Arc<FrameLayout>, size: usize) -> Result<(), &'static str> {
        let before = self.checked.take();
        let planes = self.format.check(layout.video.as_ref(), size)?;
        // Layouts without planes, such as those of audio, differ in what is not in a buffer.
        let same = before.filter(|before| before.planes.is_none() && planes.is_none());
        self.checked = Some(CheckedLayout {
            layout: layout.clone(),
            size,
            planes,
            is_set: same.is_some_and(|before| before.is_set),
        });
        Ok(())
    }

    /// Whether the bytes are in the order that the caps imply, by the last checked layout.
    pub(super) fn is_default(&self) -> bool {
        // Sound has no planes.
        self.planes().map_or(!self.is_reversed, Planes::is_default)
    }

    /// Whether downstream accepts any layout. Only host memory is ever converted to the default layout.
    pub(super) fn takes_any_layout(&self) -> bool {
        self.any_layout
    }

    pub(super) fn reader(&self) -> Option<&Arc<cuda::Stream>> {
        self.reader.as_ref()
    }

    /// Whether frames are in other memory than the present caps state.
    pub(super) fn differs_in_memory(&self, on_device: Option<bool>) -> bool {
        self.has_caps && differs(&self.format, on_device)
    }
}

impl SourceStream {
    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Locks the state for a change that snapshots must copy.
    fn change(&self) -> MutexGuard<'_, State> {
        let state = self.lock();
        // Under the lock, so that a thread that reads the new version waits for the change.
        self.version.fetch_add(1, Ordering::Release);
        state
    }

    pub(super) fn reset(&self) {
        let before = take(&mut *self.change());
        drop(before);
    }

    /// Refreshes a snapshot if the stream has changed.
    #[inline]
    pub(super) fn refresh(&self, snapshot: &mut Snapshot) {
        if self.version.load(Ordering::Acquire) != snapshot.version {
            self.renew(snapshot);
        }
    }

    #[cold]
    fn renew(&self, snapshot: &mut Snapshot) {
        let state = self.lock();
        snapshot.version = self.version.load(Ordering::Relaxed);
        snapshot.has_caps = state.caps.is_some();
        snapshot.format = state.format.clone();
        snapshot.playback = state.playback.clone();
        let is_sound = state.format.audio_info.is_some();
        snapshot.is_reversed = is_sound && state.playback.is_reversed();
        snapshot.any_layout =
            !snapshot.is_reversed && (state.video_meta || state.format.memory != Memory::Any);
        snapshot.reader = state.reader.clone();
        snapshot.checked = None;
    }

    pub(super) fn caps(&self) -> Option<gst::Caps> {
        self.lock().caps.clone()
    }

    pub(super) fn set_caps(&self, caps: gst::Caps) {
        let mut state = self.change();
        state.format = Arc::new(Format::from_caps(&caps));
        state.caps = Some(caps);
        state.video_meta = false;
    }

    pub(super) fn playback(&self) -> Playback {
        self.lock().playback.clone()
    }

    /// Returns the previous value.
    pub(super) fn replace_playback(&self, playback: Playback) -> Playback {
        replace(&mut self.change().playback, playback)
    }

    /// Stores downstream's answer to an allocation query.
    pub(super) fn set_downstream(&self, video_meta: bool, reader: Option<cuda::Stream>) {
        let mut state = self.change();
        state.video_meta = video_meta;
        state.reader = reader.map(Arc::new);
    }

    /// The version of the producer's GStreamer, if it differs from this one.
    pub(super) fn other_gstreamer(&self) -> Option<String> {
        let version = self.lock().sticky.text(sticky::GSTREAMER)?.to_owned();
        (version != sticky::gstreamer()).then_some(version)
    }

    /// Whether each frame can be decoded alone, whatever its flags are.
    pub(super) fn has_only_key_frames(&self) -> bool {
        self.lock().playback.has_only_key_frames
    }

    /// Replaces the sticky state, and the memory of the frames if that is known. Returns the previous state, whether the memory
    /// has changed, and which it is.
    pub(super) fn replace_sticky(
        &self,
        new: Sticky,
        on_device: Option<bool>,
    ) -> (Sticky, bool, Option<bool>) {
        let mut state = self.lock();
        let memory_changed = state.caps.is_some() && differs(&state.format, on_device);
        state.on_device = on_device.or(state.on_device);
        let before = replace(&mut state.sticky, new);
        (before, memory_changed, state.on_device)
    }

    /// Records whether an error about refused caps was posted. Returns the previous value.
    pub(super) fn note_refusal(&self, is_reported: bool) -> bool {
        replace(&mut self.lock().reported_refusal, is_reported)
    }
}

/// How the producer plays the stream, from the sticky state of a frame.
#[derive(Debug, Clone)]
pub(super) struct Playback {
    timeline: Timeline,
    /// The producer's playback speed relative to the recording; never negative.
    speed: f64,
    /// Frames may arrive in another order than that of their presentation.
    may_reorder: bool,
    /// The segment of an encoded stream, if it is played forward and decoders need to know it.
    shown: Option<gst::FormattedSegment<gst::ClockTime>>,
    /// Frames are played backward, at times that go forward.
    is_reversed: bool,
    problem: Option<Problem>,
    units: Units,
    has_only_key_frames: bool,
}

/// What is played wrongly downstream, because its times are not those of the producer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Problem {
    /// Encoded frames are played backward: decoders play each group of frames forward.
    Groups,
    /// Sound is played faster or slower: its samples take another time.
    Speed,
}

impl Problem {
    fn of(segment: &gst::Segment, is_sound: bool, is_coded: bool) -> Option<Self> {
        let has_groups = !segment
            .flags()
            .contains(gst::SegmentFlags::TRICKMODE_KEY_UNITS);
        match segment.rate() {
            rate if is_sound && rate.abs() != 1.0 => Some(Self::Speed),
            rate if is_coded && rate < 0.0 && has_groups => Some(Self::Groups),
            _ => None,
        }
    }
}

/// What one frame of a stream is.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) enum Units {
    /// Any bytes, such as packets of a container. Several may have the same time.
    #[default]
    Bytes,
    /// A raw frame or a picture, which can be left out.
    Pictures,
    /// An encoded frame, which others may need.
    Coded,
}

impl Default for Playback {
    fn default() -> Self {
        Self {
            timeline: Timeline::default(),
            speed: 1.0,
            may_reorder: false,
            shown: None,
            is_reversed: false,
            problem: None,
            units: Units::default(),
            has_only_key_frames: false,
        }
    }
}

impl Playback {
    /// From sticky state with this segment.
    pub(super) fn new(
        sticky: &Sticky,
        segment: Option<&gst::Segment>,
        mode: XmemSrcTimestampMode,
    ) -> Self {
        let caps = sticky.text(sticky::CAPS).unwrap_or_default();
        let parsed = sticky::parse_caps(caps);
        let is_raw = parsed.as_ref().is_some_and(|parsed| caps::is_raw(parsed));
        let has_only_key_frames = parsed.is_some() && !key_frame::is_needed(caps);
        let units = match parsed {
            Some(parsed) if caps::is_container(&parsed) => Units::Bytes,
            Some(_) if has_only_key_frames => Units::Pictures,
            Some(_) => Units::Coded,
            None => Units::Bytes,
        };
        let own_times = segment.filter(|_| mode != XmemSrcTimestampMode::Passthrough);
        Self {
            timeline: Timeline::parse(sticky.text(sticky::TIMELINE)),
            speed: segment.map_or(1.0, |segment| segment.rate().abs()),
            may_reorder: caps.starts_with("video/") && !caps.starts_with("video/x-raw"),
            shown: segment
                .and_then(|segment| segment.downcast_ref())
                .filter(|segment| segment.rate() > 0.0 && !is_raw && is_needed(segment))
                .cloned(),
            is_reversed: own_times.is_some_and(|segment| segment.rate() < 0.0),
            problem: own_times.and_then(|segment| {
                let is_sound = caps.starts_with("audio/");
                let is_coded = units == Units::Coded || (is_sound && !is_raw);
                Problem::of(segment, is_sound, is_coded)
            }),
            units,
            has_only_key_frames,
        }
    }

    pub(super) fn timeline(&self) -> &Timeline {
        &self.timeline
    }

    pub(super) fn speed(&self) -> f64 {
        self.speed
    }

    pub(super) fn units(&self) -> Units {
        self.units
    }

    /// The producer's segment, if frames may lie outside of it, or decoders may leave some out.
    pub(super) fn shown(&self) -> Option<&gst::FormattedSegment<gst::ClockTime>> {
        self.shown.as_ref()
    }

    /// Whether the length of a gap is known, by which the shift can be reduced. It is not if frames arrive in decoding order and
    /// have no decoding time.
    pub(super) fn knows_gaps(&self, meta: &FrameMeta) -> bool {
        !self.may_reorder || meta.decode_timestamp.is_some()
    }

    /// Whether it is encoded video.
    pub(super) fn is_video(&self) -> bool {
        self.may_reorder
    }

    /// Whether frames are played backward, at times that go forward.
    pub(super) fn is_reversed(&self) -> bool {
        self.is_reversed
    }

    pub(super) fn problem(&self) -> Option<Problem> {
        self.problem
    }

    /// Whether a frame may be needed to decode later ones.
    pub(super) fn is_coded(&self) -> bool {
        self.units == Units::Coded
    }

    /// How long the producer can keep frames. `None`: long enough.
    pub(super) fn kept(&self) -> Option<gst::ClockTime> {
        self.timeline.kept
    }

    /// How much later than their times frames may arrive.
    pub(super) fn latency(&self, mode: XmemSrcTimestampMode) -> gst::ClockTime {
        match mode {
            XmemSrcTimestampMode::Clock => self.timeline.latency,
            XmemSrcTimestampMode::Arrival => gst::ClockTime::ZERO,
            XmemSrcTimestampMode::Passthrough => {
                self.timeline.latency.saturating_add(self.timeline.pacing)
            }
        }
    }
}

/// What a decoder may leave out.
pub(super) const TRICKS: gst::SegmentFlags = gst::SegmentFlags::TRICKMODE
    .union(gst::SegmentFlags::TRICKMODE_KEY_UNITS)
    .union(gst::SegmentFlags::TRICKMODE_FORWARD_PREDICTED)
    .union(gst::SegmentFlags::TRICKMODE_NO_AUDIO);

/// Whether frames may lie outside of a segment, or decoders may leave some out.
fn is_needed(segment: &gst::FormattedSegment<gst::ClockTime>) -> bool {
    segment.start().is_some_and(|start| !start.is_zero())
        || segment.stop().is_some()
        || segment.flags().intersects(TRICKS)
}
