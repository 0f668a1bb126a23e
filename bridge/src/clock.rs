// SPDX-License-Identifier: MPL-2.0

//! Estimates the offset between CLOCK_MONOTONIC of two hosts.

use std::collections::VecDeque;

/// The number of samples that are kept. Older samples are removed. Reason: two clocks drift by up to about 50 microseconds a
/// second.
const SAMPLES: usize = 64;

/// One measurement, in nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Sample {
    /// The time on the network, without the processing time of the other host.
    round_trip: i64,
    /// The clock of this host minus the clock of the other host.
    offset: i64,
}

/// The last [`SAMPLES`] round trips.
#[derive(Debug, Default)]
pub(crate) struct Clock(VecDeque<Sample>);

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

    /// Whether a round trip has been measured.
    pub(crate) fn is_known(&self) -> bool {
        !self.0.is_empty()
    }

    /// Converts a time of the other host to the clock of this host.
    pub(crate) fn to_local(&self, remote: i64) -> i64 {
        remote.saturating_add(self.best().map_or(0, |best| best.offset))
    }

    /// Converts a time of this host to the clock of the other host.
    pub(crate) fn to_remote(&self, local: i64) -> i64 {
        local.saturating_sub(self.best().map_or(0, |best| best.offset))
    }

    /// The duration of the fastest round trip. The error of the offset is at most half of it.
    pub(crate) fn round_trip(&self) -> i64 {
        self.best().map_or(0, |best| best.round_trip)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fastest_round_trip_gives_the_offset() {
        let mut clock = Clock::default();
        assert_eq!((clock.is_known(), clock.to_local(5)), (false, 5));
        // The other clock is 1000 behind. The message takes 40, and the answer takes 10.
        clock.add(2000, 1040, 1050, 2060);
        assert_eq!((clock.to_local(0), clock.round_trip()), (985, 50));
        clock.add(3000, 2005, 2105, 3110);
        assert_eq!((clock.to_local(0), clock.round_trip()), (1000, 10));
        clock.add(4000, 3040, 3050, 4060);
        assert_eq!((clock.to_local(7), clock.to_remote(1007)), (1007, 7));
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
        clock.add(0, 0, 0, 1);
        for _ in 0..SAMPLES {
            clock.add(0, 0, 0, 100);
        }
        assert_eq!(clock.round_trip(), 100);
    }
}
