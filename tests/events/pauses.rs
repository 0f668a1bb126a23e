// SPDX-License-Identifier: MPL-2.0

//! The producer's pipeline is paused while its sink waits for a slot.

use std::{thread, time::Duration};

use xmem_core::Consumer;

use super::*;

/// So few fit in that the sink waits for a slot before it is as far ahead as lossless delivery lets it.
const POOL: &str = "delivery=lossless history=1 max-bytes=20000";
const SLOTS: u8 = 4;
const ALL: u8 = 2 * SLOTS;
/// A pause makes the base time later by as long as it takes. This one by more than any test takes.
const PAUSE: gst::ClockTime = gst::ClockTime::from_seconds(3600);

/// How much later the times on CLOCK_MONOTONIC are than those in the stream. After `SLOTS` frames the pipeline is paused,
/// with `in_hand` in its sink.
fn shifts_over_a_pause(in_hand: fn(&Feed)) -> Vec<i64> {
    let pools = Pools::new();
    let feed = Feed::new(&pools, POOL);
    let pipeline = &feed.pipeline;
    feed.start("stream");
    // It takes nothing yet.
    let consumer = Consumer::builder(&pools.pool("p")).events(true).max_held(1);
    let mut consumer = consumer.connect().unwrap();
    thread::scope(|scope| {
        scope.spawn(|| {
            (0..SLOTS).for_each(|number| feed.frame(number));
            in_hand(&feed);
            (SLOTS + 1..ALL).for_each(|number| feed.frame(number));
        });
        until("no slot is left", || {
            pipeline.stat("sink", "published") == u64::from(SLOTS)
        });
        // Nothing shows that it waits; where it does not yet, this finds less.
        thread::sleep(Duration::from_millis(100));
        pipeline.settle(gst::State::Paused);
        let base_time = pipeline.0.base_time().unwrap();
        pipeline.0.set_start_time(gst::ClockTime::NONE);
        pipeline.0.set_base_time(base_time + PAUSE);
        pipeline.settle(gst::State::Playing);
        let shifts = (0..ALL).map(|_| {
            let lease = consumer.receive(Some(SOON.into())).unwrap();
            let meta = lease.meta();
            let shift = meta.timestamp.unwrap() - meta.pts.unwrap().cast_signed();
            shift - base_time.nseconds().cast_signed()
        });
        shifts.collect()
    })
}

/// A frame in hand comes after the pause, so it has the time from after it.
#[track_caller]
fn assert_shifted(shifts: &[i64]) {
    for (number, shift) in (0..).zip(shifts) {
        let is_later = *shift > (PAUSE / 2).nseconds().cast_signed();
        assert_eq!(is_later, number >= SLOTS, "{shifts:?}");
    }
}

#[test]
fn a_frame_that_waits_for_a_slot_in_a_pause_has_the_time_from_after_it() {
    assert_shifted(&shifts_over_a_pause(|feed| feed.frame(SLOTS)));
}

#[test]
fn an_event_that_waits_for_a_slot_in_a_pause_has_the_time_from_after_it() {
    assert_shifted(&shifts_over_a_pause(|feed| {
        let time = gst::ClockTime::SECOND;
        feed.event(gst::event::Gap::new(time, time));
    }));
}
