// SPDX-License-Identifier: MPL-2.0

//! Frames that are kept for a time, independent of their number.

use std::time::Duration;

use crate::support::{HANG, Place, assert_no_frame};
use rustix::param::page_size;
use xmem_core::{Attachments, Consumer, Delivery, FrameMeta, Producer, ProducerBuilder, StartFrom};

/// Longer than any test.
const LONG: Duration = Duration::from_secs(3_600);
/// Shorter than the interval between any two frames.
const SHORT: Duration = Duration::from_nanos(1);

fn kept_for(place: &Place, time: Duration) -> ProducerBuilder {
    Producer::builder(place.pool())
        .history(4)
        .history_time(time)
}

fn publish(producer: &Producer, frames: u64) {
    for _ in 0..frames {
        let lease = producer.acquire(1).unwrap();
        lease.publish(FrameMeta::new(1)).unwrap();
    }
}

/// The number of frames that a new consumer gets.
fn kept(place: &Place, producer: &Producer) -> u64 {
    let builder = Consumer::builder(place.pool()).start_from(StartFrom::Oldest);
    let mut consumer = builder.connect().unwrap();
    let kept = rest(producer, &mut consumer);
    assert_eq!(consumer.stats().missed, 0);
    kept
}

/// Takes all available frames up to the newest. Returns their number.
fn rest(producer: &Producer, consumer: &mut Consumer) -> u64 {
    let newest = producer.stats().published - 1;
    let mut frames = 0;
    loop {
        frames += 1;
        let sequence = consumer.receive_with(Some(HANG), |lease| lease.info().sequence);
        if sequence.unwrap() == newest {
            return frames;
        }
    }
}

/// A consumer that takes nothing, so that frames are kept for it.
fn late(place: &Place) -> Consumer {
    Consumer::builder(place.pool()).connect().unwrap()
}

#[test]
fn the_history_has_the_frames_of_its_time_and_at_least_its_count() {
    for (time, expected) in [(LONG, 100), (SHORT, 4), (Duration::ZERO, 4)] {
        let place = Place::new();
        let producer = kept_for(&place, time).build().unwrap();
        let mut late = late(&place);
        publish(&producer, 100);
        assert_eq!(rest(&producer, &mut late), expected, "{time:?}");
        assert_eq!(late.stats().missed, 100 - expected);
    }
}

/// The pool has more slots for small frames than for others.
#[test]
fn small_frames_are_kept_up_to_a_number() {
    for (size, expected) in [(1, 952..=952), (100_000, 40..=64)] {
        let place = Place::new();
        let builder = kept_for(&place, LONG).max_slots(64).small_slots(1_024);
        let producer = builder.build().unwrap();
        let mut late = late(&place);
        for _ in 0..1_100 {
            let lease = producer.acquire(size).unwrap();
            lease.publish(FrameMeta::new(size)).unwrap();
        }
        let kept = rest(&producer, &mut late);
        assert!(expected.contains(&kept), "{kept} of {size} bytes");
        assert_eq!(producer.stats().dropped, 0);
    }
}

#[test]
fn a_consumer_that_asks_gets_older_frames_and_others_do_not() {
    let place = Place::new();
    let producer = kept_for(&place, SHORT).build().unwrap();
    let (mut patient, mut slow) = (late(&place), late(&place));
    patient.handle().keep_for_longer(LONG);
    publish(&producer, 100);
    assert_eq!(rest(&producer, &mut slow), 4);
    assert_eq!(slow.stats().missed, 96);
    assert_eq!(rest(&producer, &mut patient), 100);
    // Whatever it asks for.
    patient.keep_for_longer(Duration::MAX);
    publish(&producer, 50);
    assert_eq!(producer.stats().slots_held, 50);
    patient.keep_for_longer(Duration::ZERO);
    publish(&producer, 1);
    assert_eq!(producer.stats().slots_held, 4);
    assert_eq!(rest(&producer, &mut patient), 4);
}

#[test]
fn the_memory_is_free_again_after_the_consumer_has_left() {
    let place = Place::new();
    let producer = kept_for(&place, SHORT).build().unwrap();
    let patient = late(&place);
    patient.keep_for_longer(LONG);
    let publish = |frames: u64| {
        for _ in 0..frames {
            let lease = producer.acquire(300_000).unwrap();
            lease.publish(FrameMeta::new(300_000)).unwrap();
        }
    };
    publish(100);
    let most = producer.stats().bytes;
    assert!(most >= 100 * 300_000);
    drop(patient);
    // Unused regions are removed after 600 frames.
    publish(700);
    let left = producer.stats().bytes;
    assert!(left < most / 5, "{left} of {most} bytes");
}

#[test]
fn a_set_history_is_not_exceeded_for_a_consumer_that_asks() {
    for (time, delivery) in [(Duration::ZERO, Delivery::Live), (LONG, Delivery::Lossless)] {
        let place = Place::new();
        let builder = kept_for(&place, time).delivery(delivery);
        let producer = builder.build().unwrap();
        let mut patient = late(&place);
        patient.keep_for_longer(LONG);
        publish(&producer, 8);
        assert_eq!(producer.stats().slots_held, 4);
        let expected = if delivery == Delivery::Live { 4 } else { 8 };
        assert_eq!(rest(&producer, &mut patient), expected);
    }
}

