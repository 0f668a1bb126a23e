// SPDX-License-Identifier: MPL-2.0

//! When a frame or event may be published, and its times on CLOCK_MONOTONIC.

use std::sync::{
    Mutex,
    atomic::{AtomicI64, AtomicU8, AtomicU64, Ordering},
};

use gst::prelude::*;
use gst_base::prelude::*;
use xmem_core::{Canceller, Wait, WaitError};

use super::{
    base::{self, CAT, Data},
    run::Started,
    settings::XmemSinkPace,
    stream::SinkStream,
};
use crate::{
    lock,
    stream::{
        timeline::Timeline,
        timing::{self, ClockOffset, Origin},
    },
};

/// The state that converts the pipeline's times.
#[derive(Debug)]
pub(super) struct ToMonotonic {
    /// An `XmemSinkPace`.
    pace: AtomicU8,
    /// Upstream's liveness and latency, encoded by [`pack`]; `UNKNOWN`, or `QUERIED`. Only the streaming thread queries it.
    upstream: AtomicU64,
    /// How long the pool can keep the frames, in nanoseconds; or `UNKNOWN`: long enough.
    kept: AtomicU64,
    /// How far the time of the last frame on CLOCK_MONOTONIC was after its running time, because of pacing and ts-offset, in
    /// nanoseconds.
    on_top: AtomicI64,
    /// CLOCK_MONOTONIC when the pipeline first played. Used for pipelines without a clock.
    began: Mutex<Option<i64>>,
    /// Only the streaming thread takes this lock, so it may call a clock while it holds the lock.
    followed: Mutex<Followed>,
}

/// Upstream was not queried yet, or there is no limit.
const UNKNOWN: u64 = u64::MAX;
/// Upstream is being queried.
const QUERIED: u64 = UNKNOWN - 1;

#[derive(Debug, Default)]
struct Followed {
    clock: Option<gst::Clock>,
    offset: ClockOffset,
}

/// Converts the times of buffers, for the present clock and latency.
#[derive(Debug)]
pub(super) struct TimeMapping {
    pub(super) timeline: Timeline,
    /// The CLOCK_MONOTONIC time of running time 0.
    origin: Option<Origin>,
}

/// A buffer's times on CLOCK_MONOTONIC.
#[derive(Debug, Default)]
pub(super) struct MonotonicTimes {
    pub(super) presentation: Option<i64>,
    pub(super) decoding: Option<i64>,
}

impl Default for ToMonotonic {
    fn default() -> Self {
        Self {
            pace: AtomicU8::new(XmemSinkPace::default() as u8),
            upstream: AtomicU64::new(UNKNOWN),
            kept: AtomicU64::new(UNKNOWN),
            on_top: AtomicI64::new(0),
            began: Mutex::default(),
            followed: Mutex::default(),
        }
    }
}

fn pack((live, latency): (bool, gst::ClockTime)) -> u64 {
    (latency.nseconds().min(UNKNOWN >> 2) << 1) | u64::from(live)
}

fn unpack(upstream: u64) -> (bool, gst::ClockTime) {
    let latency = gst::ClockTime::from_nseconds(upstream >> 1);
    (upstream & 1 == 1, latency)
}

impl ToMonotonic {
    /// Running times restart.
    pub(super) fn reset(&self) {
        self.forget_upstream();
        self.on_top.store(0, Ordering::Relaxed);
        *lock(&self.began) = None;
        *lock(&self.followed) = Followed::default();
    }

    /// Makes the next frame query upstream again.
    pub(super) fn forget_upstream(&self) {
        // Pairs with the swap in `query_upstream`, so that a query after this gets the new latency.
        self.upstream.store(UNKNOWN, Ordering::Release);
    }

    /// The pipeline changes to PLAYING.
    pub(super) fn begin(&self) {
        lock(&self.began).get_or_insert_with(xmem_core::monotonic_ns);
    }

