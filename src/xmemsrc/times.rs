// SPDX-License-Identifier: MPL-2.0

//! The times of frames in this pipeline.

use std::{
    mem::{replace, take},
    sync::{
        Arc, Mutex, Weak,
        atomic::{AtomicI64, Ordering},
    },
};

use gst::prelude::*;
use xmem_core::{Delivery, FrameMeta, ReadLease};

use super::{
    base::CAT,
    latency::{self, Delays},
    settings::{Settings, XmemSrcStartFrom, XmemSrcTimestampMode},
    shift::{Gathering, Key, MARGIN, Shift, Spacing},
    stream::{Playback, Units},
    window::{Segment, Window},
};
use crate::{
    lock,
    stream::timing::{self, ClockOffset, Origin},
};

/// Encoders do not keep exactly to the latency that they report, or report none.
const SLACK: gst::ClockTime = gst::ClockTime::from_mseconds(50);
/// Shorter changes of the delay are not followed, because each change of the latency is visible.
const STEP: gst::ClockTime = gst::ClockTime::from_mseconds(20);

/// The first frame of a live stream is hardly older.
const AGE: gst::ClockTime = gst::ClockTime::SECOND;

/// The delay of the frames is measured for this time.
const MEASURED_FOR: gst::ClockTime = gst::ClockTime::SECOND;

/// The times of a buffer.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct BufferTimes {
    pub(super) pts: Option<gst::ClockTime>,
    pub(super) dts: Option<gst::ClockTime>,
    pub(super) duration: Option<gst::ClockTime>,
    /// The frame belongs to the time before the pipeline's start. Its times are those of the start.
    pub(super) is_early: bool,
}

impl BufferTimes {
    pub(super) fn earliest(&self) -> Option<gst::ClockTime> {
        self.pts.into_iter().chain(self.dts).min()
    }
}

/// Converts the producer's times to times of this pipeline.
#[derive(Debug, Default)]
pub(super) struct ToRunningTime {
    mode: XmemSrcTimestampMode,
    mapping: Arc<FromRunningTime>,
    /// `start-from=oldest`: frames from before the pipeline's start keep their spacing.
    from_oldest: bool,
    clock: ClockOffset,
    /// CLOCK_MONOTONIC when the first frame was requested. Used for pipelines without a clock.
    began: Option<i64>,
    /// The delivery of the present producer.
    delivery: Delivery,
    /// `None`: no frame of this producer had a time yet.
    shift: Option<Arc<Shift>>,
    /// The shift at the last frame, in nanoseconds.
    shifted_by: i64,
    /// The shift of the pipeline's live streams, from the first live stream of this source on.
    live_shift: Option<Arc<Shift>>,
    /// The intervals of the present producer's frames.
    spacing: Spacing,
    /// The pipeline's base time at the last frame. `None`: no frame yet, or no clock.
    base_time: Option<gst::ClockTime>,
    /// The running time at which the pipeline started or resumed. No frame gets an earlier time.
    resumed_at: gst::ClockTime,
    /// The latest end of a frame.
    latest: gst::ClockTime,
    /// With `timestamp-mode=arrival`: the time of the last frame.
    arrived: Option<gst::ClockTime>,
    /// The pipeline was paused after the last frame.
    was_paused: bool,
    /// The stream needs a greater shift than the one that it shares, so frames from before the start are left out.
    is_short: bool,
    /// Set while this stream waits for others that begin with it. By how much it is to be shifted.
    gathers: Option<(Gathering, gst::ClockTime)>,
    /// The next frame is the first one of another producer.
    follows: bool,
    /// The pipeline plays again after a pause, or its running time was reset.
    has_resumed: bool,
    /// The least time from that of a frame of this producer to its publication, in nanoseconds. Negative: frames come ahead of their
    /// times.
    delay: Option<i64>,
    /// From when on the delay can be reported, on CLOCK_MONOTONIC. `None`: there was no frame of this producer yet.
    measured_at: Option<i64>,
    /// The delay after `MEASURED_FOR`. Zero: not to be reported.
    measured: Option<gst::ClockTime>,
    /// The shift or the delay has changed.
    has_news: bool,
    /// Frames before the next one were missed.
    has_missed: bool,
    window: Window,
}

