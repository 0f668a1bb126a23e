// SPDX-License-Identifier: MPL-2.0

//! Converts times of a pipeline to CLOCK_MONOTONIC, which all processes of a host share, and back.

// Reads fields of GstElement under the object lock.
#![allow(unsafe_code)]

use std::collections::VecDeque;

use gst::{glib::prelude::*, prelude::*};

/// The minimum interval between two samples of a clock.
const MIN_INTERVAL_NS: u64 = 50_000_000;
/// The number of samples in the regression.
const SAMPLES: usize = 32;
/// If a clock differs by more than this from the prediction, it was set, and earlier samples are discarded.
const JUMP_NS: u64 = 20_000_000;
/// A sample is good enough if its two readings of CLOCK_MONOTONIC differ by at most this.
const GOOD_NS: u64 = 5_000;
const TRIES: u32 = 4;

/// The present time, in the type of GStreamer's clock functions.
fn monotonic() -> u64 {
    xmem_core::monotonic_ns().cast_unsigned()
}

/// A simultaneous reading of both clocks.
#[derive(Debug, Clone, Copy)]
struct Sample {
    monotonic: u64,
    clock: u64,
}

impl Sample {
    /// Reads both clocks several times, and keeps the shortest attempt, because the thread may be interrupted between the
    /// readings.
    fn take(clock: &gst::Clock) -> Self {
        let mut best: Option<(u64, Self)> = None;
        for _ in 0..TRIES {
            let before = monotonic();
            let time = clock.time().nseconds();
            let took = monotonic().saturating_sub(before);
            if best.is_none_or(|(shortest, _)| took < shortest) {
                let sample = Self {
                    monotonic: before + took / 2,
                    clock: time,
                };
                best = Some((took, sample));
            }
            if took <= GOOD_NS {
                break;
            }
        }
        best.map_or_else(|| unreachable!("there is a try"), |(_, sample)| sample)
    }
}

/// A straight line through the last samples, which predicts the clock.
#[derive(Debug, Clone, Copy)]
struct Line {
    through: Sample,
    /// The clock advances by `rise` nanoseconds in `run` nanoseconds.
    rise: u64,
    run: u64,
}

impl Line {
    fn through(sample: Sample) -> Self {
        Self {
            through: sample,
            rise: 1,
            run: 1,
        }
    }

    /// The line with the best fit. `None`: the samples do not determine one.
    fn fit(samples: &[(u64, u64)]) -> Option<Self> {
        let (rise, run, clock, monotonic, _) = gst::calculate_linear_regression(samples, None)?;
        (run > 0).then_some(Self {
            through: Sample { monotonic, clock },
            rise,
            run,
        })
    }

    /// How far CLOCK_MONOTONIC is ahead of the clock at the time `monotonic`.
    fn offset(self, monotonic: u64) -> i64 {
        let past = i128::from(monotonic) - i128::from(self.through.monotonic);
        let clock = i128::from(self.through.clock)
            + past * i128::from(self.rise) / i128::from(self.run.max(1));
        i64::try_from(i128::from(monotonic) - clock).unwrap_or_default()
    }
}

/// How far CLOCK_MONOTONIC is ahead of a pipeline's clock. A linear regression removes the jitter of single readings and
/// follows drift without a lag.
#[derive(Debug, Default)]
pub(crate) struct ClockOffset {
    /// CLOCK_MONOTONIC and the clock. The newest sample is last.
    samples: VecDeque<(u64, u64)>,
    line: Option<Line>,
    /// The last clock, and whether it is a system clock of type CLOCK_MONOTONIC. Cached, because the query takes longer than
    /// all else here.
    last_clock: Option<(gst::Clock, bool)>,
}

impl ClockOffset {
    /// The origin of an element's running time, and its base time if the pipeline has a clock. Without one, the running time starts
    /// at the CLOCK_MONOTONIC time `began`.
    pub(crate) fn origin(
        &mut self,
        element: &gst::Element,
        began: Option<i64>,
    ) -> Option<(Origin, Option<gst::ClockTime>)> {
        let known_clock = self.last_clock.as_ref();
        let known_clock = known_clock.and_then(|(clock, set)| set.then_some(clock));
        let (clock, base_time) = {
            let locked = element.object_lock();
            let element = locked.as_ptr();
            // SAFETY: the element is alive, and its lock guards these fields.
            unsafe { ((*element).clock, (*element).base_time) }
        };
        let offset = match known_clock {
            // The clock is compared without a new reference. `last_clock` holds one, so the address is not reused.
            Some(known_clock) if known_clock.as_ptr() == clock && !is_calibrated(known_clock) => {
                Some(0)
            }
            _ => self.now(element.clock().as_ref()),
        };
        match offset {
            Some(offset) => {
                let base_time = known(base_time.cast_unsigned())?;
                Some((Origin::new(base_time, offset), Some(base_time)))
            }
            None => Some((Origin::without_clock(began?), None)),
        }
    }