    /// Sets how long the pool can keep frames with the present caps. `None`: long enough.
    pub(super) fn set_kept(&self, kept: Option<gst::ClockTime>) {
        let kept = kept.map_or(UNKNOWN, gst::ClockTime::nseconds);
        self.kept.store(kept, Ordering::Relaxed);
    }

    pub(super) fn set_pace(&self, pace: XmemSinkPace) {
        self.pace.store(pace as u8, Ordering::Relaxed);
    }

    /// Whether frames are published when they arrive instead of at their times.
    pub(super) fn publishes_immediately(&self, sink: &gst_base::BaseSink) -> bool {
        const ALWAYS: u8 = XmemSinkPace::Always as u8;
        const NEVER: u8 = XmemSinkPace::Never as u8;
        match self.pace.load(Ordering::Relaxed) {
            ALWAYS => false,
            NEVER => true,
            _ => self.upstream(sink).0,
        }
    }

    /// Queries upstream for its liveness and latency: once for each segment, and when the latency changes.
    fn upstream(&self, sink: &gst_base::BaseSink) -> (bool, gst::ClockTime) {
        match self.upstream.load(Ordering::Relaxed) {
            UNKNOWN | QUERIED => self.query_upstream(sink),
            known => unpack(known),
        }
    }

    #[cold]
    fn query_upstream(&self, sink: &gst_base::BaseSink) -> (bool, gst::ClockTime) {
        // Pairs with the store in `forget_upstream`.
        self.upstream.swap(QUERIED, Ordering::Acquire);
        let mut query = gst::query::Latency::new();
        let upstream = if sink.sink_pad().peer_query(&mut query) {
            let (live, latency, _) = query.result();
            (live, latency)
        } else {
            (false, gst::ClockTime::ZERO)
        };
        gst::debug!(CAT, obj = sink, "Upstream is live, latency: {upstream:?}");
        // Not if the latency may have changed since: the next frame queries again. Relaxed: no other data depends on it.
        let _ = self.upstream.compare_exchange(
            QUERIED,
            pack(upstream),
            Ordering::Relaxed,
            Ordering::Relaxed,
        );
        upstream
    }

    /// The present conversion of the frames' times. Only for the streaming thread.
    pub(super) fn mapping(&self, sink: &gst_base::BaseSink) -> TimeMapping {
        let (live, latency) = self.upstream(sink);
        let paced = !self.publishes_immediately(sink) && sink.is_sync();
        let ts_offset = sink.ts_offset();
        let mut followed = lock(&self.followed);
        let Followed { clock, offset } = &mut *followed;
        let base_time = base::follow_clock(sink, clock);
        let timeline = Timeline {
            live,
            latency: if live && !paced {
                let sooner = ts_offset.min(0).unsigned_abs();
                latency.saturating_add(gst::ClockTime::from_nseconds(sooner))
            } else {
                gst::ClockTime::ZERO
            },
            pacing: if paced {
                sink.latency()
            } else {
                gst::ClockTime::ZERO
            },
            base_time: clock.as_ref().and(base_time),
            kept: timing::known(self.kept.load(Ordering::Relaxed)),
        };
        let origin = match offset.now(clock.as_ref()) {
            Some(offset) => base_time.map(|base_time| Origin::new(base_time, offset)),
            None => lock(&self.began).map(Origin::without_clock),
        };
        let on_top = timeline.pacing.nseconds().cast_signed();
        let on_top = on_top.saturating_add(ts_offset);
        // Relaxed, like the load in `running_time`: no other data depends on it.
        self.on_top.store(on_top, Ordering::Relaxed);
        TimeMapping {
            timeline,
            origin: origin.map(|origin| origin.later(on_top)),
        }
    }