impl ToRunningTime {
    pub(super) fn new(settings: &Settings, mapping: Arc<FromRunningTime>) -> Self {
        Self {
            mode: settings.timestamp_mode,
            mapping,
            from_oldest: settings.start_from == XmemSrcStartFrom::Oldest,
            ..Self::default()
        }
    }

    /// The pipeline changes to PLAYING.
    pub(super) fn begin(&mut self) {
        self.began.get_or_insert_with(xmem_core::monotonic_ns);
    }

    /// Frames before the next one were missed.
    pub(super) fn note_missed(&mut self) {
        self.has_missed = true;
    }

    /// The next frames are from another producer.
    pub(super) fn begin_producer(&mut self, delivery: Delivery) {
        self.delivery = delivery;
        self.follows |= self.shift.is_some();
        self.shift = None;
        self.shifted_by = 0;
        self.mapping.set_shift(None);
        self.was_paused = false;
        self.forget_delay();
    }

    /// The next frames are from another stream. Returns the segment that applies. `None`: that of GstBaseSrc.
    pub(super) fn begin_stream(
        &mut self,
        src: &gst_base::BaseSrc,
        units: Units,
    ) -> Option<&Segment> {
        self.forget_delay();
        if units == Units::Bytes {
            // Demuxers pass a segment on, and have times of their own.
            self.window = Window::default();
        } else if self.latest.is_zero() && self.window.segment().is_none() {
            // The producer may have come long after the start.
            let now = Origin::of_present(src.upcast_ref())
                .map(|origin| origin.to_running_time(xmem_core::monotonic_ns()));
            let begin = now.unwrap_or_default().saturating_sub(AGE);
            self.window.begin_at(begin);
        }
        self.window.segment()
    }

    /// The delay and the intervals of another stream may be others.
    fn forget_delay(&mut self) {
        self.delay = None;
        self.measured_at = None;
        self.measured = None;
        self.spacing = Spacing::default();
    }

    /// Whether frames may be left out because of a pause. Clears the flag.
    pub(super) fn take_resumed(&mut self) -> bool {
        take(&mut self.has_resumed)
    }

    /// Whether the shift or the delay has changed. Clears the flag.
    pub(super) fn has_news(&mut self) -> bool {
        take(&mut self.has_news)
    }

    /// Waits for the other streams that begin now, if this one begins. Then the frame that was stamped last is to be stamped again.
    pub(super) fn gather(&mut self, is_cancelled: impl Fn() -> bool) -> bool {
        let (Some((gathering, need)), Some(shift)) = (self.gathers.take(), &self.shift) else {
            return false;
        };
        gathering.wait(is_cancelled);
        self.is_short = shift.get() < need.nseconds().cast_signed();
        true
    }

    /// The segment to send before the frame that was stamped last. `None`: the previous one applies.
    pub(super) fn due_segment(&mut self) -> Option<&Segment> {
        self.window.due()
    }

    /// By how much the frames' times are delayed.
    fn shift(&self) -> gst::ClockTime {
        gst::ClockTime::from_nseconds(self.shifted_by.unsigned_abs())
    }

    pub(super) fn delays(&self) -> Delays {
        let shift = self.shift();
        Delays {
            shift,
            paid: if self.is_live() {
                shift
            } else {
                gst::ClockTime::ZERO
            },
            least: timing::elapsed(0, self.delay.unwrap_or_default()),
            ahead: timing::elapsed(self.delay.unwrap_or_default(), 0),
            measured: self.measured.unwrap_or_default(),
        }
    }

    /// Whether the frames have the shift of all live streams.
    fn is_live(&self) -> bool {
        self.shift.as_ref().is_some_and(|shift| shift.is_live())
    }

    /// Whether the present producer has been followed for some time.
    pub(super) fn is_measured(&self) -> bool {
        self.measured.is_some()
    }