    /// The present offset. `None`: the pipeline has no clock.
    pub(crate) fn now(&mut self, clock: Option<&gst::Clock>) -> Option<i64> {
        let clock = clock?;
        if self.is_monotonic(clock) {
            Some(0)
        } else {
            self.measure(clock)
        }
    }

    /// The offset of a clock that does not show CLOCK_MONOTONIC.
    #[inline(never)]
    fn measure(&mut self, clock: &gst::Clock) -> Option<i64> {
        let now = monotonic();
        if self
            .samples
            .back()
            .is_none_or(|(last, _)| now.saturating_sub(*last) >= MIN_INTERVAL_NS)
        {
            self.add(Sample::take(clock));
        }
        self.line.map(|line| line.offset(now))
    }

    /// Whether a clock shows CLOCK_MONOTONIC. A calibrated clock follows another clock.
    fn is_monotonic(&mut self, clock: &gst::Clock) -> bool {
        let set = match &self.last_clock {
            Some((last, set)) if last.as_ptr() == clock.as_ptr() => *set,
            _ => self.note(clock),
        };
        set && !is_calibrated(clock)
    }

    /// Caches whether this is a system clock of type CLOCK_MONOTONIC. Network clocks are subclasses of GstSystemClock and are
    /// not.
    #[cold]
    fn note(&mut self, clock: &gst::Clock) -> bool {
        let set = clock.type_() == gst::SystemClock::static_type()
            && clock.property::<gst::ClockType>("clock-type") == gst::ClockType::Monotonic;
        self.last_clock = Some((clock.clone(), set));
        set
    }

    fn add(&mut self, sample: Sample) {
        let measured = Line::through(sample);
        let expected = self.line.map(|line| line.offset(sample.monotonic));
        if expected
            .is_some_and(|expected| measured.offset(sample.monotonic).abs_diff(expected) > JUMP_NS)
        {
            self.samples.clear();
        }
        if self.samples.len() == SAMPLES {
            self.samples.pop_front();
        }
        self.samples.push_back((sample.monotonic, sample.clock));
        self.line = Line::fit(self.samples.make_contiguous()).or(Some(measured));
    }
}

/// Whether a calibration changes the clock's time.
fn is_calibrated(clock: &gst::Clock) -> bool {
    let (internal, external, rate, per) = clock.calibration();
    internal != external || rate != per
}

/// The CLOCK_MONOTONIC time of a pipeline's running time 0, shifts included.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Origin {
    ns: i128,
}

impl Origin {
    /// For a pipeline with a clock. CLOCK_MONOTONIC is `offset` ahead of that clock.
    pub(crate) fn new(base_time: gst::ClockTime, offset: i64) -> Self {
        Self {
            ns: i128::from(base_time.nseconds()) + i128::from(offset),
        }
    }

    /// For a pipeline without a clock. Its running time starts at the CLOCK_MONOTONIC time `began`.
    pub(crate) fn without_clock(began: i64) -> Self {
        Self {
            ns: i128::from(began),
        }
    }

    /// The present origin of an element's running time, for any thread. `None`: its pipeline has no clock, or no running time yet.
    pub(crate) fn of_present(element: &gst::Element) -> Option<Self> {
        let now = xmem_core::monotonic_ns();
        let elapsed = element.current_running_time()?.nseconds();
        Some(Self::without_clock(now).later(elapsed.cast_signed().saturating_neg()))
    }

    /// The origin, later by this many nanoseconds.
    pub(crate) fn later(self, by: i64) -> Self {
        Self {
            ns: self.ns + i128::from(by),
        }
    }

    /// A running time on CLOCK_MONOTONIC. It is negative before the host's start. `None`: it is out of range (292 years).
    pub(crate) fn to_monotonic(self, running_time: gst::Signed<gst::ClockTime>) -> Option<i64> {
        let running_time = match running_time {
            gst::Signed::Positive(time) => i128::from(time.nseconds()),
            gst::Signed::Negative(time) => -i128::from(time.nseconds()),
        };
        i64::try_from(self.ns + running_time).ok()
    }

