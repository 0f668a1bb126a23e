// SPDX-License-Identifier: MPL-2.0

//! The figures of a pool.

use std::sync::atomic::Ordering;

use xmem_shm::abi::layout::Control;
use xmem_shm::os::clock::monotonic_ns;
use xmem_shm::protocol::lease::SlotWord;

use super::Pool;
use super::consumer::ConsumerRecord;
use super::guard::Guard;
use super::slots::{self, Place, SlotInfo, Use};
use super::wait::waits_for;
use crate::stats::{ConsumerStats, PoolStats};

pub(in crate::producer) fn of_consumer(
    guard: &Guard<'_>,
    consumer: &ConsumerRecord,
    now: i64,
) -> ConsumerStats {
    let waited_for = waits_for(guard, consumer).as_nanos();
    ConsumerStats {
        waited_for_ns: u64::try_from(waited_for).unwrap_or(u64::MAX),
        ..consumer.stats(guard.pool().control(), &guard.slots, now)
    }
}

/// Whether a consumer holds the frame in a slot.
fn is_held(guard: &Guard<'_>, slot: u32) -> bool {
    let published = slots::word(guard.pool().control(), slot).and_then(SlotWord::published);
    published.is_some_and(|generation| guard.consumers.hold(slot, generation))
}

/// Whether the producer or a consumer uses a slot.
pub(in crate::producer) fn is_in_use(guard: &Guard<'_>, slot: u32, info: &SlotInfo) -> bool {
    match info.used {
        Use::Unassigned => false,
        Use::Writing | Use::Referenced(_) => true,
        Use::Idle => is_held(guard, slot),
    }
}

/// Whether readers for which the frame in a slot is kept are still missing.
fn is_unread(guard: &Guard<'_>, slot: u32, info: &SlotInfo) -> bool {
    let word = slots::word(guard.pool().control(), slot);
    info.readers()
        .zip(word)
        .is_some_and(|(readers, word)| readers.left(&guard.consumers, slot, word.generation()) > 0)
}

/// In a forked child, only the name.
pub(in crate::producer) fn of_pool(pool: &Pool) -> PoolStats {
    let Some(guard) = pool.lock() else {
        return PoolStats {
            pool: pool.name().to_owned(),
            ..PoolStats::default()
        };
    };
    let (control, counters) = (pool.control(), pool.counters());
    let now = monotonic_ns();
    let published = control.head().saturating_sub(guard.events);
    let copied = counters.copied.load(Ordering::Relaxed);
    let sticky = guard.sticky.current();
    let count = |is_one: fn(&Guard<'_>, u32, &SlotInfo) -> bool| {
        let slots = guard.slots.iter();
        slots
            .filter(|(slot, info)| is_one(&guard, *slot, info))
            .count() as u32
    };
    PoolStats {
        pool: pool.name().to_owned(),
        pid: std::process::id(),
        delivery: pool.settings().delivery,
        up_ns: u64::try_from(now - pool.made_at).unwrap_or_default(),
        fps: fps(control, now),
        published,
        zero_copy: published.saturating_sub(copied),
        copied,
        dropped: counters.dropped.load(Ordering::Relaxed),
        scarce: counters.scarce.load(Ordering::Relaxed),
        slots: guard.slots.assigned(),
        slots_held: count(is_in_use),
        unread: count(is_unread),
        set_aside: guard.regions.pinned.len() as u32,
        set_aside_bytes: guard
            .regions
            .pinned
            .keys()
            .filter_map(|slot| Some(guard.slots.get(*slot)?.place?.bytes()))
            .sum(),
        max_slots: pool.settings().most_slots(largest_slot(&guard)),
        budget_limit: control.share().limit,
        regions: guard.regions.count(),
        bytes: guard.regions.bytes(),
        devices: guard.regions.devices(),
        device_bytes: guard.regions.device_bytes(),
        eos: control.eos_at().is_some(),
        sticky: sticky
            .iter()
            .filter_map(|(key, value)| {
                Some((key.to_owned(), std::str::from_utf8(value).ok()?.to_owned()))
            })
            .collect(),
        consumers: guard
            .consumers
            .iter()
            .map(|consumer| of_consumer(&guard, consumer, now))
            .collect(),
        cut_off: counters.cut_off.load(Ordering::Relaxed),
        timed_out: counters.timed_out.load(Ordering::Relaxed),
    }
}

/// The size of the largest slot.
fn largest_slot(guard: &Guard<'_>) -> usize {
    let places = guard.slots.iter().filter_map(|(_, info)| info.place);
    places.map(Place::payload_len).max().unwrap_or(usize::MAX)
}

/// Older frames count only if there are no newer ones.
const WINDOW: i64 = 2_000_000_000;

/// The present frame rate per second. 0 before the second frame.
fn fps(control: &Control, now: i64) -> f64 {
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
