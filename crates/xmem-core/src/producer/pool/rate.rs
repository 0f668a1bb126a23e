// SPDX-License-Identifier: MPL-2.0

//! The frame rate of a pool, from the times in its ring.

use xmem_shm::abi::layout::Control;

/// Older frames count only if there are no newer ones.
const WINDOW: i64 = 2_000_000_000;

/// The present frame rate per second. 0 before the second frame.
pub(super) fn now(control: &Control, now: i64) -> f64 {
    let head = control.head();
    let ring = u64::from(control.constants().shape.ring_len);
    let newest_first = (head.saturating_sub(ring)..head).rev();
    let entries = newest_first.filter_map(|sequence| control.read_entry(sequence));
    let frames = entries.filter(|entry| !entry.is_event());
    of_times(frames.map(|entry| entry.published_at()), now)
}

/// `times`: the publication times in nanoseconds, newest first.
fn of_times(mut times: impl Iterator<Item = i64>, now: i64) -> f64 {
    let Some(newest) = times.next() else {
        return 0.0;
    };
    let (mut oldest, mut periods) = (newest, 0);
    for time in times {
        if periods > 0 && now - time > WINDOW {
            break;
        }
        oldest = time;
        periods += 1;
    }
    let span = newest - oldest;
    if periods == 0 || span <= 0 {
        return 0.0;
    }
    // If the stream has paused for longer than one period, the time since the newest frame counts too.
    let is_late = (now - newest).saturating_mul(periods) > span;
    let span = if is_late { now - oldest } else { span };
    periods as f64 * 1e9 / span as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: i64 = 1_000_000_000;

    fn rate(times: &[i64], now: i64) -> f64 {
        of_times(times.iter().rev().copied(), now)
    }

    #[test]
    fn the_rate_is_that_of_the_last_two_seconds() {
        let quick: Vec<i64> = (0..100).map(|n| 10 * SECOND + n * SECOND / 25).collect();
        assert!((rate(&quick, *quick.last().unwrap()) - 25.0).abs() < 1e-6);
        let then_slow = [&quick[..], &[16 * SECOND, 17 * SECOND]].concat();
        assert!((rate(&then_slow, 17 * SECOND) - 1.0).abs() < 1e-6);
    }

    #[test]
    fn the_rate_of_a_stopped_stream_decreases() {
        let times = [0, SECOND / 30];
        assert!((rate(&times, SECOND / 20) - 30.0).abs() < 0.1);
        assert!(rate(&times, 100 * SECOND) < 0.02);
    }

    #[test]
    fn one_frame_has_no_rate() {
        assert_eq!(rate(&[], 5), 0.0);
        assert_eq!(rate(&[1], 5), 0.0);
        assert_eq!(rate(&[1, 1], 5), 0.0);
    }
}