    /// A time on CLOCK_MONOTONIC as running time. Times before the pipeline's start become 0.
    pub(crate) fn to_running_time(self, monotonic: i64) -> gst::ClockTime {
        clock_time(i128::from(monotonic) - self.ns)
    }

    /// The distance from a time to the pipeline's start. 0 for later times.
    pub(crate) fn before_start(self, monotonic: i64) -> gst::ClockTime {
        clock_time(self.ns - i128::from(monotonic))
    }
}

/// The time from one CLOCK_MONOTONIC time to a later one. 0 if it is not later.
pub(crate) fn elapsed(from: i64, to: i64) -> gst::ClockTime {
    clock_time(i128::from(to) - i128::from(from))
}

/// Nanoseconds, limited to the range of GStreamer's type.
fn clock_time(ns: i128) -> gst::ClockTime {
    let ns = ns.clamp(0, i128::from(gst::ClockTime::MAX.nseconds()));
    gst::ClockTime::from_nseconds(u64::try_from(ns).unwrap_or_default())
}

/// A time that another process wrote. `None`: it is out of range.
pub(crate) fn known(ns: u64) -> Option<gst::ClockTime> {
    (ns <= gst::ClockTime::MAX.nseconds()).then(|| gst::ClockTime::from_nseconds(ns))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_round_trip() {
        let here = Origin::new(gst::ClockTime::from_seconds(100), -7);
        let there = Origin::new(gst::ClockTime::from_seconds(103), 0);
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
        let shift = there.before_start(101_000_000_000);
        assert_eq!(shift, gst::ClockTime::from_seconds(2));
        let later = there.later(-2_000_000_000);
        assert_eq!(later.to_running_time(101_000_000_000), gst::ClockTime::ZERO);
        assert_eq!(
            later.to_running_time(101_040_000_000),
            gst::ClockTime::from_mseconds(40)
        );
        assert_eq!(there.before_start(104_000_000_000), gst::ClockTime::ZERO);
        // Times before the host's start are valid.
        let before = gst::Signed::Negative(gst::ClockTime::from_seconds(101));
        let monotonic = here.to_monotonic(before).unwrap();
        assert_eq!(monotonic, -1_000_000_000 - 7);
        let shift = here.before_start(monotonic);
        assert_eq!(shift, gst::ClockTime::from_seconds(101));
        let later = here.later(-101_000_000_000);
        assert_eq!(later.to_running_time(monotonic), gst::ClockTime::ZERO);
        let most = gst::Signed::Negative(gst::ClockTime::MAX);
        assert_eq!(here.to_monotonic(most), None);
    }

    /// Adds samples of a clock that is `ahead(ns)` ahead after `ns` nanoseconds, each with a small error.
    fn follow(offset: &mut ClockOffset, seconds: std::ops::Range<u64>, ahead: impl Fn(u64) -> u64) {
        for step in seconds.start * 20..seconds.end * 20 {
            let ns = step * MIN_INTERVAL_NS;
            // Pseudo-random numbers from -5 to +5 microseconds.
            let jitter = (step * 7919) % 10_007;
            offset.add(Sample {
                monotonic: ns,
                clock: ns + ahead(ns) + jitter - 5_000,
            });
        }
    }

    #[track_caller]
    fn assert_ahead(offset: &ClockOffset, at: u64, ahead: u64) {
        let error = offset.line.unwrap().offset(at) + ahead.cast_signed();
        assert!(error.abs() < 3_000, "off by {error} ns");
    }

    #[test]
    fn a_clock_is_followed_without_its_jitter_and_without_lag() {
        const AHEAD: u64 = 1_700_000_000_000_000_000;
        let mut offset = ClockOffset::default();
        follow(&mut offset, 0..10, |_| AHEAD);
        assert_ahead(&offset, 10_000_000_000, AHEAD);
        // 200 ppm is more than real clocks drift.
        let drifting = |ns: u64| AHEAD + ns / 5_000;
        let mut offset = ClockOffset::default();
        follow(&mut offset, 0..60, drifting);
        assert_ahead(&offset, 60_000_000_000, drifting(60_000_000_000));
    }

    #[test]
    fn a_clock_that_is_set_is_followed_at_once() {
        let mut offset = ClockOffset::default();
        follow(&mut offset, 0..10, |_| 1_000_000);
        follow(&mut offset, 10..11, |_| 3_600_000_000_000);
        assert_ahead(&offset, 11_000_000_000, 3_600_000_000_000);
    }

    #[test]
    fn times_of_other_processes_are_checked() {
        assert_eq!(known(u64::MAX), None);
        assert_eq!(known(7), Some(gst::ClockTime::from_nseconds(7)));
    }
}