    /// The running time of a frame with this time on CLOCK_MONOTONIC: the inverse of [`mapping`](Self::mapping), for any thread.
    /// `None`: the pipeline has no clock, or no running time yet.
    pub(super) fn running_time(
        &self,
        sink: &gst_base::BaseSink,
        at: i64,
    ) -> Option<gst::ClockTime> {
        let origin = Origin::of_present(sink.upcast_ref())?;
        let on_top = self.on_top.load(Ordering::Relaxed);
        Some(origin.later(on_top).to_running_time(at))
    }
}

impl TimeMapping {
    /// The times of a buffer on CLOCK_MONOTONIC. Only for the streaming thread.
    pub(super) fn stamps(
        &self,
        sink: &gst_base::BaseSink,
        buffer: &gst::BufferRef,
    ) -> MonotonicTimes {
        let Some(origin) = self.origin else {
            return MonotonicTimes::default();
        };
        let Some(segment) = base::segment(sink).downcast_ref::<gst::ClockTime>() else {
            return MonotonicTimes::default();
        };
        let monotonic =
            |time: Option<gst::ClockTime>| origin.to_monotonic(segment.to_running_time_full(time)?);
        let begins = match (buffer.pts(), buffer.duration()) {
            // In reverse playback a frame is shown from its end to its beginning.
            (Some(pts), Some(duration)) if segment.rate() < 0.0 => pts.checked_add(duration),
            (pts, _) => pts,
        };
        MonotonicTimes {
            presentation: monotonic(begins),
            decoding: monotonic(buffer.dts()),
        }
    }
}

/// The parts of a started sink that its streaming thread uses.
#[derive(Debug, Clone, Copy)]
pub(super) struct SinkContext<'a> {
    pub(super) sink: &'a gst_base::BaseSink,
    pub(super) started: &'a Started,
    pub(super) stream: &'a SinkStream,
    pub(super) times: &'a ToMonotonic,
    pub(super) interrupts: &'a Interrupts,
}

impl SinkContext<'_> {
    /// Waits until a frame or event may be published, then gives the pool the present sticky state.
    pub(super) fn prepare(&self, data: Data<'_>) -> Result<TimeMapping, gst::FlowError> {
        let producer = &self.started.producer;
        if self.started.settings.wait_for_connection && producer.num_consumers() == 0 {
            self.wait_for_consumer(data)?;
        }
        if self.started.is_lossless() {
            self.wait_for_room(data)?;
        } else if matches!(data, Data::Buffer(_)) {
            // GstBaseSink doesn't preroll with a frame outside of its segment. Until the pipeline plays, the base time isn't that of
            // the frames after a flush.
            base::preroll(self.sink, data)?;
        }
        // After the waits, because the pipeline may have been paused meanwhile.
        let mapping = self.times.mapping(self.sink);
        self.stream
            .push_sticky(self.sink, producer, Some(mapping.timeline))?;
        Ok(mapping)
    }

    #[cold]
    fn wait_for_consumer(&self, data: Data<'_>) -> Result<(), gst::FlowError> {
        gst::debug!(CAT, obj = self.sink, "Waiting for a consumer");
        self.wait(data, |cancel| {
            self.started
                .producer
                .wait_for_consumers(1, Wait::FOREVER.unless(cancel))
        })
    }

    /// Waits until lossless consumers have room for one more frame.
    pub(super) fn wait_for_room(&self, data: Data<'_>) -> Result<(), gst::FlowError> {
        self.wait(data, |cancel| {
            self.started
                .producer
                .wait_for_room(Wait::FOREVER.unless(cancel))
        })
    }

    /// Waits until lossless consumers have taken all frames.
    pub(super) fn drain(&self, data: Data<'_>) -> Result<(), gst::FlowError> {
        gst::debug!(
            CAT,
            obj = self.sink,
            "Waiting until consumers have got all frames"
        );
        self.wait(data, |cancel| {
            self.started.producer.drain(Wait::FOREVER.unless(cancel))
        })
    }

    fn wait(
        &self,
        data: Data<'_>,
        wait: impl Fn(&Canceller) -> Result<(), WaitError>,
    ) -> Result<(), gst::FlowError> {
        let is_cancelled = |error: &WaitError| *error == WaitError::Cancelled;
        loop {
            if let Some(result) = self.try_once(data, true, &wait, is_cancelled)? {
                // The only other error is a closed pool.
                return result.map_err(|_| gst::FlowError::Flushing);
            }
        }
    }

    /// Tries once. `waits`: the attempt may wait. `None`: the wait was cancelled; prepare again, since the pipeline may have been
    /// paused, and try again.
    pub(super) fn try_once<T, E>(
        &self,
        data: Data<'_>,
        waits: bool,
        attempt: impl FnOnce(&Canceller) -> Result<T, E>,
        is_cancelled: impl Fn(&E) -> bool,
    ) -> Result<Option<Result<T, E>>, gst::FlowError> {
        let canceller = &self.interrupts.canceller;
        if !waits {
            return Ok(Some(attempt(canceller)));
        }
        base::preroll(self.sink, data)?;
        match attempt(canceller) {
            Err(error) if is_cancelled(&error) => {
                while canceller.is_cancelled() {
                    base::yield_preroll_lock(self.sink);
                }
                Ok(None)
            }
            result => Ok(Some(result)),
        }
    }
}