    pub(super) fn stamp(
        &mut self,
        src: &gst_base::BaseSrc,
        lease: &ReadLease,
        playback: &Playback,
    ) -> BufferTimes {
        let meta = lease.meta();
        let duration = meta.duration.and_then(timing::known);
        let raw = || BufferTimes {
            pts: meta.pts.and_then(timing::known),
            dts: meta.dts.and_then(timing::known),
            duration,
            is_early: false,
        };
        if self.mode == XmemSrcTimestampMode::Passthrough {
            let times = raw();
            self.mapping.note_raw(times.pts, meta.timestamp);
            return times;
        }
        let duration = duration.map(|duration| at_speed(duration, playback.speed()));
        let Some((origin, base_time)) = self.clock.origin(src.upcast_ref(), self.began) else {
            return BufferTimes {
                duration,
                ..BufferTimes::default()
            };
        };
        let before = replace(&mut self.base_time, base_time);
        if before.is_some() && before != base_time {
            self.note_base_time(src);
        }
        let mut is_early = false;
        let (pts, dts) = if self.mode == XmemSrcTimestampMode::Arrival {
            // The time when it was published, not when it was taken: a sink that waits for a frame's time delays the next frame
            // by that.
            let published_at = lease.info().published_at;
            let origin = self.origin_of_arrival(origin, published_at, playback);
            let mut arrival = origin.to_running_time(published_at).max(self.resumed_at);
            if arrival == self.resumed_at {
                is_early = self.is_early(origin, [Some(published_at); 2], meta, playback);
                // Two frames that are hardly early would have the same time.
                let next = |before: gst::ClockTime| before.saturating_add(gst::ClockTime::NSECOND);
                arrival = arrival.max(self.arrived.map_or(arrival, next));
            }
            if !is_early {
                self.arrived = Some(arrival);
            }
            // Frames in decoding order keep the distance between their PTS and DTS.
            let raw = raw();
            let ahead = raw
                .pts
                .zip(raw.dts)
                .and_then(|(pts, dts)| pts.checked_sub(dts));
            let pts = arrival.saturating_add(at_speed(ahead.unwrap_or_default(), playback.speed()));
            (Some(pts), raw.dts.map(|_| arrival))
        } else {
            let origin = self.shifted_origin(src, origin, base_time, lease, playback);
            let time = |time: i64| origin.to_running_time(time).max(self.resumed_at);
            let (pts, dts) = (meta.timestamp.map(time), meta.decode_timestamp.map(time));
            let begin = Some(self.resumed_at);
            if pts == begin || dts == begin {
                let times = [earliest(meta), meta.timestamp];
                is_early = self.is_early(origin, times, meta, playback);
            }
            (pts, dts)
        };
        let end = pts.map(|pts| pts.saturating_add(duration.unwrap_or_default()));
        self.latest = self.latest.max(end.max(dts).unwrap_or_default());
        let times = BufferTimes {
            pts,
            dts,
            duration,
            is_early,
        };
        // `passthrough` sends the producer's own segment. Times of `arrival` have no relation to it.
        if self.mode == XmemSrcTimestampMode::Clock {
            self.window.follow(playback, meta, &times);
        } else {
            self.window.keep_open(&times);
        }
        times
    }

    /// Whether a frame with a time not after the start belongs to the time before the pipeline's start. `origin` is that of its
    /// times: when it is needed first, and when it is shown. Of raw frames, the last one before the start is still needed then.
    #[cold]
    fn is_early(
        &self,
        origin: Origin,
        [needed, shown]: [Option<i64>; 2],
        meta: &FrameMeta,
        playback: &Playback,
    ) -> bool {
        let is_live = match self.mode {
            XmemSrcTimestampMode::Arrival => playback.timeline().live,
            _ => self.is_live(),
        };
        // A file begins with its first frame. After a pause, it goes on with the present one, as a camera does.
        let is_at_the_beginning = !is_live && self.resumed_at.is_zero();
        if (is_at_the_beginning && !self.is_short) || self.delivery == Delivery::Lossless {
            return false;
        }
        let begin = origin.later(self.resumed_at.nseconds().cast_signed());
        let is_before = |time: i64| !begin.before_start(time).is_zero();
        match playback.units() {
            Units::Bytes => false,
            Units::Coded => needed.is_some_and(is_before),
            Units::Pictures => shown.is_some_and(|time| {
                // If nearly nothing is left of it, the next frame begins at about the start.
                let lasts = meta.duration.and_then(timing::known).unwrap_or_default();
                let lasts = lasts.saturating_sub(gst::ClockTime::MSECOND);
                is_before(time.saturating_add_unsigned(lasts.nseconds()))
            }),
        }
    }

