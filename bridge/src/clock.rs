// SPDX-License-Identifier: MPL-2.0

//! The offset between CLOCK_MONOTONIC of two hosts.

use std::collections::VecDeque;

/// Samples that are kept. The clocks of two hosts drift by some 50 microseconds a second at most, so old ones go.
const SAMPLES: usize = 64;

/// One round trip, by the clocks of both ends. All times are nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Sample {
    round_trip: i64,
    offset: i64,
}

/// The last round trips.
#[derive(Debug, Default)]
pub(crate) struct Clock(VecDeque<Sample>);

impl Clock {
    /// A message left here, arrived there, was answered there, and the answer arrived here. Times that cannot be are ignored.
    pub(crate) fn add(&mut self, left: i64, arrived: i64, answered: i64, now: i64) {
        let sample = || {
            let there = answered.checked_sub(arrived).filter(|time| *time >= 0)?;
            let round_trip = now.checked_sub(left)?.checked_sub(there);
            let round_trip = round_trip.filter(|time| *time >= 0)?;
            // The clock here minus that there, in the middle of both.
            let out = left.checked_sub(arrived)?;
            let back = now.checked_sub(answered)?;
            Some(Sample {
                round_trip,
                offset: i64::try_from((i128::from(out) + i128::from(back)) / 2).ok()?,
            })
        };
        if let Some(sample) = sample() {
            self.0.truncate(SAMPLES - 1);
            self.0.push_front(sample);
        }
    }

    fn best(&self) -> Option<Sample> {
        self.0.iter().min_by_key(|it| it.round_trip).copied()
    }

    /// Whether there is an offset.
    pub(crate) fn is_known(&self) -> bool {
        !self.0.is_empty()
    }

    /// A time of the other host, on the clock of this one.
    pub(crate) fn here(&self, there: i64) -> i64 {
        there.saturating_add(self.best().map_or(0, |best| best.offset))
    }

    /// A time of this host, on the clock of the other one.
    pub(crate) fn there(&self, here: i64) -> i64 {
        here.saturating_sub(self.best().map_or(0, |best| best.offset))
    }

    /// The fastest round trip. The offset is wrong by half of it at most.
    pub(crate) fn round_trip(&self) -> i64 {
        self.best().map_or(0, |best| best.round_trip)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fastest_round_trip_counts() {
        let mut clock = Clock::default();
        assert_eq!((clock.is_known(), clock.here(5)), (false, 5));
        // The other clock is 1000 behind; the way there takes 40, the way back 10.
        clock.add(2000, 1040, 1050, 2060);
        assert_eq!((clock.here(0), clock.round_trip()), (985, 50));
        clock.add(3000, 2005, 2105, 3110);
        assert_eq!((clock.here(0), clock.round_trip()), (1000, 10));
        clock.add(4000, 3040, 3050, 4060);
        assert_eq!((clock.here(7), clock.there(1007)), (1007, 7));
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
        assert!(!clock.is_known() || clock.here(i64::MAX) == i64::MAX);
    }

    #[test]
    fn old_samples_go() {
        let mut clock = Clock::default();
        clock.add(0, 0, 0, 1);
        for _ in 0..SAMPLES {
            clock.add(0, 0, 0, 100);
        }
        assert_eq!(clock.round_trip(), 100);
    }
}
