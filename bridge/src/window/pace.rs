// SPDX-License-Identifier: MPL-2.0

//! How many frames may be in flight if only the newest are wanted: as many as the route holds, and none that would wait on it.

use std::time::{Duration, Instant};

/// The fastest transfer is that of this time, or of twice this time, because a route may change.
const AGE: Duration = Duration::from_secs(10);
/// The maximum number of fast transfers before another frame may be in flight.
const MOST_PROOF: u32 = 64;

/// A transfer is slow if it takes longer than the fastest one by more than a frame interval: a frame waited for another one.
#[derive(Debug)]
pub(super) struct Pace {
    limit: usize,
    /// The fastest transfer of the present and of the last [`AGE`].
    fastest: [Duration; 2],
    since: Instant,
    /// Fast transfers, and slow ones, since the last change of the limit or the last one of the other kind.
    fast: u32,
    slow: usize,
    /// How many fast transfers are needed. A link that was too slow for one frame more is tried less and less often.
    proof: u32,
    /// When the limit was reduced. Frames that were begun before say nothing about it.
    reduced: Instant,
}

impl Pace {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            limit: 2,
            fastest: [Duration::MAX; 2],
            since: now,
            fast: 0,
            slow: 0,
            proof: 1,
            reduced: now,
        }
    }

    pub(super) fn limit(&self) -> usize {
        self.limit
    }

    /// A frame that was begun at this time was acknowledged. `period` is the frame interval.
    pub(super) fn note(&mut self, begun: Instant, now: Instant, period: Duration) {
        if begun < self.reduced {
            return;
        }
        let transfer = now.saturating_duration_since(begun);
        let age = now.saturating_duration_since(self.since);
        if age >= AGE {
            let last = if age < 2 * AGE {
                self.fastest[0]
            } else {
                Duration::MAX
            };
            self.fastest = [Duration::MAX, last];
            self.since = now;
        }
        self.fastest[0] = self.fastest[0].min(transfer);
        let fastest = self.fastest[0].min(self.fastest[1]);
        if transfer > fastest.saturating_add(period) {
            self.fast = 0;
            self.slow += 1;
            // The repetition of a lost packet delays all frames that are in flight.
            if self.slow > self.limit + 1 {
                self.reduce(now);
            }
            return;
        }
        self.slow = 0;
        self.fast += 1;
        // One frame for each interval of the transfer, and one that is being sent.
        let most = fastest.as_nanos() / period.as_nanos().max(1) + 2;
        let most = usize::try_from(most).unwrap_or(usize::MAX);
        // The interval before was shorter, by an irregularity of the source.
        self.limit = self.limit.min(most);
        if self.fast >= self.proof && self.limit < most {
            self.limit += 1;
            self.fast = 0;
            self.proof = (self.proof / 2).max(1);
        }
    }

    fn reduce(&mut self, now: Instant) {
        self.limit = (self.limit / 2).max(1);
        self.slow = 0;
        self.proof = (self.proof * 4).min(MOST_PROOF);
        self.reduced = now;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::*;

    const PERIOD: Duration = Duration::from_millis(33);

    /// Frames over a route with this delay, which takes `time` for the frame with a number. Returns how many of the frames were
    /// sent, and the transfers of the last half of them.
    fn send(
        frames: u32,
        delay: Duration,
        time: impl Fn(u32) -> Duration,
    ) -> (usize, Vec<Duration>) {
        let start = Instant::now();
        let mut pace = Pace::new(start);
        let mut under_way: VecDeque<(Instant, Instant)> = VecDeque::new();
        let (mut free, mut transfers) = (start, Vec::new());
        for number in 0..frames {
            let now = start + PERIOD * number;
            while let Some((begun, end)) = under_way.front().copied().filter(|(_, end)| *end <= now)
            {
                pace.note(begun, end, PERIOD);
                transfers.push(end - begun);
                under_way.pop_front();
            }
            if under_way.len() < pace.limit() {
                free = free.max(now) + time(number);
                under_way.push_back((now, free + delay));
            }
        }
        let sent = transfers.len();
        (sent, transfers.split_off(sent / 2))
    }

    #[test]
    fn a_distant_host_gets_all_frames() {
        for delay in [1, 20, 100, 400] {
            let (sent, _) = send(600, Duration::from_millis(delay), |_| {
                Duration::from_millis(2)
            });
            assert!(sent > 500, "{sent} with {delay} ms");
        }
    }

    #[test]
    fn frames_hardly_wait_on_a_slow_link() {
        for (delay, time) in [(1, 100), (50, 100), (100, 250)] {
            let (sent, transfers) = send(900, Duration::from_millis(delay), |_| {
                Duration::from_millis(time)
            });
            assert!(sent > 60);
            assert_hardly_waits(&transfers, Duration::from_millis(delay + time));
        }
    }

    /// Whether three of four frames wait for no other one. One that does not takes this time.
    fn assert_hardly_waits(transfers: &[Duration], alone: Duration) {
        let slow = transfers.iter().filter(|it| **it > alone + 2 * PERIOD);
        let (slow, all) = (slow.count(), transfers.len());
        assert!(slow * 4 < all, "{slow} of {all}");
    }

    #[test]
    fn a_link_that_becomes_slower_gets_fewer_frames() {
        for (delay, time) in [(100, 500), (200, 500), (400, 250), (400, 500)] {
            let (_, transfers) = send(20_000, Duration::from_millis(delay), |number| {
                Duration::from_millis(if number < 1800 { 2 } else { time })
            });
            let last = &transfers[transfers.len() * 3 / 4..];
            assert_hardly_waits(last, Duration::from_millis(delay + time));
        }
    }
}