    /// The base time has changed. A pause increases it, so frames that were published before its end have times in the past. A
    /// flush that resets the running time to 0 starts again.
    ///
    /// Not `#[cold]`: with the call, each frame would take eight more instructions.
    fn note_base_time(&mut self, src: &gst_base::BaseSrc) {
        self.was_paused = self.shift.is_some();
        self.has_resumed = true;
        // Unknown if the application sets base times itself.
        let resumed = src.start_time().unwrap_or_default();
        if resumed.is_zero() {
            self.latest = gst::ClockTime::ZERO;
            self.arrived = None;
        }
        self.resumed_at = if self.is_live() {
            // Frames are later than their times by the latency, so those of the pause's end have earlier times.
            self.latest
        } else {
            resumed.max(self.latest)
        };
    }

    /// The origin, later by the shift.
    ///
    /// Without a shift, all frames from before the pipeline's start would get time 0 and lose their spacing. So all frames are
    /// shifted if the stream was held up (such as a file whose producer waited for this consumer), or if `start-from=oldest`. The
    /// same applies after a pause, relative to the time when the pipeline resumed. The pause itself held up a lossless stream.
    ///
    /// Live streams are shifted at most by the latency that the producer promises, and the latency of this source becomes smaller by
    /// as much. So frames are shown when they are due.
    fn shifted_origin(
        &mut self,
        src: &gst_base::BaseSrc,
        origin: Origin,
        base_time: Option<gst::ClockTime>,
        lease: &ReadLease,
        playback: &Playback,
    ) -> Origin {
        let meta = lease.meta();
        // An event may have the presentation time of a frame that is to be decoded earlier.
        let is_considered = !(meta.event && playback.timeline().live);
        if let Some(earliest) = earliest(meta).filter(|_| is_considered) {
            // A decoder adds the time by which frames are decoded earlier.
            let shown = meta.timestamp.unwrap_or(earliest);
            let published_at = lease.info().published_at;
            let late = published_at.saturating_sub(shown);
            let is_less = self.delay.is_none_or(|delay| late < delay);
            if is_less || self.measured_at.is_some_and(|at| published_at >= at) {
                self.note_delay(late, published_at, playback);
            }
            let duration = meta.duration.and_then(timing::known);
            let missing = self.spacing.missing(earliest, duration);
            let has_missed = take(&mut self.has_missed);
            match &self.shift {
                Some(shift) if !self.was_paused => {
                    // After a gap the shift can shrink. If it stayed at the limit of the pool's history, each later frame would
                    // be lost. A film, and streams that share a shift, may have gaps of their own, so there only missed frames
                    // count.
                    if !missing.is_zero()
                        && (has_missed
                            || (playback.timeline().live && Arc::strong_count(shift) == 1))
                        && playback.knows_gaps(meta)
                        && !shift.is_live()
                    {
                        let missing = missing.nseconds().cast_signed();
                        shift.lower_to(self.shifted_by.saturating_sub(missing));
                    }
                    let by = shift.get();
                    if by != self.shifted_by {
                        self.follow_shift(by, missing);
                    }
                }
                _ => self.begin_shift(src, origin, base_time, earliest, lease, playback),
            }
        }
        origin.later(self.shifted_by.saturating_neg())
    }

    /// The origin of times of publication. They are shifted only so that the frames of `start-from=oldest`, those for which a
    /// lossless producer waited during a pause, and those of the next film keep their spacing.
    fn origin_of_arrival(
        &mut self,
        origin: Origin,
        published_at: i64,
        playback: &Playback,
    ) -> Origin {
        if self.shift.is_none() || self.was_paused {
            let was_paused = take(&mut self.was_paused);
            let is_film = !playback.timeline().live;
            let goes_on =
                (is_film && self.follows) || (self.delivery == Delivery::Lossless && was_paused);
            let before = self.before_start(origin, published_at, is_film);
            let shift = Shift::of(None);
            shift.raise_to(self.shift(), gst::ClockTime::ZERO);
            if self.from_oldest || goes_on {
                shift.raise_to(before, gst::ClockTime::ZERO);
            }
            self.set_shift(shift);
        }
        origin.later(self.shifted_by.saturating_neg())
    }

    /// By how much the first frame, or the first one after a pause, is earlier than all times from now on. If the stream
    /// `is_held_up`, it begins when that of the producer before it has ended, because muxers take no times that go back.
    fn before_start(&mut self, origin: Origin, time: i64, is_held_up: bool) -> gst::ClockTime {
        if take(&mut self.follows) && is_held_up {
            self.resumed_at = self.resumed_at.max(self.latest);
        }
        let begin = origin.later(self.resumed_at.nseconds().cast_signed());
        begin.before_start(time)
    }