/// Why waits are forbidden.
#[derive(Debug, Clone, Copy)]
pub(super) enum Reason {
    /// Between `unlock` and `unlock_stop`.
    Unlocked,
    /// The state is being changed to PLAYING.
    Resuming,
}

/// Cancels waits, and records the reasons.
#[derive(Debug, Default)]
pub(super) struct Interrupts {
    reasons: Mutex<(bool, bool)>,
    canceller: Canceller,
}

impl Interrupts {
    /// Sets or clears a reason. Waits are cancelled while a reason is set.
    pub(super) fn set(&self, reason: Reason, is_so: bool) {
        let mut reasons = lock(&self.reasons);
        match reason {
            Reason::Unlocked => reasons.0 = is_so,
            Reason::Resuming => reasons.1 = is_so,
        }
        // Under the lock, so that the last call sets the final state.
        if reasons.0 || reasons.1 {
            self.canceller.cancel();
        } else {
            self.canceller.reset();
        }
    }
}

/// Frames come and go irregularly.
const SLACK: gst::ClockTime = gst::ClockTime::from_mseconds(100);
/// If the caps do not have the rate.
const USUAL_RATE: i32 = 30;
/// Memory that the pool did not allocate, such as a decoder's, is kept for a few frames only.
const BORROWED: u32 = 3;

/// The longest time for frames with these caps. `None`: not known. Only raw video is so large that the limit matters.
pub(super) fn longest(caps: &gst::CapsRef, started: &Started) -> Option<gst::ClockTime> {
    let name = caps.structure(0)?.name();
    // VideoInfo logs an error for other caps.
    let is_picture = name.starts_with("video/") || name.starts_with("image/");
    if started.is_lossless() || !is_picture {
        return None;
    }
    let info = gst_video::VideoInfo::from_caps(caps).ok()?;
    let is_borrowed = caps
        .features(0)
        .is_some_and(|features| features.contains(gst_allocators::CAPS_FEATURE_MEMORY_DMABUF));
    let frames = if is_borrowed {
        BORROWED
    } else {
        started.producer.most_kept(info.size())
    };
    let rate = info.fps();
    let (frames_per, seconds) = match (rate.numer(), rate.denom()) {
        (1.., 1..) => (rate.numer(), rate.denom()),
        _ => (USUAL_RATE, 1),
    };
    let interval = gst::ClockTime::SECOND.mul_div_floor(
        u64::from(seconds.unsigned_abs()),
        u64::from(frames_per.unsigned_abs()),
    )?;
    let time = interval.saturating_mul(frames.saturating_sub(1).into());
    Some(time.saturating_sub(SLACK).max(interval))
}
