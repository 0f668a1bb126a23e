// SPDX-License-Identifier: MPL-2.0

//! How a consumer waits: for what, and until when. And its rate limit: which frames it skips, and until when it does not look for any.

use std::time::Duration;

use xmem_shm::abi::layout::LeasePage;
use xmem_shm::os::clock::monotonic_ns;
use xmem_shm::protocol::wake;
use xmem_shm::sync::Ordering;

use super::connection::Connection;
use super::link::ASK_AGAIN;
use crate::cancel::Canceller;

/// A question to the producer, without whose answer the next frame cannot be taken.
#[derive(Debug, Clone, Copy)]
pub(super) struct Asked {
    /// The number of stored messages before it.
    arrivals: u64,
    /// When to ask again, on CLOCK_MONOTONIC, because an answer can get lost.
    again: i64,
}

impl Asked {
    /// Just now. `arrivals`: the number of stored messages before.
    pub(super) fn now(arrivals: u64) -> Self {
        Self {
            arrivals,
            again: monotonic_ns().saturating_add(ASK_AGAIN.as_nanos() as i64),
        }
    }
}

/// The position of a waiting consumer.
#[derive(Debug, Clone, Copy)]
pub(super) struct Waiting {
    cursor: u64,
    passed_eos: Option<u64>,
    /// `None`: the producer was not asked for anything.
    asked: Option<Asked>,
    /// No frame is received before this time, on CLOCK_MONOTONIC. `i64::MIN`: at any time.
    not_before: i64,
}

impl Waiting {
    pub(super) fn new(cursor: u64, passed_eos: Option<u64>) -> Self {
        Self {
            cursor,
            passed_eos,
            asked: None,
            not_before: i64::MIN,
        }
    }

    pub(super) fn not_before(self, not_before: i64) -> Self {
        Self { not_before, ..self }
    }

    pub(super) fn for_answer(self, asked: Option<Asked>) -> Self {
        Self { asked, ..self }
    }

    /// Sleeps unless `ready` returns true, at most for `time` (`None`: no limit). The producer wakes the consumer only if frames can be
    /// received.
    pub(super) fn sleep(
        self,
        page: &LeasePage,
        time: Option<Duration>,
        ready: impl FnOnce() -> bool,
    ) {
        match self.pause() {
            Some(pause) => page.pause(time.map_or(pause, |time| time.min(pause)), ready),
            None => page.sleep(time, ready),
        }
    }

    /// Asks the producer to wake the consumer by its wake socket, unless frames are of no use now. Check for work after this call.
    /// Returns the time after which to check although nothing woke the consumer.
    pub(super) fn announce(self, connection: &Connection) -> Option<Duration> {
        let pause = self.pause();
        if pause.is_none() && self.asked.is_none() {
            connection.announce_by_socket();
        }
        wake::announced();
        pause.into_iter().chain(self.at_most()).min()
    }

    /// How long to sleep without being woken for frames. `None`: frames can be received now.
    pub(super) fn pause(self) -> Option<Duration> {
        match self.not_before {
            i64::MIN => None,
            due => pause_until(due),
        }
    }

    /// The longest sleep before the next check, because an answer can get lost.
    pub(super) fn at_most(self) -> Option<Duration> {
        self.asked.map(|asked| {
            let left = asked.again.saturating_sub(monotonic_ns());
            Duration::from_nanos(u64::try_from(left).unwrap_or(0))
        })
    }

    /// Whether the consumer must check: something can be received, or never will be.
    pub(super) fn is_over(self, connection: &Connection, canceller: &Canceller) -> bool {
        let has_come = match self.asked {
            Some(asked) => {
                connection.link().arrivals() != asked.arrivals || asked.again <= monotonic_ns()
            }
            None => {
                (connection.control().head() > self.cursor && self.pause().is_none())
                    || self.is_stream_over(connection)
            }
        };
        has_come
            || connection.is_lost()
            || connection.page().flags().load(Ordering::Relaxed) != 0
            || canceller.is_cancelled()
    }

    /// Whether the stream has ended, and the caller does not wait for the next one.
    pub(super) fn is_stream_over(self, connection: &Connection) -> bool {
        let eos_at = connection.control().eos_at();
        eos_at.is_some_and(|at| at <= self.cursor) && self.passed_eos != Some(self.cursor)
    }
}

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
