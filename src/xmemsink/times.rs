// SPDX-License-Identifier: MPL-2.0

//! When a frame is handed over, and its times on CLOCK_MONOTONIC.

use std::sync::Mutex;

use gst::prelude::*;
use gst_base::prelude::*;

use super::{enums::XmemSinkPace, log::CAT};
use crate::{
    lock,
    timeline::Timeline,
    timing::{ClockOffset, Origin},
};

/// What is known of the pipeline's time.
#[derive(Debug, Default)]
pub(super) struct Times(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    clock: ClockOffset,
    /// Whether upstream is live, and its latency. `None`: not asked yet.
    upstream: Option<(bool, gst::ClockTime)>,
    /// CLOCK_MONOTONIC when the pipeline first played; for pipelines without a clock.
    began: Option<i64>,
}

/// A buffer's times on CLOCK_MONOTONIC.
#[derive(Debug, Default)]
pub(super) struct Stamps {
    pub(super) presentation: Option<i64>,
    pub(super) decoding: Option<i64>,
}

impl Times {
    /// Running times begin anew.
    pub(super) fn reset(&self) {
        *lock(&self.0) = State::default();
    }

    /// Asks upstream again, which may answer something else now.
    pub(super) fn forget_upstream(&self) {
        lock(&self.0).upstream = None;
    }

    /// The pipeline plays.
    pub(super) fn begin(&self) {
        let mut state = lock(&self.0);
        state.began.get_or_insert_with(xmem_core::monotonic_ns);
    }

    /// Whether frames are handed over as they come instead of at their times.
    pub(super) fn hands_over_at_once(&self, sink: &gst_base::BaseSink, pace: XmemSinkPace) -> bool {
        match pace {
            XmemSinkPace::Always => false,
            XmemSinkPace::Never => true,
            XmemSinkPace::Auto => self.upstream(sink).0,
        }
    }

    /// Asks upstream whether it is live and with what latency: once for each segment, and when the latency changes.
    fn upstream(&self, sink: &gst_base::BaseSink) -> (bool, gst::ClockTime) {
        let known = lock(&self.0).upstream;
        if let Some(known) = known {
            return known;
        }
        let mut query = gst::query::Latency::new();
        let upstream = if sink.sink_pad().peer_query(&mut query) {
            let (live, latency, _) = query.result();
            (live, latency)
        } else {
            (false, gst::ClockTime::ZERO)
        };
        gst::debug!(CAT, obj = sink, "Upstream is live, latency: {upstream:?}");
        lock(&self.0).upstream = Some(upstream);
        upstream
    }

    /// What the times of the frames stand for now.
    pub(super) fn timeline(&self, sink: &gst_base::BaseSink, pace: XmemSinkPace) -> Timeline {
        let (live, latency) = self.upstream(sink);
        let paced = sink.is_sync() && !self.hands_over_at_once(sink, pace);
        Timeline {
            live,
            latency: if live && !paced {
                let sooner = sink.ts_offset().min(0).unsigned_abs();
                latency.saturating_add(gst::ClockTime::from_nseconds(sooner))
            } else {
                gst::ClockTime::ZERO
            },
            pacing: if paced {
                sink.latency()
            } else {
                gst::ClockTime::ZERO
            },
            base_time: sink.clock().and_then(|_| sink.base_time()),
        }
    }

    /// Where the running time 0 lies on CLOCK_MONOTONIC.
    fn origin(&self, sink: &gst_base::BaseSink) -> Option<Origin> {
        let clock = sink.clock();
        // Only the streaming thread has to do with it, and reading a clock leads out of the element.
        let mut followed = std::mem::take(&mut lock(&self.0).clock);
        let offset = followed.now(clock.as_ref());
        let mut state = lock(&self.0);
        state.clock = followed;
        match offset {
            Some(offset) => Some(Origin::new(sink.base_time()?, offset)),
            None => state.began.map(Origin::without_clock),
        }
    }

    /// The times of a buffer on CLOCK_MONOTONIC.
    pub(super) fn stamps(
        &self,
        sink: &gst_base::BaseSink,
        timeline: &Timeline,
        buffer: &gst::BufferRef,
    ) -> Stamps {
        let Some(origin) = self.origin(sink) else {
            return Stamps::default();
        };
        let on_top = timeline.pacing.nseconds().cast_signed();
        let origin = origin.later(on_top.saturating_add(sink.ts_offset()));
        let segment = sink.segment();
        let Some(segment) = segment.downcast_ref::<gst::ClockTime>() else {
            return Stamps::default();
        };
        let monotonic =
            |time: Option<gst::ClockTime>| origin.to_monotonic(segment.to_running_time_full(time)?);
        let begins = match (buffer.pts(), buffer.duration()) {
            // Backwards, a frame is shown from its end to its beginning.
            (Some(pts), Some(duration)) if segment.rate() < 0.0 => pts.checked_add(duration),
            (pts, _) => pts,
        };
        Stamps {
            presentation: monotonic(begins),
            decoding: monotonic(buffer.dts()),
        }
    }
}