    fn set_shift(&mut self, shift: Arc<Shift>) {
        self.mapping.set_shift(Some(&shift));
        self.shifted_by = shift.get();
        self.shift = Some(shift);
        self.has_news = true;
    }

    /// The shift has changed. Another stream with this shift may have lowered it, because it missed frames. Then this one leaves out as
    /// much, unless so much is `missing` in it too.
    #[cold]
    fn follow_shift(&mut self, by: i64, missing: gst::ClockTime) {
        let lowered = replace(&mut self.shifted_by, by).saturating_sub(by);
        self.has_news = true;
        if lowered > missing.nseconds().cast_signed() {
            self.resumed_at = self.resumed_at.max(self.latest);
            self.has_resumed = true;
        }
    }

    /// The delay is less than before, or was measured for long enough. Frames that were held up, such as those of a camera that waited
    /// for a consumer, are over after a short time. If all are later than promised, the producer does not report its latency.
    #[cold]
    fn note_delay(&mut self, late: i64, published_at: i64, playback: &Playback) {
        // The producer cannot keep frames for so long, and a single one may have a wrong time.
        let is_far_ahead = |kept| timing::elapsed(late, 0) > kept;
        if playback.kept().is_some_and(is_far_ahead) {
            return;
        }
        let end = published_at.saturating_add_unsigned(MEASURED_FOR.nseconds());
        let at = *self.measured_at.get_or_insert(end);
        let step = STEP.nseconds().cast_signed();
        let late = late.div_euclid(step).saturating_mul(step);
        self.delay = Some(self.delay.map_or(late, |delay| delay.min(late)));
        if published_at >= at {
            self.measured_at = Some(i64::MAX);
            let is_live = playback.timeline().live && self.delivery == Delivery::Live;
            let least = self.delays().least;
            let measured = if is_live { least } else { gst::ClockTime::ZERO };
            self.measured.get_or_insert(measured);
        }
        self.has_news = true;
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
        let timeline = playback.timeline();
        let by = self.shift.as_ref().map_or(0, |shift| shift.get());
        let was_paused = take(&mut self.was_paused);
        self.is_short = false;
        // A live frame may arrive later than its time by the latency. That does not mean that the stream was held up. The latency
        // is that of the presentation.
        let meta = lease.meta();
        let reordered = meta
            .decode_timestamp
            .zip(meta.timestamp)
            .map_or(gst::ClockTime::ZERO, |(dts, pts)| timing::elapsed(dts, pts));
        let promised = timeline.latency.saturating_add(reordered);
        let late = timing::elapsed(earliest, lease.info().published_at);
        let is_lossless = self.delivery == Delivery::Lossless;
        // How much earlier another stream of the same pipeline may start. Zero: there is no other stream.
        let others = latency::others(src);
        let is_alone = others.is_empty();
        let margin = if is_alone {
            gst::ClockTime::ZERO
        } else {
            MARGIN
        };
        // A live stream that shares its shift cannot catch up.
        let catches_up = playback.knows_gaps(meta) && margin.is_zero();
        let keeps_spacing = !timeline.live || (is_lossless && catches_up);
        let goes_on = keeps_spacing && (self.follows || (was_paused && is_lossless));
        let before = self.before_start(origin, earliest, keeps_spacing);
        let was_held_up = keeps_spacing && (!timeline.live || late > promised);
        let shift = if self.from_oldest || goes_on || was_held_up {
            let key = timeline.base_time.zip(base_time);
            let key = key.map(|(there, here)| Key::HeldUp(there, here));
            let shift = Shift::of(key);
            shift.raise_to(
                gst::ClockTime::from_nseconds(by.unsigned_abs()),
                gst::ClockTime::ZERO,
            );
            if self.from_oldest && !is_alone && !is_lossless && key.is_some() {
                // Each pool keeps frames for another time.
                let begins = |it: &&gst::Element| it.current_state() >= gst::State::Paused;
                let others = others.iter().filter(begins).count();
                self.gathers = Some((shift.gather(before, others), before));
            } else if self.from_oldest || goes_on {
                // Streams that were paused together need nearly the same shift.
                shift.raise_to(before, gst::ClockTime::ZERO);
            } else if late > promised {
                shift.raise_to(before.min(late), margin);
            }
            shift
        } else {
            self.live_shift(src, || {
                let is_promised = late <= promised.saturating_add(SLACK);
                if is_promised && !latency::has_other_live_source(src) {
                    // Later frames may come less late, and would wait for longer than the producer can keep them.
                    let most = playback.kept().unwrap_or(gst::ClockTime::MAX);
                    before.min(late).min(most)
                } else {
                    gst::ClockTime::ZERO
                }
            })
        };
        gst::debug!(
            CAT,
            obj = src,
            "The first frame was published {late} after its time, and is {before} before the start: delayed by {} ns",
            shift.get()
        );
        self.set_shift(shift);
    }

