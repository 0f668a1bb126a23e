// SPDX-License-Identifier: MPL-2.0

//! Times of a pipeline to CLOCK_MONOTONIC, which all processes of a host share, and back.

use gst::{glib::prelude::*, prelude::*};

/// A clock that jumps by more than this is followed at once, anything less is smoothed.
const JUMP_NS: i64 = 5_000_000;
const SMOOTHING: i64 = 16;

/// How far CLOCK_MONOTONIC is ahead of a pipeline's clock.
#[derive(Debug, Default)]
pub(crate) struct ClockOffset {
    smoothed: Option<i64>,
}

impl ClockOffset {
    /// Samples both clocks. `None`: the pipeline has no clock.
    pub(crate) fn sample(&mut self, clock: Option<&gst::Clock>) -> Option<i64> {
        let clock = clock?;
        if is_monotonic(clock) {
            return Some(0);
        }
        let before = xmem_core::monotonic_ns();
        let time = clock.time().nseconds();
        let after = xmem_core::monotonic_ns();
        let middle = before + (after.saturating_sub(before)) / 2;
        Some(self.smooth(middle.cast_signed().wrapping_sub(time.cast_signed())))
    }

    fn smooth(&mut self, sample: i64) -> i64 {
        let smoothed = match self.smoothed {
            Some(old) if sample.abs_diff(old) < JUMP_NS.unsigned_abs() => {
                old + (sample - old) / SMOOTHING
            }
            _ => sample,
        };
        self.smoothed = Some(smoothed);
        smoothed
    }
}

/// Whether a clock shows CLOCK_MONOTONIC itself. Network clocks are subclasses of the system clock, and are not.
fn is_monotonic(clock: &gst::Clock) -> bool {
    clock.type_() == gst::SystemClock::static_type()
        && clock.property::<gst::ClockType>("clock-type") == gst::ClockType::Monotonic
}

/// Where a pipeline's running time 0 lies on CLOCK_MONOTONIC, and what comes on top.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Origin {
    ns: i128,
}

impl Origin {
    /// Base time and latency are on the pipeline's clock, which CLOCK_MONOTONIC is `offset` ahead of.
    pub(crate) fn new(base_time: gst::ClockTime, latency: gst::ClockTime, offset: i64) -> Self {
        Self {
            ns: i128::from(base_time.nseconds())
                + i128::from(latency.nseconds())
                + i128::from(offset),
        }
    }

    /// How much later everything has to come so that nothing from `earliest` on lies before the pipeline's start.
    pub(crate) fn shortfall(self, earliest: u64) -> gst::ClockTime {
        let ns =
            (self.ns - i128::from(earliest)).clamp(0, i128::from(gst::ClockTime::MAX.nseconds()));
        gst::ClockTime::from_nseconds(u64::try_from(ns).unwrap_or(0))
    }

    /// The same with everything so much later.
    pub(crate) fn delayed(self, by: gst::ClockTime) -> Self {
        Self {
            ns: self.ns - i128::from(by.nseconds()),
        }
    }

    /// A running time on CLOCK_MONOTONIC. `None`: before the host was started.
    pub(crate) fn to_monotonic(self, running_time: gst::Signed<gst::ClockTime>) -> Option<u64> {
        let running_time = match running_time {
            gst::Signed::Positive(time) => i128::from(time.nseconds()),
            gst::Signed::Negative(time) => -i128::from(time.nseconds()),
        };
        u64::try_from(self.ns + running_time).ok()
    }

    /// A time on CLOCK_MONOTONIC as running time; what was before the pipeline started comes at its start.
    pub(crate) fn to_running_time(self, monotonic: u64) -> gst::ClockTime {
        let ns =
            (i128::from(monotonic) - self.ns).clamp(0, i128::from(gst::ClockTime::MAX.nseconds()));
        gst::ClockTime::from_nseconds(u64::try_from(ns).unwrap_or(0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_and_back() {
        let here = Origin::new(gst::ClockTime::from_seconds(100), gst::ClockTime::ZERO, -7);
        let there = Origin::new(gst::ClockTime::from_seconds(103), gst::ClockTime::ZERO, 0);
        let five = gst::Signed::Positive(gst::ClockTime::from_seconds(5));
        let monotonic = here.to_monotonic(five).unwrap();
        assert_eq!(monotonic, 105_000_000_000 - 7);
        assert_eq!(
            here.to_running_time(monotonic),
            gst::ClockTime::from_seconds(5)
        );
        assert_eq!(
            there.to_running_time(monotonic).nseconds(),
            2_000_000_000 - 7
        );
        assert_eq!(there.to_running_time(1), gst::ClockTime::ZERO);
        // A stream that began before the pipeline keeps its spacing.
        let shift = there.shortfall(101_000_000_000);
        assert_eq!(shift, gst::ClockTime::from_seconds(2));
        let later = there.delayed(shift);
        assert_eq!(later.to_running_time(101_000_000_000), gst::ClockTime::ZERO);
        assert_eq!(
            later.to_running_time(101_040_000_000),
            gst::ClockTime::from_mseconds(40)
        );
        assert_eq!(there.shortfall(104_000_000_000), gst::ClockTime::ZERO);
        assert_eq!(
            here.to_monotonic(gst::Signed::Negative(gst::ClockTime::from_seconds(101))),
            None
        );
    }

    #[test]
    fn offsets_are_smoothed_and_jumps_are_followed() {
        let mut offset = ClockOffset::default();
        assert_eq!(offset.smooth(1_000_000), 1_000_000);
        assert_eq!(offset.smooth(1_160_000), 1_010_000);
        assert_eq!(offset.smooth(900_000_000), 900_000_000);
    }
}
