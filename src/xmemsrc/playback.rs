// SPDX-License-Identifier: MPL-2.0

//! How the producer plays the stream: its speed and direction, its segment, and what one frame is.

use xmem_core::{FrameMeta, Sticky, key_frame};

use super::settings::XmemSrcTimestampMode;
use crate::stream::{caps, event::sticky, timeline::Timeline};

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
        let units = match parsed {
            Some(parsed) if caps::is_container(&parsed) => Units::Bytes,
            Some(_) if key_frame::is_needed(caps) => Units::Coded,
            Some(_) => Units::Pictures,
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

    /// Whether a live stream can reduce its shift at a gap. If frames arrive in decoding order and have no decoding time, the
    /// length of the gap is not known.
    pub(super) fn can_catch_up(&self, meta: &FrameMeta) -> bool {
        self.timeline.live && (!self.may_reorder || meta.decode_timestamp.is_some())
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
