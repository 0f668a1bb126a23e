// SPDX-License-Identifier: MPL-2.0

//! Estimates the offset between CLOCK_MONOTONIC of two hosts: by round trips, or by CLOCK_TAI if both hosts are synchronised.

use std::collections::VecDeque;
use std::fmt::{self, Display};

use crate::wire::Tai;

/// The number of samples that are kept.
const SAMPLES: usize = 64;
/// The number of samples after which a smaller error is unlikely.
const SETTLED: usize = 8;
/// In this many nanoseconds, two clocks drift apart by at most one: by 100 microseconds a second.
const DRIFT: i64 = 10_000;

/// One measurement, in nanoseconds.
#[derive(Debug, Clone, Copy)]
struct Sample {
    /// The time on the network, without the processing time of the other host.
    round_trip: i64,
    /// The clock of this host minus the clock of the other host.
    offset: i64,
    /// The time of this host when the answer arrived.
    at: i64,
}

impl Sample {
    /// The estimate at the time `now`.
    fn estimate(self, now: i64) -> Estimate {
        let age = now.saturating_sub(self.at).max(0);
        let half = self.round_trip - self.round_trip / 2;
        Estimate {
            offset: self.offset,
            error: half.saturating_add(age / DRIFT),
        }
    }
}

/// The clock of this host minus the clock of the other host, and the maximum error, in nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Estimate {
    offset: i64,
    error: i64,
}

impl Estimate {
    /// Of the readings of both hosts.
    fn of_tai(here: Tai, there: Tai) -> Option<Self> {
        Some(Self {
            offset: there.offset.checked_sub(here.offset)?,
            error: i64::try_from(here.error.checked_add(there.error)?).ok()?,
        })
    }

    /// Whether an offset exists that both estimates allow.
    fn agrees_with(self, other: Self) -> bool {
        let distance = i128::from(self.offset) - i128::from(other.offset);
        distance.abs() <= i128::from(self.error) + i128::from(other.error)
    }
}

/// The better estimate, with the name of its method. TAI is used if its error is smaller. The round trips need no trust in the clocks,
/// so TAI is not used if they contradict it.
fn choose(round_trips: Estimate, tai: Option<Estimate>) -> (&'static str, Estimate) {
    match tai {
        Some(tai) if tai.error < round_trips.error && tai.agrees_with(round_trips) => ("TAI", tai),
        _ => ("round trips", round_trips),
    }
}

/// The last [`SAMPLES`] round trips, the newest first, and the last readings of CLOCK_TAI.
#[derive(Debug, Default)]
pub(crate) struct Clock {
    samples: VecDeque<Sample>,
    tai: Option<Estimate>,
}

impl Clock {
    /// Adds a round trip. `left` and `now` are the times of this host when it sent a message and received the answer. `arrived` and
    /// `answered` are the times of the other host when it received the message and sent the answer. Impossible times are ignored.
    pub(crate) fn add(&mut self, left: i64, arrived: i64, answered: i64, now: i64) {
        let sample = || {
            let there = answered.checked_sub(arrived).filter(|time| *time >= 0)?;
            let round_trip = now.checked_sub(left)?.checked_sub(there);
            let round_trip = round_trip.filter(|time| *time >= 0)?;
            // The offset is the mean of the differences on the way out and on the way back.
            let out = left.checked_sub(arrived)?;
            let back = now.checked_sub(answered)?;
            Some(Sample {
                round_trip,
                offset: out.midpoint(back),
                at: now,
            })
        };
        if let Some(sample) = sample() {
            // CLOCK_MONOTONIC stops while a host is suspended. Remove round trips from before that: the new one contradicts them.
            let new = sample.estimate(now);
            self.samples.retain(|it| it.estimate(now).agrees_with(new));
            self.samples.truncate(SAMPLES - 1);
            self.samples.push_front(sample);
        }
    }

    /// Sets the readings of CLOCK_TAI on this host and on the other host. `None`: that host is not synchronised.
    pub(crate) fn set_tai(&mut self, here: Option<Tai>, there: Option<Tai>) {
        let both = here.zip(there);
        self.tai = both.and_then(|(here, there)| Estimate::of_tai(here, there));
    }

