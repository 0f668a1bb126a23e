// SPDX-License-Identifier: MPL-2.0

//! Times of a pipeline to CLOCK_MONOTONIC, which all processes of a host share, and back.

// Fields of GstElement are read under its lock.
#![allow(unsafe_code)]

use std::collections::VecDeque;

use gst::{glib::prelude::*, prelude::*};

/// How far apart the samples are that a clock is followed by, at least.
const SPACING_NS: u64 = 50_000_000;
/// How many of them count.
const SAMPLES: usize = 32;
/// A clock that is off by more than this from where it should be was set, and is followed at once.
const JUMP_NS: u64 = 20_000_000;
/// Two readings of CLOCK_MONOTONIC, around one of the clock, that are at most this far apart need no second try.
const NEAR_NS: u64 = 5_000;
const TRIES: u32 = 4;

/// Now, in the type of GStreamer's arithmetic of clocks.
fn monotonic() -> u64 {
    xmem_core::monotonic_ns().cast_unsigned()
}

/// Where a clock was.
#[derive(Debug, Clone, Copy)]
struct Sample {
    monotonic: u64,
    clock: u64,
}

impl Sample {
    /// Reads both clocks; of several tries it takes the shortest, since there may be a pause in between.
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
            if took <= NEAR_NS {
                break;
            }
        }
        best.map_or_else(|| unreachable!("there is a try"), |(_, sample)| sample)
    }
}

/// Where a clock is, on a line through its last samples.
#[derive(Debug, Clone, Copy)]
struct Line {
    through: Sample,
    /// Nanoseconds of the clock in `run` nanoseconds.
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

    /// The line that fits best. `None`: the samples allow none.
    fn fit(samples: &[(u64, u64)]) -> Option<Self> {
        let (rise, run, clock, monotonic, _) = gst::calculate_linear_regression(samples, None)?;
        (run > 0).then_some(Self {
            through: Sample { monotonic, clock },
            rise,
            run,
        })
    }

    /// How far CLOCK_MONOTONIC is ahead of the clock when it shows `monotonic`.
    fn offset(self, monotonic: u64) -> i64 {
        let past = i128::from(monotonic) - i128::from(self.through.monotonic);
        let clock = i128::from(self.through.clock)
            + past * i128::from(self.rise) / i128::from(self.run.max(1));
        i64::try_from(i128::from(monotonic) - clock).unwrap_or_default()
    }
}

/// How far CLOCK_MONOTONIC is ahead of a pipeline's clock, without the jitter of single readings. A clock that goes faster or
/// slower is followed without lagging behind.
#[derive(Debug, Default)]
pub(crate) struct ClockOffset {
    /// CLOCK_MONOTONIC and the clock, the newest last.
    samples: VecDeque<(u64, u64)>,
    line: Option<Line>,
    /// The clock, and whether it is a system clock that is set to show CLOCK_MONOTONIC. To ask it takes longer than all else here.
    last_clock: Option<(gst::Clock, bool)>,
}

impl ClockOffset {
    /// An element's base time, and the offset now. An offset of `None`: the pipeline has no clock.
    pub(crate) fn with_base_time(
        &mut self,
        element: &gst::Element,
    ) -> (Option<gst::ClockTime>, Option<i64>) {
        let known_clock = self.last_clock.as_ref();
        let known_clock = known_clock.and_then(|(clock, set)| set.then_some(clock));
        let (clock, base_time) = {
            let locked = element.object_lock();
            let element = locked.as_ptr();
            // SAFETY: the element is alive, and its lock guards these fields.
            unsafe { ((*element).clock, (*element).base_time) }
        };
        let offset = match known_clock {
            // No reference to the clock is taken, since this has one.
            Some(known_clock) if known_clock.as_ptr() == clock && !is_calibrated(known_clock) => {
                Some(0)
            }
            _ => self.now(element.clock().as_ref()),
        };
        (known(base_time.cast_unsigned()), offset)
    }

    /// The offset now. `None`: the pipeline has no clock.
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
            .is_none_or(|(last, _)| now.saturating_sub(*last) >= SPACING_NS)
        {
            self.add(Sample::take(clock));
        }
        self.line.map(|line| line.offset(now))
    }

    /// Whether a clock shows CLOCK_MONOTONIC itself. One that follows another clock is calibrated.
    fn is_monotonic(&mut self, clock: &gst::Clock) -> bool {
        let set = match &self.last_clock {
            Some((last, set)) if last.as_ptr() == clock.as_ptr() => *set,
            _ => self.note(clock),
        };
        set && !is_calibrated(clock)
    }

    /// Returns whether this is a system clock that is set to show CLOCK_MONOTONIC. Network clocks are subclasses of it, and do
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

/// Whether a clock is set to another time than its own.
fn is_calibrated(clock: &gst::Clock) -> bool {
    let (internal, external, rate, per) = clock.calibration();
    internal != external || rate != per
}

