// SPDX-License-Identifier: MPL-2.0

//! The times of a frame in this pipeline.

use std::sync::Arc;

use gst::prelude::*;
use xmem_core::{Delivery, FrameMeta, ReadLease, Sticky};

use super::{
    enums::{XmemSrcStartFrom, XmemSrcTimestampMode},
    mapping::Mapping,
    settings::Settings,
    shift::Shift,
};
use crate::stream::{
    event::sticky,
    timeline::Timeline,
    timing::{self, ClockOffset, Origin},
};

/// Streams of one file start at most about this far apart.
const MARGIN: gst::ClockTime = gst::ClockTime::from_mseconds(500);

/// Caps of frames that are never published outside of their segment.
const RAW: [&str; 2] = ["video/x-raw", "audio/x-raw"];

/// How the producer plays the stream, from the sticky state of a frame.
#[derive(Debug, Clone)]
pub(super) struct Playback {
    timeline: Timeline,
    /// The producer's playback speed relative to the recording; never negative.
    speed: f64,
    /// Frames may arrive in another order than that of their presentation.
    may_reorder: bool,
    /// The segment of an encoded stream. It is played forward.
    shown: Option<gst::FormattedSegment<gst::ClockTime>>,
}

impl Default for Playback {
    fn default() -> Self {
        Self {
            timeline: Timeline::default(),
            speed: 1.0,
            may_reorder: false,
            shown: None,
        }
    }
}

impl Playback {
    /// From sticky state with this segment.
    pub(super) fn new(sticky: &Sticky, segment: Option<&gst::Segment>) -> Self {
        let caps = sticky.text(sticky::CAPS).unwrap_or_default();
        Self {
            timeline: Timeline::parse(sticky.text(sticky::TIMELINE)),
            speed: segment.map_or(1.0, |segment| segment.rate().abs()),
            may_reorder: caps.starts_with("video/") && !caps.starts_with("video/x-raw"),
            shown: segment
                .and_then(|segment| segment.downcast_ref())
                .filter(|segment| {
                    segment.rate() > 0.0 && !RAW.iter().any(|raw| caps.starts_with(raw))
                })
                .cloned(),
        }
    }

    /// The producer's segment, if frames may lie outside of it.
    pub(super) fn shown(&self) -> Option<&gst::FormattedSegment<gst::ClockTime>> {
        self.shown.as_ref()
    }

    /// Whether a live stream can reduce its shift at a gap. If frames arrive in decoding order and have no decoding time, the
    /// length of the gap is not known.
    fn can_catch_up(&self, meta: &FrameMeta) -> bool {
        self.timeline.live && (!self.may_reorder || meta.decode_timestamp.is_some())
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

/// The intervals between the frames of a stream, on CLOCK_MONOTONIC.
#[derive(Debug, Default)]
struct Spacing {
    latest: Option<i64>,
    /// The longest interval without a gap.
    usual: gst::ClockTime,
}

impl Spacing {
    /// The time that is missing between the previous frames and this one.
    fn missing(&mut self, time: i64, duration: Option<gst::ClockTime>) -> gst::ClockTime {
        let latest = self.latest.replace(time.max(self.latest.unwrap_or(time)));
        let step = timing::elapsed(latest.unwrap_or(time), time);
        let usual = self.usual.max(duration.unwrap_or_default());
        let most = if usual.is_zero() {
            MARGIN
        } else {
            usual.saturating_add(usual / 2)
        };
        if step > most {
            return step.saturating_sub(usual);
        }
        self.usual = usual.max(step);
        gst::ClockTime::ZERO
    }
}

/// The times of a buffer.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct Times {
    pub(super) pts: Option<gst::ClockTime>,
    pub(super) dts: Option<gst::ClockTime>,
    pub(super) duration: Option<gst::ClockTime>,
}

/// Converts the producer's times to times of this pipeline.
#[derive(Debug)]
pub(super) struct Stamper {
    mode: XmemSrcTimestampMode,
    mapping: Arc<Mapping>,
    /// `start-from=oldest`: frames from before the pipeline's start keep their spacing.
    from_oldest: bool,
    clock: ClockOffset,
    /// CLOCK_MONOTONIC when the first frame was requested. Used for pipelines without a clock.
    began: Option<i64>,
    /// The delivery of the present producer.
    delivery: Delivery,
    /// `None`: no frame of this producer had a time yet.
    shift: Option<Arc<Shift>>,
    /// The intervals of the present producer's frames.
    spacing: Spacing,
    /// The pipeline's base time at the last frame. `None`: no frame yet, or no clock.
    base_time: Option<gst::ClockTime>,
    /// The running time at which the pipeline started or resumed. No frame gets an earlier time.
    resumed_at: gst::ClockTime,
    /// The latest end of a frame.
    latest: gst::ClockTime,
    /// The pipeline was paused after the last frame.
    was_paused: bool,
}

impl Stamper {
    pub(super) fn new(settings: &Settings, mapping: Arc<Mapping>) -> Self {
        Self {
            mode: settings.timestamp_mode,
            mapping,
            from_oldest: settings.start_from == XmemSrcStartFrom::Oldest,
            clock: ClockOffset::default(),
            began: None,
            delivery: Delivery::default(),
            shift: None,
            spacing: Spacing::default(),
            base_time: None,
            resumed_at: gst::ClockTime::ZERO,
            latest: gst::ClockTime::ZERO,
            was_paused: false,
        }
    }