    fn by_round_trips(&self) -> Option<Estimate> {
        let newest = self.samples.front()?.at;
        let estimates = self.samples.iter().map(|it| it.estimate(newest));
        estimates.min_by_key(|it| it.error)
    }

    fn best(&self) -> Option<(&'static str, Estimate)> {
        Some(choose(self.by_round_trips()?, self.tai))
    }

    fn offset(&self) -> i64 {
        self.best().map_or(0, |(_, best)| best.offset)
    }

    /// Whether a round trip has been measured.
    pub(crate) fn is_known(&self) -> bool {
        !self.samples.is_empty()
    }

    /// Converts a time of the other host to the clock of this host.
    pub(crate) fn to_local(&self, remote: i64) -> i64 {
        remote.saturating_add(self.offset())
    }

    /// Converts a time of this host to the clock of the other host.
    pub(crate) fn to_remote(&self, local: i64) -> i64 {
        local.saturating_sub(self.offset())
    }

    /// The maximum error of a converted time, in nanoseconds. `None`: there were not enough round trips, so it is likely to become
    /// smaller.
    pub(crate) fn settled_error(&self) -> Option<i64> {
        let (_, best) = self.best()?;
        (self.samples.len() >= SETTLED).then_some(best.error)
    }
}

impl Display for Clock {
    /// The method and the maximum error.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some((method, best)) = self.best() else {
            return f.write_str("times not yet converted");
        };
        let milliseconds = best.error as f64 / 1e6;
        write!(f, "times by {method} within {milliseconds:.2} ms")
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    impl Clock {
        fn error(&self) -> Option<i64> {
            self.best().map(|(_, best)| best.error)
        }
    }

    fn tai(offset: i64, error: u64) -> Option<Tai> {
        Some(Tai { offset, error })
    }

    #[test]
    fn the_fastest_round_trip_gives_the_offset() {
        let mut clock = Clock::default();
        assert_eq!((clock.is_known(), clock.to_local(5)), (false, 5));
        // The other clock is 1000 behind. The message takes 40, and the answer takes 10.
        clock.add(2000, 1040, 1050, 2060);
        assert_eq!((clock.to_local(0), clock.error()), (985, Some(25)));
        clock.add(3000, 2005, 2105, 3110);
        assert_eq!((clock.to_local(0), clock.error()), (1000, Some(5)));
        clock.add(4000, 3040, 3050, 4060);
        assert_eq!((clock.to_local(7), clock.to_remote(1007)), (1007, 7));
    }

    #[test]
    fn the_error_of_the_first_round_trips_is_not_settled() {
        let mut clock = Clock::default();
        for _ in 1..SETTLED {
            clock.add(0, 0, 0, 100);
            assert_eq!((clock.error(), clock.settled_error()), (Some(50), None));
        }
        clock.add(0, 0, 0, 10);
        assert_eq!(clock.settled_error(), Some(5));
    }

    #[test]
    fn a_fast_round_trip_is_replaced_when_the_clocks_may_have_drifted() {
        let mut clock = Clock::default();
        let second = 1_000_000_000;
        clock.add(0, 0, 0, 200_000);
        assert_eq!((clock.to_local(0), clock.error()), (100_000, Some(100_000)));
        // 150 microseconds, and 2 s later.
        clock.add(2 * second, 2 * second, 2 * second, 2 * second + 500_000);
        assert_eq!((clock.to_local(0), clock.error()), (250_000, Some(250_000)));
    }

    #[test]
    fn times_are_right_at_the_first_round_trip_after_a_suspension() {
        let mut clock = Clock::default();
        clock.add(0, 0, 0, 100);
        assert_eq!(clock.to_local(0), 50);
        // This host was suspended for an hour. The new round trip is slower.
        let hour = 3_600_000_000_000;
        clock.add(1000, hour + 1000, hour + 1000, 3000);
        assert_eq!(clock.to_local(hour), 1000);
        // The other host was suspended for two hours.
        clock.add(2 * hour + 4000, hour + 2000, hour + 2000, 2 * hour + 7000);
        assert_eq!(clock.to_local(hour), 2 * hour + 3500);
    }

    #[test]
    fn tai_is_used_where_its_error_is_smaller() {
        let mut clock = Clock::default();
        // The fastest round trip takes 2000, so the offset is 1000 to 3000.
        clock.add(5000, 4000, 4500, 7500);
        assert_eq!((clock.to_local(0), clock.error()), (2000, Some(1000)));
        clock.set_tai(tai(50_000, 300), tai(51_700, 400));
        assert_eq!((clock.to_local(0), clock.error()), (1700, Some(700)));
        assert_eq!(clock.to_string(), "times by TAI within 0.00 ms");
        // Its error is not smaller.
        clock.set_tai(tai(50_000, 600), tai(51_700, 400));
        assert_eq!((clock.to_local(0), clock.error()), (2000, Some(1000)));
        // One host is not synchronised.
        for (here, there) in [(None, tai(1700, 0)), (tai(-1700, 0), None)] {
            clock.set_tai(here, there);
            assert_eq!(clock.to_local(0), 2000);
            let text = "times by round trips within 0.00 ms";
            assert_eq!(clock.to_string(), text);
        }
    }

    #[test]
    fn tai_that_the_round_trips_contradict_is_not_used() {
        let mut clock = Clock::default();
        clock.add(5000, 4000, 4500, 7500);
        for (there, is_used) in [(3001, true), (3700, true), (3701, false), (300, true)] {
            clock.set_tai(tai(0, 300), tai(there, 400));
            let expected = if is_used { there } else { 2000 };
            assert_eq!(clock.to_local(0), expected);
        }
        // The other host's TAI is 37 s late.
        clock.set_tai(tai(0, 0), tai(2000 - 37_000_000_000, 0));
        assert_eq!(clock.to_local(0), 2000);
        // Numbers that overflow.
        for there in [
            tai(i64::MIN, 0),
            tai(2000, u64::MAX),
            tai(i64::MAX, 1 << 63),
        ] {
            clock.set_tai(tai(1, 1), there);
            assert_eq!((clock.to_local(0), clock.error()), (2000, Some(1000)));
        }
    }

    proptest! {
        #[test]
        fn no_reading_moves_a_time_out_of_the_round_trip(
            one in 0..10_000i64, two in 0..10_000i64, here: (i64, u64), there: (i64, u64), near in -20_000..20_000i64,
        ) {
            let mut clock = Clock::default();
            clock.add(0, one, one, one + two);
            let (offset, error) = (clock.to_local(0), clock.error().unwrap());
            for there in [there, (here.0.saturating_add(near), here.1)] {
                clock.set_tai(tai(here.0, here.1), tai(there.0, there.1));
                prop_assert!(clock.to_local(0).abs_diff(offset) < 2 * error.unsigned_abs().max(1));
                prop_assert!(clock.error().unwrap() <= error);
            }
        }

        #[test]
        fn no_times_make_it_panic(all in prop::collection::vec(any::<[i64; 4]>(), 0..8), time: i64) {
            let mut clock = Clock::default();
            for [left, arrived, answered, now] in all {
                clock.add(left, arrived, answered, now);
            }
            let _ = (clock.to_local(time), clock.to_remote(time), clock.to_string());
            prop_assert!(clock.error().is_none_or(|error| error >= 0));
        }
    }

    #[test]
    fn impossible_times_are_ignored() {
        let mut clock = Clock::default();
        for (left, arrived, answered, now) in [
            (0, 10, 5, 20),
            (0, 0, 100, 20),
            (i64::MIN, i64::MAX, 0, 0),
            (0, i64::MIN, i64::MAX, 0),
            (5, 0, 0, 4),
        ] {
            clock.add(left, arrived, answered, now);
        }
        assert!(!clock.is_known());
        clock.add(0, i64::MIN, i64::MIN, 0);
        assert!(!clock.is_known() || clock.to_local(i64::MAX) == i64::MAX);
    }

    #[test]
    fn old_samples_are_removed() {
        let mut clock = Clock::default();
        clock.add(0, 0, 0, 2);
        for _ in 0..SAMPLES {
            clock.add(0, 0, 0, 100);
        }
        assert_eq!(clock.error(), Some(50));
    }
}
