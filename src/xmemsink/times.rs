// SPDX-License-Identifier: MPL-2.0

//! When a frame is handed over, and its times on CLOCK_MONOTONIC.

use gst::{prelude::*, subclass::prelude::*};
use gst_base::prelude::*;

use super::{XmemSinkPace, imp::XmemSink, log::CAT};
use crate::{
    lock::lock,
    timeline::Timeline,
    timing::{ClockOffset, Origin},
};

/// What is known of the pipeline's time.
#[derive(Debug, Default)]
pub(super) struct Times {
    clock: ClockOffset,
    /// Whether upstream says that it is live, and with what latency. `None`: not asked yet.
    upstream: Option<(bool, gst::ClockTime)>,
    /// CLOCK_MONOTONIC when the pipeline first played; for pipelines without a clock.
    began: Option<i64>,
}

impl Times {
    /// Upstream may say something else now.
    pub(super) fn forget_upstream(&mut self) {
        self.upstream = None;
    }

    /// The pipeline plays.
    pub(super) fn begin(&mut self) {
        self.began.get_or_insert_with(xmem_core::monotonic_ns);
    }
}

/// A buffer's times on CLOCK_MONOTONIC.
#[derive(Debug, Default)]
pub(super) struct Stamps {
    pub(super) presentation: Option<i64>,
    pub(super) decoding: Option<i64>,
}

impl XmemSink {
    /// Whether a frame is handed over as it comes instead of at its time.
    pub(super) fn hands_over_at_once(&self) -> bool {
        match lock(&self.settings).pace {
            XmemSinkPace::Always => false,
            XmemSinkPace::Never => true,
            XmemSinkPace::Auto => self.upstream().0,
        }
    }

    /// Asks upstream whether it is live and with what latency: once for each segment, and when the latency changes.
    fn upstream(&self) -> (bool, gst::ClockTime) {
        let known = lock(&self.times).upstream;
        if let Some(known) = known {
            return known;
        }
        let mut query = gst::query::Latency::new();
        let upstream = if self.obj().sink_pad().peer_query(&mut query) {
            let (live, latency, _) = query.result();
            (live, latency)
        } else {
            (false, gst::ClockTime::ZERO)
        };
        gst::debug!(CAT, imp = self, "Upstream is live, latency: {upstream:?}");
        lock(&self.times).upstream = Some(upstream);
        upstream
    }

    /// What the times of the frames stand for now.
    pub(super) fn timeline(&self) -> Timeline {
        let obj = self.obj();
        let (live, latency) = self.upstream();
        let paced = obj.is_sync() && !self.hands_over_at_once();
        Timeline {
            live,
            latency: if live && !paced {
                let sooner = obj.ts_offset().min(0).unsigned_abs();
                latency.saturating_add(gst::ClockTime::from_nseconds(sooner))
            } else {
                gst::ClockTime::ZERO
            },
            pacing: if paced {
                obj.latency()
            } else {
                gst::ClockTime::ZERO
            },
            base_time: obj.clock().and_then(|_| obj.base_time()),
        }
    }

    /// Where the running time 0 lies on CLOCK_MONOTONIC.
    fn origin(&self) -> Option<Origin> {
        let obj = self.obj();
        let clock = obj.clock();
        // Only the streaming thread has to do with it, and reading a clock leads out of the element.
        let mut followed = std::mem::take(&mut lock(&self.times).clock);
        let offset = followed.now(clock.as_ref());
        let mut times = lock(&self.times);
        times.clock = followed;
        match offset {
            Some(offset) => Some(Origin::new(obj.base_time()?, offset)),
            None => times.began.map(Origin::without_clock),
        }
    }

    /// The times of a buffer on CLOCK_MONOTONIC.
    pub(super) fn stamps(&self, timeline: &Timeline, buffer: &gst::BufferRef) -> Stamps {
        let obj = self.obj();
        let Some(origin) = self.origin() else {
            return Stamps::default();
        };
        let on_top = timeline.pacing.nseconds().cast_signed();
        let origin = origin.later(on_top.saturating_add(obj.ts_offset()));
        let segment = obj.segment();
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