    /// The pipeline changes to PLAYING.
    pub(super) fn begin(&mut self) {
        self.began.get_or_insert_with(xmem_core::monotonic_ns);
    }

    /// The next frames are from another producer.
    pub(super) fn begin_producer(&mut self, delivery: Delivery) {
        self.delivery = delivery;
        self.shift = None;
        self.mapping.set_shift(None);
        self.spacing = Spacing::default();
        self.was_paused = false;
    }

    pub(super) fn stamp(
        &mut self,
        src: &gst_base::BaseSrc,
        lease: &ReadLease,
        playback: &Playback,
    ) -> Times {
        let meta = lease.meta();
        let duration = meta.duration.and_then(timing::known);
        let raw = || Times {
            pts: meta.pts.and_then(timing::known),
            dts: meta.dts.and_then(timing::known),
            duration,
        };
        if self.mode == XmemSrcTimestampMode::Passthrough {
            let times = raw();
            self.mapping.note_raw(times.pts, meta.timestamp);
            return times;
        }
        let duration = duration.map(|duration| at_speed(duration, playback.speed));
        let Some((origin, base_time)) = self.origin(src) else {
            return Times {
                duration,
                ..Times::default()
            };
        };
        self.follow_base_time(src, base_time);
        let (pts, dts) = if self.mode == XmemSrcTimestampMode::Arrival {
            // The time when it was published, not when it was taken: a sink that waits for a frame's time delays the next frame
            // by that.
            let arrival = origin
                .to_running_time(lease.info().published_at)
                .max(self.resumed_at);
            // Frames in decoding order keep the distance between their PTS and DTS.
            let raw = raw();
            let ahead = raw
                .pts
                .zip(raw.dts)
                .and_then(|(pts, dts)| pts.checked_sub(dts));
            let pts = arrival.saturating_add(at_speed(ahead.unwrap_or_default(), playback.speed));
            (Some(pts), raw.dts.map(|_| arrival))
        } else {
            let origin = self.shifted_origin(src, origin, base_time, lease, playback);
            let time = |time: i64| origin.to_running_time(time).max(self.resumed_at);
            (meta.timestamp.map(time), meta.decode_timestamp.map(time))
        };
        let end = pts.map(|pts| pts.saturating_add(duration.unwrap_or_default()));
        self.latest = self.latest.max(end.max(dts).unwrap_or_default());
        Times { pts, dts, duration }
    }

    /// The CLOCK_MONOTONIC time of running time 0, and the pipeline's base time if it has a clock.
    fn origin(&mut self, src: &gst_base::BaseSrc) -> Option<(Origin, Option<gst::ClockTime>)> {
        let (base_time, offset) = self.clock.with_base_time(src.upcast_ref());
        match offset {
            Some(offset) => Some((Origin::new(base_time?, offset), base_time)),
            None => Some((Origin::without_clock(self.began?), None)),
        }
    }

    /// Detects a pause. A pause increases the base time, so frames that were published before its end have times in the past. A
    /// flush that resets the running time to 0 starts again.
    fn follow_base_time(&mut self, src: &gst_base::BaseSrc, base_time: Option<gst::ClockTime>) {
        let before = std::mem::replace(&mut self.base_time, base_time);
        if before.is_none() || before == base_time {
            return;
        }
        self.was_paused = self.shift.is_some();
        // Unknown if the application sets base times itself.
        let resumed = src.start_time().unwrap_or_default();
        if resumed.is_zero() {
            self.latest = gst::ClockTime::ZERO;
        }
        self.resumed_at = resumed.max(self.latest);
    }