    /// The shift of the pipeline's live streams. `need`: how much this stream needs, if it is the first.
    fn live_shift(
        &mut self,
        src: &gst_base::BaseSrc,
        need: impl FnOnce() -> gst::ClockTime,
    ) -> Arc<Shift> {
        if let Some(shift) = &self.live_shift {
            return shift.clone();
        }
        let shift = Shift::of(Some(Key::Live(latency::pipeline_address(src))));
        shift.fix(need());
        self.live_shift = Some(shift.clone());
        shift
    }
}

/// The earlier one of a frame's times, on CLOCK_MONOTONIC.
fn earliest(meta: &FrameMeta) -> Option<i64> {
    let times = meta.timestamp.into_iter().chain(meta.decode_timestamp);
    times.min()
}

/// The duration here of what lasts this long in the producer's stream.
pub(super) fn at_speed(duration: gst::ClockTime, speed: f64) -> gst::ClockTime {
    if speed == 1.0 {
        return duration;
    }
    // A float is precise enough for the duration of a frame. The cast saturates.
    timing::known((duration.nseconds() as f64 / speed) as u64).unwrap_or(gst::ClockTime::MAX)
}

/// What the streaming thread notes about the times of the frames.
#[derive(Debug)]
pub(super) struct FromRunningTime {
    /// The shift of the frames. Weak: the number of references shows whether streams share it.
    shift: Mutex<Weak<Shift>>,
    /// With `timestamp-mode=passthrough`: how far the last frame's time on CLOCK_MONOTONIC is ahead of its PTS.
    ahead: AtomicI64,
}

const UNKNOWN: i64 = i64::MIN;

impl Default for FromRunningTime {
    fn default() -> Self {
        Self {
            shift: Mutex::default(),
            ahead: AtomicI64::new(UNKNOWN),
        }
    }
}

impl FromRunningTime {
    pub(super) fn set_shift(&self, shift: Option<&Arc<Shift>>) {
        *lock(&self.shift) = shift.map(Arc::downgrade).unwrap_or_default();
    }

    /// The frame has times of the producer.
    pub(super) fn note_raw(&self, pts: Option<gst::ClockTime>, timestamp: Option<i64>) {
        if let Some((pts, timestamp)) = pts.zip(timestamp) {
            let ahead = timestamp.saturating_sub_unsigned(pts.nseconds());
            // Relaxed, like the load in `of_raw`: no other data depends on it.
            self.ahead.store(ahead, Ordering::Relaxed);
        }
    }

    /// The time on CLOCK_MONOTONIC of frames with this running time, if their times were converted. `None`: it is not known.
    pub(super) fn of_converted(
        &self,
        element: &gst::Element,
        running_time: gst::ClockTime,
    ) -> Option<i64> {
        let origin = Origin::of_present(element)?;
        let shift = lock(&self.shift).upgrade();
        origin
            .later(shift.map_or(0, |shift| shift.get()).saturating_neg())
            .to_monotonic(gst::Signed::Positive(running_time))
    }

    /// The same for frames with the producer's times and this segment. It is not known at another rate than 1.
    pub(super) fn of_raw(
        &self,
        segment: Option<&gst::Segment>,
        running_time: gst::ClockTime,
    ) -> Option<i64> {
        let segment = segment?.downcast_ref::<gst::ClockTime>()?;
        let pts = segment.position_from_running_time(running_time)?;
        let ahead = self.ahead.load(Ordering::Relaxed);
        (ahead != UNKNOWN && segment.rate() == 1.0)
            .then(|| ahead.saturating_add_unsigned(pts.nseconds()))
    }
}