#[test]
fn frames_that_each_consumer_has_taken_are_not_kept_longer() {
    let place = Place::new();
    let producer = kept_for(&place, LONG).build().unwrap();
    publish(&producer, 40);
    assert_eq!(kept(&place, &producer), 4);

    let (mut near, mut far) = (late(&place), late(&place));
    for frame in 0..40 {
        publish(&producer, 1);
        near.receive(Some(HANG)).unwrap();
        if frame >= 10 {
            far.receive(Some(HANG)).unwrap();
        }
    }
    // `far` took one more after the newest was published.
    assert_eq!(kept(&place, &producer), 11);
    assert_eq!(rest(&producer, &mut far), 10);
    publish(&producer, 1);
    assert_eq!(kept(&place, &producer), 4);
    drop(far);
    assert_eq!(producer.stats().slots_held, 4);
}

#[test]
fn a_consumer_that_lags_by_less_than_the_time_misses_nothing() {
    let place = Place::new();
    let producer = kept_for(&place, LONG).build().unwrap();
    let mut consumer = Consumer::builder(place.pool()).connect().unwrap();
    for frame in 0..200 {
        publish(&producer, 1);
        if frame >= 15 {
            let received = consumer.receive(Some(HANG)).unwrap();
            assert_eq!(received.info().sequence, frame - 15);
        }
    }
    assert_eq!(consumer.stats().missed, 0);
}

/// The time of the publication counts, which never jumps.
#[test]
fn frames_are_kept_whatever_their_timestamps_are() {
    let place = Place::new();
    let producer = kept_for(&place, LONG).build().unwrap();
    let _late = late(&place);
    for timestamp in [None, Some(0), Some(i64::MAX), Some(i64::MIN)] {
        for _ in 0..5 {
            let mut meta = FrameMeta::new(1);
            meta.timestamp = timestamp;
            producer.acquire(1).unwrap().publish(meta).unwrap();
        }
    }
    assert_eq!(kept(&place, &producer), 20);
}

#[test]
fn frames_with_a_release_hook_are_not_kept_longer() {
    let place = Place::new();
    let producer = kept_for(&place, LONG).build().unwrap();
    let _late = late(&place);
    publish(&producer, 20);
    for _ in 0..20 {
        let mut lease = producer.acquire(1).unwrap();
        lease.set_release_hook(|| {});
        lease.publish(FrameMeta::new(1)).unwrap();
    }
    assert_eq!(kept(&place, &producer), 4);
    publish(&producer, 20);
    assert_eq!(kept(&place, &producer), 20);
}

#[test]
fn events_between_frames_do_not_push_them_out() {
    let place = Place::new();
    let producer = kept_for(&place, LONG).build().unwrap();
    let builder = Consumer::builder(place.pool()).events(true);
    let mut consumer = builder.connect().unwrap();
    let mut attachments = Attachments::new();
    attachments.set("text", "between");
    for _ in 0..30 {
        publish(&producer, 1);
        let event = FrameMeta::default().attachments(attachments.clone());
        producer.publish_event(event).unwrap();
    }
    let (mut frames, mut events) = (0, 0);
    while frames + events < 60 {
        let is_event = consumer.receive(Some(HANG)).unwrap().meta().event;
        *if is_event { &mut events } else { &mut frames } += 1;
    }
    assert_no_frame(&mut consumer);
    assert_eq!((frames, events), (30, 30));
}

#[test]
fn many_events_in_a_row_push_no_frame_out() {
    let place = Place::new();
    let producer = place.producer(|it| it.history(4));
    publish(&producer, 4);
    for _ in 0..6 {
        producer.publish_event(FrameMeta::default()).unwrap();
    }
    let builder = Consumer::builder(place.pool()).start_from(StartFrom::Oldest);
    let mut consumer = builder.events(true).connect().unwrap();
    let kinds: Vec<_> = (0..8)
        .map(|_| consumer.receive(Some(HANG)).unwrap().meta().event)
        .collect();
    let expected = [false, false, false, false, true, true, true, true];
    assert_eq!(kinds, expected);
}

#[test]
fn lossless_pools_keep_the_promised_history() {
    let place = Place::new();
    let builder = kept_for(&place, LONG).delivery(Delivery::Lossless);
    let producer = builder.build().unwrap();
    publish(&producer, 20);
    assert_eq!(kept(&place, &producer), 4);
}

/// Frames beyond the guaranteed history are released for any other need.
#[test]
fn extra_frames_are_released_for_any_other_need() {
    for max_bytes in [0, 30 * page_size() as u64] {
        let place = Place::new();
        let builder = kept_for(&place, LONG).max_slots(30).max_bytes(max_bytes);
        let producer = builder.build().unwrap();
        producer.set_upstream_need(6).unwrap();
        let consumer = |start_from| place.consumer(|it| it.start_from(start_from).max_held(8));
        let mut consumers = vec![consumer(StartFrom::Next)];
        publish(&producer, 40);
        consumers.push(consumer(StartFrom::Oldest));
        assert!(consumers.iter().all(|consumer| consumer.budget() == 8));
        assert!(rest(&producer, &mut consumers[1]) > 20);
        // All reserved slots are in use: by consumers, which hold different frames, and by upstream.
        let mut held = Vec::new();
        for consumer in &mut consumers {
            rest(&producer, consumer);
            for _ in 0..8 {
                publish(&producer, 1);
                held.push(consumer.receive(Some(HANG)).unwrap());
            }
        }
        let upstream: Vec<_> = (0..6).map(|_| producer.acquire(1).unwrap()).collect();
        publish(&producer, 10);
        let left = rest(&producer, &mut consumers[1]);
        assert!((4..10).contains(&left), "{left}");
        drop((upstream, held));
    }
}
