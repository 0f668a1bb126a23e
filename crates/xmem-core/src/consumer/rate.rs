// SPDX-License-Identifier: MPL-2.0

//! The rate limit of a consumer: which frames it skips, and until when it does not look for any.

use std::time::Duration;

use xmem_shm::os::clock::monotonic_ns;

/// The longest pause, because the consumer does not learn of the end of the stream meanwhile.
const MAX_PAUSE: Duration = Duration::from_secs(1);

/// Skips frames that were published too soon after the last one that was taken. All times are in nanoseconds on CLOCK_MONOTONIC.
#[derive(Debug)]
pub(super) struct RateLimit {
    interval: i64,
    /// Frames that were published before this time are skipped.
    due: i64,
}

impl RateLimit {
    pub(super) fn new(interval: Duration) -> Self {
        Self {
            interval: i64::try_from(interval.as_nanos()).unwrap_or(i64::MAX),
            due: i64::MIN,
        }
    }

    pub(super) fn due(&self) -> i64 {
        self.due
    }

    pub(super) fn skips(&self, published_at: i64) -> bool {
        published_at < self.due
    }

    /// How many frames before the one that was published then would have been taken, of `passed` frames.
    pub(super) fn missed_of(&self, passed: u64, published_at: i64) -> u64 {
        if self.due == i64::MIN {
            return passed;
        }
        let late = published_at.saturating_sub(self.due).max(0);
        passed.min((late / self.interval.max(1)).cast_unsigned())
    }

    /// A frame was taken. The next one is due an interval after this one was, so that the rate is right on average. The producer
    /// wrote `published_at`, so the next one is due at the latest an interval from now.
    pub(super) fn note_taken(&mut self, published_at: i64) {
        let now = monotonic_ns();
        let late = published_at.min(now).saturating_sub(self.due);
        let from = if late < self.interval {
            self.due
        } else {
            published_at
        };
        self.due = from.min(now).saturating_add(self.interval);
    }
}

/// How long the consumer can sleep without being woken for frames, until they are `due`. `None`: not at all.
pub(super) fn pause_until(due: i64) -> Option<Duration> {
    let left = u64::try_from(due.saturating_sub(monotonic_ns())).ok()?;
    (left > 0).then(|| Duration::from_nanos(left).min(MAX_PAUSE))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: i64 = 1_000_000;

    /// The times of the frames that are taken, of one each 16 ms.
    fn taken(interval: u64, count: i64) -> Vec<i64> {
        let mut limit = RateLimit::new(Duration::from_millis(interval));
        let start = monotonic_ns() - count * 16 * MS;
        let times = (0..count).map(|n| start + n * 16 * MS);
        let takes = |time: &i64| {
            let takes = !limit.skips(*time);
            if takes {
                limit.note_taken(*time);
            }
            takes
        };
        times
            .filter(takes)
            .map(|time| (time - start) / MS)
            .collect()
    }

    #[test]
    fn the_rate_is_right_on_average() {
        assert_eq!(taken(40, 10), [0, 48, 80, 128]);
        assert_eq!(taken(1, 4), [0, 16, 32, 48]);
    }

    #[test]
    fn only_frames_that_were_due_are_missed() {
        let mut limit = RateLimit::new(Duration::from_millis(100));
        assert_eq!(limit.missed_of(3, 0), 3, "nothing was taken before");
        let start = monotonic_ns() - 1000 * MS;
        limit.note_taken(start);
        assert_eq!(limit.missed_of(6, start + 110 * MS), 0);
        assert_eq!(limit.missed_of(50, start + 350 * MS), 2);
        assert_eq!(limit.missed_of(1, start + 350 * MS), 1);
    }

    #[test]
    fn times_that_another_process_invented_do_not_stop_it_for_long() {
        for time in [i64::MIN, -1, 0, i64::MAX] {
            let mut limit = RateLimit::new(Duration::from_millis(100));
            limit.note_taken(time);
            limit.note_taken(time);
            assert!(limit.due() <= monotonic_ns() + 100 * MS, "{time}");
            limit.missed_of(u64::MAX, time);
        }
        let mut limit = RateLimit::new(Duration::MAX);
        limit.note_taken(i64::MAX);
        assert!(pause_until(limit.due()) <= Some(MAX_PAUSE));
    }
}
