// SPDX-License-Identifier: MPL-2.0

//! Where a running time of downstream is in the producer's stream. For requests from downstream.

use std::sync::{
    Arc, Mutex, Weak,
    atomic::{AtomicI64, Ordering},
};

use gst::prelude::*;

use super::shift::Shift;
use crate::{lock, stream::timing::Origin};

/// What the streaming thread notes about the times of the frames.
#[derive(Debug)]
pub(super) struct Mapping {
    /// The shift of the frames. Weak: the number of references shows whether streams share it.
    shift: Mutex<Weak<Shift>>,
    /// With `timestamp-mode=passthrough`: how far the last frame's time on CLOCK_MONOTONIC is ahead of its PTS.
    ahead: AtomicI64,
}

const UNKNOWN: i64 = i64::MIN;

impl Default for Mapping {
    fn default() -> Self {
        Self {
            shift: Mutex::default(),
            ahead: AtomicI64::new(UNKNOWN),
        }
    }
}

impl Mapping {
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
        let now = xmem_core::monotonic_ns();
        let elapsed = element.current_running_time()?.nseconds().cast_signed();
        let shift = lock(&self.shift).upgrade();
        Origin::without_clock(now)
            .later(elapsed.saturating_neg())
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
