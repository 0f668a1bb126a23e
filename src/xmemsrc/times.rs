// SPDX-License-Identifier: MPL-2.0

//! A frame's times in this pipeline.

use std::sync::Arc;

use gst::prelude::*;
use xmem_core::{Delivery, FrameMeta};

use super::{XmemSrc, XmemSrcStartFrom, XmemSrcTimestampMode, settings::Settings, shift::Shift};
use crate::{
    timeline::Timeline,
    timing::{self, ClockOffset, Origin},
};

/// Streams of one file are about that close together.
const ROOM: gst::ClockTime = gst::ClockTime::from_mseconds(500);

/// What the sticky state says of the times of the frames that belong to it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Course {
    pub(super) timeline: Timeline,
    /// How much faster than it was recorded the producer plays; never negative.
    pub(super) speed: f64,
}

impl Default for Course {
    fn default() -> Self {
        Self {
            timeline: Timeline::default(),
            speed: 1.0,
        }
    }
}

impl Course {
    /// How much later than they say frames may come.
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

/// What a buffer gets.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct Times {
    pub(super) pts: Option<gst::ClockTime>,
    pub(super) dts: Option<gst::ClockTime>,
    pub(super) duration: Option<gst::ClockTime>,
}

/// Puts times of a producer into times of this pipeline.
#[derive(Debug)]
pub(super) struct Stamper {
    mode: XmemSrcTimestampMode,
    /// Frames that were there before the pipeline are asked for, and keep their spacing.
    from_oldest: bool,
    clock: ClockOffset,
    /// CLOCK_MONOTONIC when the first frame was asked for; for pipelines without a clock.
    began: Option<i64>,
    /// Of the current producer.
    delivery: Delivery,
    /// `None`: no frame of this producer yet that has a time.
    shift: Option<Arc<Shift>>,
    /// Of the frames so far, on a pipeline that has a clock.
    base_time: Option<gst::ClockTime>,
    /// The running time at which the pipeline began, or went on after a pause. No frame is given an earlier one.
    went_on_at: gst::ClockTime,
    /// The latest time at which a frame ended so far.
    latest: gst::ClockTime,
    /// The pipeline was paused after the last frame.
    was_paused: bool,
}

impl Stamper {
    pub(super) fn new(settings: &Settings) -> Self {
        Self {
            mode: settings.timestamp_mode,
            from_oldest: settings.start_from == XmemSrcStartFrom::Oldest,
            clock: ClockOffset::default(),
            began: None,
            delivery: Delivery::default(),
            shift: None,
            base_time: None,
            went_on_at: gst::ClockTime::ZERO,
            latest: gst::ClockTime::ZERO,
            was_paused: false,
        }
    }

    /// The pipeline plays.
    pub(super) fn begin(&mut self) {
        self.began.get_or_insert_with(xmem_core::monotonic_ns);
    }

    /// What follows is of another producer, in whose pool frames are delivered like this.
    pub(super) fn begin_producer(&mut self, delivery: Delivery) {
        self.delivery = delivery;
        self.shift = None;
        self.was_paused = false;
    }

    pub(super) fn stamp(&mut self, src: &XmemSrc, meta: &FrameMeta, course: &Course) -> Times {
        let duration = meta.duration.and_then(timing::known);
        let raw = Times {
            pts: meta.pts.and_then(timing::known),
            dts: meta.dts.and_then(timing::known),
            duration,
        };
        if self.mode == XmemSrcTimestampMode::Passthrough {
            return raw;
        }
        let duration = duration.map(|duration| shorter(duration, course.speed));
        let Some((origin, base_time)) = self.origin(src) else {
            return Times {
                duration,
                ..Times::default()
            };
        };
        self.follow_base_time(src, base_time);
        let (pts, dts) = if self.mode == XmemSrcTimestampMode::Arrival {
            let now = origin.to_running_time(xmem_core::monotonic_ns());
            // What is decoded in another order than it is shown in stays in that order.
            let ahead = raw
                .pts
                .zip(raw.dts)
                .and_then(|(pts, dts)| pts.checked_sub(dts));
            let pts = now.saturating_add(shorter(ahead.unwrap_or_default(), course.speed));
            (Some(pts), raw.dts.map(|_| now))
        } else {
            let origin = self.shifted(src, origin, base_time, meta, &course.timeline);
            let time = |time: i64| origin.to_running_time(time).max(self.went_on_at);
            (meta.timestamp.map(time), meta.decode_timestamp.map(time))
        };
        let end = pts.map(|pts| pts.saturating_add(duration.unwrap_or_default()));
        self.latest = self.latest.max(end.max(dts).unwrap_or_default());
        Times { pts, dts, duration }
    }

