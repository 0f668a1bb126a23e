// SPDX-License-Identifier: MPL-2.0

//! The part of this pipeline's time in which frames are shown.

use std::mem::take;

use xmem_core::FrameMeta;

use super::{
    stream::{Playback, TRICKS},
    times::{BufferTimes, at_speed},
};
use crate::stream::timing;

pub(super) type Segment = gst::FormattedSegment<gst::ClockTime>;

/// The part of this pipeline's time in which frames are shown.
#[derive(Debug, Default)]
pub(super) struct Window {
    /// The segment that was sent, or is due. `None`: that of GstBaseSrc, which begins at 0.
    sent: Option<Segment>,
    /// It is to be sent before the next frame.
    is_due: bool,
    /// The producer's segment for which it was sent.
    of: Option<Segment>,
    /// When the first stream began.
    begin: gst::ClockTime,
}

/// Times of a clock that is measured differ by less, and a sample is longer.
const INEXACT: gst::ClockTime = gst::ClockTime::from_useconds(5);

/// The parts of a frame before and after a segment. A decoder removes their samples.
#[derive(Debug, Default, Clone, Copy)]
struct Cut {
    before: gst::ClockTime,
    after: gst::ClockTime,
}

impl Cut {
    /// `None`: the frame is outside.
    fn of(
        segment: &Segment,
        pts: gst::ClockTime,
        duration: Option<gst::ClockTime>,
    ) -> Option<Self> {
        let duration = duration.unwrap_or(gst::ClockTime::from_nseconds(1));
        let end = pts.saturating_add(duration);
        let (first, last) = segment.clip(pts, end)?;
        Some(Self {
            before: first?.saturating_sub(pts),
            after: end.saturating_sub(last?),
        })
    }

    fn at_speed(self, speed: f64) -> Self {
        Self {
            before: at_speed(self.before, speed),
            after: at_speed(self.after, speed),
        }
    }

    fn is_like(self, other: Self) -> bool {
        self.before.absdiff(other.before) <= INEXACT && self.after.absdiff(other.after) <= INEXACT
    }
}

impl Window {
    /// Begins the first stream with a segment from `begin` on. Elements such as videorate fill the time from the start of a segment
    /// to its first frame. The segment applies to later streams too, because these elements would fill that time once more, and an
    /// encoder that still has frames of the previous stream sends them after the segment of the next one.
    pub(super) fn begin_at(&mut self, begin: gst::ClockTime) {
        self.begin = begin;
        self.sent = (!begin.is_zero()).then(|| open_from(begin));
    }

    /// The segment that was sent, or is due. `None`: that of GstBaseSrc.
    pub(super) fn segment(&self) -> Option<&Segment> {
        self.sent.as_ref()
    }

    /// The segment to send before the frame that was followed last. `None`: the previous one applies.
    pub(super) fn due(&mut self) -> Option<&Segment> {
        take(&mut self.is_due).then_some(self.sent.as_ref())?
    }

    /// Follows a frame to its segment.
    #[inline]
    pub(super) fn follow(&mut self, playback: &Playback, meta: &FrameMeta, times: &BufferTimes) {
        let is_plain = self.of.is_none() && playback.shown().is_none();
        if !is_plain {
            self.follow_encoded(playback, meta, times);
        } else if self.sent.is_some() {
            self.keep_open(times);
        }
    }

    /// A frame that begins before its segment would be left out, such as one after a flush.
    #[inline(never)]
    pub(super) fn keep_open(&mut self, times: &BufferTimes) {
        if let Some(sent) = &self.sent
            && let Some(earliest) = times.earliest()
            && sent.start().is_some_and(|start| earliest < start)
        {
            self.sent = Some(open_from(earliest));
            self.is_due = true;
        }
    }

    /// Each segment of the producer is sent before its first frame: a later one would drain the decoder, and some then lose what
    /// the next frames refer to. It is sent again if the times of the frames no longer match it, as after a pause.
    #[inline(never)]
    fn follow_encoded(&mut self, playback: &Playback, meta: &FrameMeta, times: &BufferTimes) {
        let producers = meta.pts.and_then(timing::known);
        // The time of an early frame is not its own.
        let own = times.pts.filter(|_| !times.is_early);
        let Some((producers, own)) = producers.zip(own) else {
            return;
        };
        let shown = playback.shown();
        let is_new = shown != self.of.as_ref();
        if !is_new {
            let cut = |segment: Option<&Segment>, pts, duration| match segment {
                None => Some(Cut::default()),
                Some(segment) => Cut::of(segment, pts, duration),
            };
            let there = cut(shown, producers, meta.duration.and_then(timing::known));
            let fits = match (there, cut(self.sent.as_ref(), own, times.duration)) {
                (Some(there), Some(here)) => {
                    let speed = shown.map_or(1.0, |shown| shown.rate());
                    playback.is_video() || there.at_speed(speed).is_like(here)
                }
                (there, here) => there.is_none() && here.is_none(),
            };
            if fits {
                return;
            }
        }
        self.of = shown.cloned();
        let earliest = times.earliest().unwrap_or(own);
        self.sent = Some(match shown {
            // The producer may have begun long before.
            Some(shown) => converted(shown, producers, own, self.begin.min(earliest)),
            None => open_from(earliest),
        });
        self.is_due = true;
    }
}

/// The producer's segment in times of this pipeline, from `begin` on. The same frame has the time `producers` there and `own` here.
/// The time of a frame stays its running time.
fn converted(
    shown: &Segment,
    producers: gst::ClockTime,
    own: gst::ClockTime,
    begin: gst::ClockTime,
) -> Segment {
    let time = |time: gst::ClockTime| {
        let distance = |from: gst::ClockTime, to: gst::ClockTime| {
            let nanoseconds = to.saturating_sub(from).nseconds() as f64 / shown.rate();
            gst::ClockTime::from_nseconds(nanoseconds as u64)
        };
        own.saturating_add(distance(producers, time))
            .saturating_sub(distance(time, producers))
    };
    let mut window = open_from(time(shown.start().unwrap_or_default()).max(begin));
    window.set_stop(shown.stop().map(time));
    window.set_flags(shown.flags() & TRICKS);
    window
}

/// A segment in which the time of a frame is its running time.
fn open_from(start: gst::ClockTime) -> Segment {
    let mut segment = Segment::new();
    segment.set_start(start);
    segment.set_base(start);
    segment.set_time(start);
    segment.set_position(start);
    segment
}
