// SPDX-License-Identifier: MPL-2.0

//! A consumer that only wants the newest frame.

use crate::support::{HANG, Place, assert_frame, assert_no_frame, publish, publish_wait, receive};
use xmem_core::{Consumer, Delivery, FrameMeta, Producer, ReceiveError, Wait};

const SIZE: usize = 100;

fn newest_only(place: &Place) -> Consumer {
    place.consumer(|it| it.newest_only(true).events(true))
}

#[test]
fn older_frames_are_skipped_and_counted() {
    let place = Place::new();
    let producer = place.producer(|it| it.history(8));
    let mut consumer = newest_only(&place);
    for seed in 0..4 {
        publish(&producer, seed, SIZE);
    }
    assert_frame(&receive(&mut consumer), 3, SIZE);
    assert_no_frame(&mut consumer);
    for seed in 4..6 {
        publish(&producer, seed, SIZE);
        assert_frame(&receive(&mut consumer), seed, SIZE);
    }
    publish(&producer, 6, SIZE);
    publish(&producer, 7, SIZE);
    producer.set_eos(true);
    assert_frame(&receive(&mut consumer), 7, SIZE);
    let end = consumer.receive(Some(HANG));
    assert!(matches!(end, Err(ReceiveError::Eos)));
    let stats = consumer.stats();
    assert_eq!((stats.received, stats.missed), (4, 4));
}

#[test]
fn events_between_skipped_frames_are_delivered() {
    let place = Place::new();
    let producer = place.producer(|it| it.history(16));
    let mut consumer = newest_only(&place);
    let event = |number| FrameMeta::default().pts(number);
    for seed in [0, 2, 4] {
        publish(&producer, seed, SIZE);
        producer.publish_event(event(seed + 1)).unwrap();
    }
    for expected in [1, 3, 4, 5] {
        let next = receive(&mut consumer);
        assert_eq!(next.meta().event, expected % 2 == 1);
        assert_eq!(next.meta().pts, Some(expected));
    }
    assert_no_frame(&mut consumer);
    assert_eq!(consumer.stats().missed, 2);
}

/// Skipped frames count as taken, so the consumer delays no producer.
#[test]
fn a_lossless_producer_goes_on() {
    let place = Place::new();
    let builder = Producer::builder(place.pool()).delivery(Delivery::Lossless);
    let producer = builder.build().unwrap();
    let mut consumer = newest_only(&place);
    producer.wait_for_consumers(1, Wait::up_to(HANG)).unwrap();
    // Many more frames than a lossless producer may be ahead.
    for round in 0..10 {
        for seed in round * 5..round * 5 + 5 {
            publish_wait(&producer, seed, SIZE);
        }
        assert_frame(&receive(&mut consumer), round * 5 + 4, SIZE);
    }
    producer.drain(Wait::up_to(HANG)).unwrap();
    assert_eq!(consumer.stats().missed, 40);
}
