// SPDX-License-Identifier: MPL-2.0

//! A consumer continues at the position of an earlier one.

use std::ops::Range;
use std::time::Duration;

use crate::support::{HANG, Place, assert_frame, assert_no_frame, publish, publish_wait, receive};
use xmem_core::{Consumer, Delivery, FrameMeta, Producer, ReceiveError, Wait};

const SIZE: usize = 100;

fn resume(place: &Place, consumer: &Consumer) -> Consumer {
    place.consumer(|it| it.resume(consumer))
}

#[test]
fn received_frames_are_not_delivered_again() {
    let place = Place::new();
    let producer = place.producer(|it| it.history(8));
    let mut consumer = Consumer::builder(place.pool()).connect().unwrap();
    for seed in 0..4 {
        publish(&producer, seed, SIZE);
    }
    for seed in 0..3 {
        assert_frame(&receive(&mut consumer), seed, SIZE);
    }
    let mut again = resume(&place, &consumer);
    assert!(again.has_resumed());
    assert_eq!(again.pool_id(), consumer.pool_id());
    assert_frame(&receive(&mut again), 3, SIZE);
    assert_no_frame(&mut again);
    assert_eq!(again.stats().missed, 0);
    // Also after all frames were taken.
    let mut again = resume(&place, &again);
    assert_no_frame(&mut again);
    publish(&producer, 4, SIZE);
    assert_frame(&receive(&mut again), 4, SIZE);
}

#[test]
fn frames_that_are_gone_count_as_missed() {
    let place = Place::new();
    let producer = place.producer(|it| it.history(4));
    let mut consumer = Consumer::builder(place.pool()).connect().unwrap();
    publish(&producer, 0, SIZE);
    assert_frame(&receive(&mut consumer), 0, SIZE);
    for seed in 1..21 {
        publish(&producer, seed, SIZE);
    }
    let mut again = resume(&place, &consumer);
    for seed in 17..21 {
        assert_frame(&receive(&mut again), seed, SIZE);
    }
    assert_no_frame(&mut again);
    assert_eq!(again.stats().missed, 16);
}

/// Missed events do not count as missed frames, both for a consumer that skips them and for one that was away.
#[test]
fn missed_events_are_no_missed_frames() {
    let place = Place::new();
    let producer = place.producer(|it| it.history(4));
    let mut consumer = Consumer::builder(place.pool()).connect().unwrap();
    let mut away = Consumer::builder(place.pool()).connect().unwrap();
    let publish_all = |seeds: Range<u64>| {
        for seed in seeds {
            publish(&producer, seed, SIZE);
            for _ in 0..seed % 4 {
                producer.publish_event(FrameMeta::default()).unwrap();
            }
        }
    };
    publish_all(0..1);
    assert_frame(&receive(&mut away), 0, SIZE);
    publish_all(1..30);
    assert_frame(&receive(&mut consumer), 26, SIZE);
    assert_eq!(consumer.stats().missed, 26);
    let mut away = resume(&place, &away);
    // Also before the next frame is taken.
    assert_eq!(away.stats().missed, 25);
    assert_frame(&receive(&mut away), 26, SIZE);
    assert_eq!(away.stats().missed, 25);
    let mut late = Consumer::builder(place.pool()).connect().unwrap();
    publish_all(30..60);
    let frame = receive(&mut late);
    assert_frame(&frame, 56, SIZE);
    assert_eq!(frame.info().number(), 56);
    assert_eq!(late.stats().missed, 26);
}

#[test]
fn a_consumer_that_was_too_slow_counts_each_frame() {
    let place = Place::new();
    let producer = Producer::builder(place.pool())
        .delivery(Delivery::Lossless)
        .lossless_timeout(Some(Duration::from_millis(50)))
        .history(4)
        .build()
        .unwrap();
    let mut consumer = Consumer::builder(place.pool()).connect().unwrap();
    producer.wait_for_consumers(1, Wait::up_to(HANG)).unwrap();
    publish(&producer, 0, SIZE);
    assert_frame(&receive(&mut consumer), 0, SIZE);
    for seed in 1..40 {
        publish_wait(&producer, seed, SIZE);
    }
    let left_behind = loop {
        match consumer.receive(Some(HANG)) {
            Ok(_) => {}
            Err(error) => break error,
        }
    };
    assert!(matches!(left_behind, ReceiveError::TimedOut));
    let before = consumer.stats();
    let mut again = resume(&place, &consumer);
    drop(consumer);
    producer.set_eos(true);
    let mut last = None;
    let end = loop {
        match again.receive(Some(HANG)) {
            Ok(frame) => {
                assert!(last < frame.meta().pts);
                last = frame.meta().pts;
            }
            Err(error) => break error,
        }
    };
    assert!(matches!(end, ReceiveError::Eos));
    assert_eq!(last, Some(39));
    let after = again.stats();
    assert_eq!(
        before.received + before.missed + after.received + after.missed,
        40
    );
}

#[test]
fn another_producers_stream_begins_with_its_history() {
    let place = Place::new();
    let first = Producer::builder(place.pool()).build().unwrap();
    let mut consumer = Consumer::builder(place.pool()).connect().unwrap();
    for seed in 0..3 {
        publish(&first, seed, SIZE);
        assert_frame(&receive(&mut consumer), seed, SIZE);
    }
    drop(first);
    let gone = consumer.receive(Some(HANG));
    assert!(matches!(gone, Err(ReceiveError::ProducerLost)));
    let second = place.producer(|it| it.history(8));
    for seed in 10..12 {
        publish(&second, seed, SIZE);
    }
    let mut again = resume(&place, &consumer);
    assert!(!again.has_resumed());
    assert_ne!(again.pool_id(), consumer.pool_id());
    for seed in 10..12 {
        assert_frame(&receive(&mut again), seed, SIZE);
    }
    assert_eq!(again.stats().missed, 0);
}