/// Where a pipeline's running time 0 lies on CLOCK_MONOTONIC, shifts included.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Origin {
    ns: i128,
}

impl Origin {
    /// Base time is on the pipeline's clock, which CLOCK_MONOTONIC is `offset` ahead of.
    pub(crate) fn new(base_time: gst::ClockTime, offset: i64) -> Self {
        Self {
            ns: i128::from(base_time.nseconds()) + i128::from(offset),
        }
    }

    /// Of a pipeline without a clock: its running time is taken to have begun when CLOCK_MONOTONIC showed this.
    pub(crate) fn without_clock(began: i64) -> Self {
        Self {
            ns: i128::from(began),
        }
    }

    /// The same with everything so much later on CLOCK_MONOTONIC, in nanoseconds.
    pub(crate) fn later(self, by: i64) -> Self {
        Self {
            ns: self.ns + i128::from(by),
        }
    }

    /// A running time on CLOCK_MONOTONIC; negative before the host was started. `None`: more than 292 years away from
    /// that.
    pub(crate) fn to_monotonic(self, running_time: gst::Signed<gst::ClockTime>) -> Option<i64> {
        let running_time = match running_time {
            gst::Signed::Positive(time) => i128::from(time.nseconds()),
            gst::Signed::Negative(time) => -i128::from(time.nseconds()),
        };
        i64::try_from(self.ns + running_time).ok()
    }

    /// A time on CLOCK_MONOTONIC as running time; times before the pipeline's start become its start.
    pub(crate) fn to_running_time(self, monotonic: i64) -> gst::ClockTime {
        clock_time(i128::from(monotonic) - self.ns)
    }

    /// How long before the pipeline's start that was.
    pub(crate) fn before_start(self, monotonic: i64) -> gst::ClockTime {
        clock_time(self.ns - i128::from(monotonic))
    }
}

/// From one time on CLOCK_MONOTONIC to a later one.
pub(crate) fn elapsed(from: i64, to: i64) -> gst::ClockTime {
    clock_time(i128::from(to) - i128::from(from))
}

/// Nanoseconds in the range of GStreamer's type.
fn clock_time(ns: i128) -> gst::ClockTime {
    let ns = ns.clamp(0, i128::from(gst::ClockTime::MAX.nseconds()));
    gst::ClockTime::from_nseconds(u64::try_from(ns).unwrap_or_default())
}

/// A time that another process wrote.
pub(crate) fn known(ns: u64) -> Option<gst::ClockTime> {
    (ns <= gst::ClockTime::MAX.nseconds()).then(|| gst::ClockTime::from_nseconds(ns))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_and_back() {
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
        // A time from before the host was started is one like any other.
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

    /// Samples of a clock that is so much ahead after `ns` nanoseconds, each a little wrong.
    fn follow(offset: &mut ClockOffset, seconds: std::ops::Range<u64>, ahead: impl Fn(u64) -> u64) {
        for step in seconds.start * 20..seconds.end * 20 {
            let ns = step * SPACING_NS;
            // Numbers without a pattern, from -5 to +5 microseconds.
            let jitter = (step * 7919) % 10_007;
            offset.add(Sample {
                monotonic: ns,
                clock: ns + ahead(ns) + jitter - 5_000,
            });
        }
    }

    #[track_caller]
    fn is_ahead(offset: &ClockOffset, at: u64, ahead: u64) {
        let error = offset.line.unwrap().offset(at) + ahead.cast_signed();
        assert!(error.abs() < 3_000, "off by {error} ns");
    }

    #[test]
    fn a_clock_is_followed_without_its_jitter_and_without_lag() {
        const AHEAD: u64 = 1_700_000_000_000_000_000;
        let mut offset = ClockOffset::default();
        follow(&mut offset, 0..10, |_| AHEAD);
        is_ahead(&offset, 10_000_000_000, AHEAD);
        // 200 ppm is more than clocks are off.
        let drifting = |ns: u64| AHEAD + ns / 5_000;
        let mut offset = ClockOffset::default();
        follow(&mut offset, 0..60, drifting);
        is_ahead(&offset, 60_000_000_000, drifting(60_000_000_000));
    }

    #[test]
    fn a_clock_that_is_set_is_followed_at_once() {
        let mut offset = ClockOffset::default();
        follow(&mut offset, 0..10, |_| 1_000_000);
        follow(&mut offset, 10..11, |_| 3_600_000_000_000);
        is_ahead(&offset, 11_000_000_000, 3_600_000_000_000);
    }

    #[test]
    fn what_another_process_wrote_is_no_time_for_granted() {
        assert_eq!(known(u64::MAX), None);
        assert_eq!(known(7), Some(gst::ClockTime::from_nseconds(7)));
    }
}