    /// The origin, later by the shift.
    ///
    /// Without a shift, all frames from before the pipeline's start would get time 0 and lose their spacing. So all frames are
    /// shifted if the stream was held up (such as a file whose producer waited for this consumer), or if `start-from=oldest`.
    /// Live streams are not shifted, unless they are lossless. The same applies after a pause, relative to the time when the
    /// pipeline resumed. The pause itself held up a lossless stream.
    fn shifted_origin(
        &mut self,
        src: &gst_base::BaseSrc,
        origin: Origin,
        base_time: Option<gst::ClockTime>,
        lease: &ReadLease,
        playback: &Playback,
    ) -> Origin {
        let meta = lease.meta();
        let earliest = meta
            .timestamp
            .into_iter()
            .chain(meta.decode_timestamp)
            .min();
        if let Some(earliest) = earliest {
            let duration = meta.duration.and_then(timing::known);
            let missing = self.spacing.missing(earliest, duration);
            match &self.shift {
                Some(shift) if !self.was_paused => {
                    // After a gap the shift can shrink. If it stayed at the limit of the pool's history, each later frame would
                    // be lost.
                    if !missing.is_zero()
                        && playback.can_catch_up(meta)
                        && Arc::strong_count(shift) == 1
                    {
                        shift.catch_up(missing);
                    }
                }
                _ => self.begin_shift(src, origin, base_time, earliest, lease, playback),
            }
        }
        origin.later(
            self.shift
                .as_ref()
                .map_or(0, |shift| shift.get())
                .saturating_neg(),
        )
    }

    /// Determines the shift, at the first frame and at the first frame after a pause.
    #[cold]
    fn begin_shift(
        &mut self,
        src: &gst_base::BaseSrc,
        origin: Origin,
        base_time: Option<gst::ClockTime>,
        earliest: i64,
        lease: &ReadLease,
        playback: &Playback,
    ) {
        let timeline = &playback.timeline;
        let by = self.shift.as_ref().map_or(0, |shift| shift.get());
        let was_paused = std::mem::take(&mut self.was_paused);
        let shift = Shift::of(timeline.base_time.zip(base_time));
        shift.raise_to(
            gst::ClockTime::from_nseconds(by.unsigned_abs()),
            gst::ClockTime::ZERO,
        );
        let before = origin
            .later(self.resumed_at.nseconds().cast_signed())
            .before_start(earliest);
        // A live frame may arrive later than its time by the latency. That does not mean that the stream was held up.
        let late = timing::elapsed(earliest, lease.info().published_at);
        let held_up = if late > timeline.latency {
            late
        } else {
            gst::ClockTime::ZERO
        };
        let is_lossless = self.delivery == Delivery::Lossless;
        let margin = margin(src);
        // A live stream that shares its shift cannot catch up.
        let catches_up = playback.can_catch_up(lease.meta()) && margin.is_zero();
        let keeps_spacing = !timeline.live || (is_lossless && catches_up);
        if self.from_oldest || (was_paused && is_lossless && keeps_spacing) {
            // Streams that were paused together need nearly the same shift.
            shift.raise_to(before, gst::ClockTime::ZERO);
        } else if keeps_spacing {
            shift.raise_to(before.min(held_up), margin);
        }
        self.mapping.set_shift(Some(&shift));
        self.shift = Some(shift);
    }
}

/// How much earlier another stream of the same pipeline may start. Zero: there is no other stream.
fn margin(src: &gst_base::BaseSrc) -> gst::ClockTime {
    let bins = std::iter::successors(src.parent(), gst::Object::parent);
    let Some(all) = bins
        .filter_map(|parent| parent.downcast::<gst::Bin>().ok())
        .last()
    else {
        return gst::ClockTime::ZERO;
    };
    let others = all
        .iterate_all_by_element_factory_name("xmemsrc")
        .into_iter()
        .filter_map(Result::ok)
        .any(|element| element != *src);
    if others { MARGIN } else { gst::ClockTime::ZERO }
}

fn at_speed(duration: gst::ClockTime, speed: f64) -> gst::ClockTime {
    if speed == 1.0 {
        return duration;
    }
    // A float is precise enough for the duration of a frame. The cast saturates.
    timing::known((duration.nseconds() as f64 / speed) as u64).unwrap_or(gst::ClockTime::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(ms: u64) -> gst::ClockTime {
        gst::ClockTime::from_mseconds(ms)
    }

    /// The missing time before each frame, in milliseconds.
    fn missing(duration: Option<u64>, times: &[i64]) -> Vec<u64> {
        let mut spacing = Spacing::default();
        let each = times.iter().map(|time| {
            spacing
                .missing(time * 1_000_000, duration.map(ms))
                .mseconds()
        });
        each.collect()
    }

    #[test]
    fn a_gap_is_longer_than_the_usual_interval() {
        assert_eq!(
            missing(Some(33), &[0, 33, 66, 132, 166, 1_166, 1_200]),
            [0, 0, 0, 33, 0, 966, 0]
        );
        assert_eq!(missing(None, &[0, 40, 80, 160, 240]), [0, 0, 0, 40, 40]);
        // The caps of a camera state 30 frames per second. In the dark it delivers 25.
        assert_eq!(missing(Some(33), &[0, 40, 80, 120]), [0; 4]);
        // Several packets of one frame.
        assert_eq!(missing(None, &[0, 0, 0, 33, 33, 66]), [0; 6]);
        // In decoding order.
        assert_eq!(missing(Some(33), &[66, 0, 33, 99]), [0; 4]);
        assert_eq!(missing(None, &[0, 60_000, 60_033]), [0, 60_000, 0]);
    }
}