    /// Where the running time 0 lies on CLOCK_MONOTONIC, and the base time of a pipeline that has a clock.
    fn origin(&mut self, src: &XmemSrc) -> Option<(Origin, Option<gst::ClockTime>)> {
        match self.clock.now(src.clock().as_ref()) {
            Some(offset) => {
                let base_time = src.base_time()?;
                Some((Origin::new(base_time, offset), Some(base_time)))
            }
            None => Some((Origin::without_clock(self.began?), None)),
        }
    }

    /// A pause makes the base time later, so that what lies in the pool from before its end has a time now that has
    /// passed already. A flush that sets the running time back to 0 begins anew.
    fn follow_base_time(&mut self, src: &XmemSrc, base_time: Option<gst::ClockTime>) {
        let before = std::mem::replace(&mut self.base_time, base_time);
        if before.is_none() || before == base_time {
            return;
        }
        self.was_paused = self.shift.is_some();
        // Unknown to us if the application sets base times itself.
        let went_on = src.start_time().unwrap_or_default();
        if went_on.is_zero() {
            self.latest = gst::ClockTime::ZERO;
        }
        self.went_on_at = went_on.max(self.latest);
    }

    /// Frames from before the pipeline's start would all come at time 0, and lose their spacing. For those of a stream
    /// that was held up, as a file is whose producer waited for us, and for those that were asked for, everything comes
    /// later instead. Live streams go on at their own time. After a pause it is the same with the time at which the
    /// pipeline went on; a lossless stream was held up by that very pause.
    fn shifted(
        &mut self,
        src: &XmemSrc,
        origin: Origin,
        base_time: Option<gst::ClockTime>,
        meta: &FrameMeta,
        timeline: &Timeline,
    ) -> Origin {
        let earliest = meta
            .timestamp
            .into_iter()
            .chain(meta.decode_timestamp)
            .min();
        if (self.shift.is_none() || self.was_paused)
            && let Some(earliest) = earliest
        {
            let by = self.shift.as_ref().map_or(0, |shift| shift.get());
            let was_paused = std::mem::take(&mut self.was_paused);
            let shift = Shift::of(timeline.base_time.zip(base_time));
            shift.at_least(
                gst::ClockTime::from_nseconds(by.unsigned_abs()),
                gst::ClockTime::ZERO,
            );
            let before = origin
                .later(self.went_on_at.nseconds().cast_signed())
                .before_start(earliest);
            let held_up = timing::elapsed(earliest, meta.published_at);
            let waited = was_paused && self.delivery == Delivery::Lossless && !timeline.live;
            if self.from_oldest || waited {
                // Streams that paused together need about the same.
                shift.at_least(before, gst::ClockTime::ZERO);
            } else if !timeline.live {
                shift.at_least(before.min(held_up), room(src));
            }
            self.shift = Some(shift);
        }
        origin.later(
            self.shift
                .as_ref()
                .map_or(0, |shift| shift.get())
                .saturating_neg(),
        )
    }
}

/// How much earlier another stream may begin that is taken in the same pipeline.
fn room(src: &XmemSrc) -> gst::ClockTime {
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
        .any(|element| element != *src.upcast_ref::<gst::Element>());
    if others { ROOM } else { gst::ClockTime::ZERO }
}

fn shorter(duration: gst::ClockTime, speed: f64) -> gst::ClockTime {
    if speed == 1.0 {
        return duration;
    }
    // A float is as precise as it has to be for the length of a frame; the cast saturates.
    timing::known((duration.nseconds() as f64 / speed) as u64).unwrap_or(gst::ClockTime::MAX)
}
