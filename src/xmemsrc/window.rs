// SPDX-License-Identifier: MPL-2.0

//! The segment of a stream whose times are those of this pipeline. It is unlimited, unless the producer sends encoded frames from
//! outside of its own segment: those of a cut film from before the cut, or those from before the target of a seek. Other frames
//! depend on them, but they are not to be shown. Elements downstream know that only from the segment.

use xmem_core::FrameMeta;

use super::times::Times;
use crate::stream::timing;

type Segment = gst::FormattedSegment<gst::ClockTime>;

/// The part of this pipeline's time in which frames are shown.
#[derive(Debug, Default)]
pub(super) struct Window(Option<Segment>);

/// Whether a frame is shown in a segment.
fn contains(segment: &Segment, pts: gst::ClockTime, duration: Option<gst::ClockTime>) -> bool {
    let duration = duration.unwrap_or(gst::ClockTime::from_nseconds(1));
    let end = pts.saturating_add(duration);
    segment.clip(pts, end).is_some()
}

impl Window {
    /// The segment to send before a frame. `None`: the previous one applies. `shown` is the producer's segment, if the stream is
    /// encoded.
    #[inline]
    pub(super) fn follow(
        &mut self,
        shown: Option<&Segment>,
        meta: &FrameMeta,
        times: &Times,
    ) -> Option<Segment> {
        if shown.is_none() && self.0.is_none() {
            return None;
        }
        self.follow_encoded(shown, meta, times)
    }

    fn follow_encoded(
        &mut self,
        shown: Option<&Segment>,
        meta: &FrameMeta,
        times: &Times,
    ) -> Option<Segment> {
        let producers = meta.pts.and_then(timing::known)?;
        let duration = meta.duration.and_then(timing::known);
        let own = times.pts?;
        let is_shown = shown.is_none_or(|shown| contains(shown, producers, duration));
        let is_inside = self
            .0
            .as_ref()
            .is_none_or(|window| contains(window, own, times.duration));
        if is_shown == is_inside {
            return None;
        }
        let window = shown.map_or_else(Segment::new, |shown| converted(shown, producers, own));
        self.0 = Some(window.clone());
        Some(window)
    }
}

/// The producer's segment in times of this pipeline. The same frame has the time `producers` there and `own` here. The time of a
/// frame stays its running time.
fn converted(shown: &Segment, producers: gst::ClockTime, own: gst::ClockTime) -> Segment {
    let time = |time: gst::ClockTime| {
        let distance = |from: gst::ClockTime, to: gst::ClockTime| {
            let nanoseconds = to.saturating_sub(from).nseconds() as f64 / shown.rate();
            gst::ClockTime::from_nseconds(nanoseconds as u64)
        };
        own.saturating_add(distance(producers, time))
            .saturating_sub(distance(time, producers))
    };
    let start = time(shown.start().unwrap_or_default());
    let mut window = Segment::new();
    window.set_start(start);
    window.set_stop(shown.stop().map(time));
    window.set_base(start);
    window.set_time(start);
    window.set_position(start);
    window
}
