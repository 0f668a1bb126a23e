// SPDX-License-Identifier: MPL-2.0

//! The producer's pipeline is paused while its sink waits for a slot.

use std::{thread, time::Duration};

use xmem_core::Consumer;

use super::*;

/// The pool is so small that the sink waits for a slot before it reaches the limit of lossless delivery.
const POOL: &str = "delivery=lossless history=1 max-bytes=20000";
const SLOTS: u8 = 4;
const ALL: u8 = 2 * SLOTS;
/// A pause delays the base time by its duration. This one is longer than any test.
const PAUSE: gst::ClockTime = gst::ClockTime::from_seconds(3600);

/// The differences between times on CLOCK_MONOTONIC and times in the stream. After `SLOTS` frames the pipeline is paused with
/// `in_hand` in its sink.
fn shifts_over_a_pause(in_hand: fn(&Feed)) -> Vec<i64> {
    let pools = Pools::new();
    let feed = Feed::new(&pools, POOL);
    let pipeline = &feed.pipeline;
    feed.start("stream");
    // The consumer does not receive yet.
    let consumer = Consumer::builder(pools.pool("p")).events(true).max_held(1);
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
        // The sink's wait is not observable. If it has not begun, the test covers less.
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

/// A frame that waited in the sink is published after the pause, so its time includes the pause.
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

/// A live GstBaseSrc sends an application's events under a lock that it needs for the pause.
#[test]
fn custom_events_do_not_delay_a_pause_and_arrive_after_it() {
    let pools = Pools::new();
    let feed = Feed::new(&pools, POOL);
    feed.start("stream");
    // It takes nothing yet.
    let consumer = Consumer::builder(pools.pool("p")).events(true).max_held(1);
    let mut consumer = consumer.connect().unwrap();
    (0..SLOTS).for_each(|number| feed.frame(number));
    let send = |name: &'static str| {
        let pad = feed.pad.clone();
        let event = gst::event::CustomDownstream::new(gst::Structure::new_empty(name));
        thread::spawn(move || pad.push_event(event))
    };
    let waits = send("before");
    // Nothing shows that it waits; where it does not yet, this finds less.
    thread::sleep(Duration::from_millis(100));
    feed.pipeline.0.set_state(gst::State::Paused).unwrap();
    until("the wait has ended", || waits.is_finished());
    let comes = send("during");
    until("it does not wait", || comes.is_finished());
    feed.pipeline.play();
    let mut next = || {
        let lease = consumer.receive(Some(SOON.into())).unwrap();
        lease
            .meta()
            .attachments
            .text("structure")
            .map(str::to_owned)
    };
    for _ in 0..SLOTS {
        assert_eq!(next(), None);
    }
    feed.frame(SLOTS);
    assert_eq!(next().as_deref(), Some("before;"));
    assert_eq!(next().as_deref(), Some("during;"));
    assert_eq!(next(), None);
}
