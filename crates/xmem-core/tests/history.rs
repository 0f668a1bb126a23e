// SPDX-License-Identifier: MPL-2.0

//! Frames that are kept for a time, independent of their number.

mod support;

use std::time::Duration;

use rustix::param::page_size;
use support::{HANG, Place};
use xmem_core::{
    Attachments, Consumer, Delivery, FrameMeta, Producer, ProducerBuilder, ReceiveError, StartFrom,
};

const MS: i64 = 1_000_000;

fn kept_for_100_ms(place: &Place) -> ProducerBuilder {
    Producer::builder(&place.pool())
        .history(4)
        .history_time(Duration::from_millis(100))
}

fn at(time: Option<i64>) -> FrameMeta {
    FrameMeta {
        timestamp: time,
        ..FrameMeta::new(1)
    }
}

/// Publishes frames at this interval.
fn publish(producer: &Producer, frames: i64, apart: i64) {
    for frame in 0..frames {
        let lease = producer.acquire(1).unwrap();
        lease.publish(at(Some(frame * apart))).unwrap();
    }
}

/// The number of frames that a new consumer gets.
fn kept(place: &Place, producer: &Producer) -> u64 {
    let builder = Consumer::builder(&place.pool()).start_from(StartFrom::Oldest);
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
    Consumer::builder(&place.pool()).connect().unwrap()
}

#[test]
fn the_history_has_the_frames_of_its_time_and_at_least_its_count() {
    for (apart, expected) in [(0, 64), (MS, 64), (5 * MS, 20), (30 * MS, 4), (200 * MS, 4)] {
        let place = Place::new();
        let producer = kept_for_100_ms(&place).build().unwrap();
        let mut late = late(&place);
        publish(&producer, 100, apart);
        assert_eq!(rest(&producer, &mut late), expected, "{apart} ns apart");
        assert_eq!(late.stats().missed, 100 - expected);
    }
}

#[test]
fn frames_that_each_consumer_has_taken_are_not_kept_longer() {
    let place = Place::new();
    let producer = kept_for_100_ms(&place).build().unwrap();
    publish(&producer, 40, MS);
    assert_eq!(kept(&place, &producer), 4);

    let (mut near, mut far) = (late(&place), late(&place));
    for frame in 0..40 {
        publish(&producer, 1, frame);
        near.receive(Some(HANG)).unwrap();
        if frame >= 10 {
            far.receive(Some(HANG)).unwrap();
        }
    }
    // `far` took one more after the newest was published.
    assert_eq!(kept(&place, &producer), 11);
    assert_eq!(rest(&producer, &mut far), 10);
    publish(&producer, 1, MS);
    assert_eq!(kept(&place, &producer), 4);
    drop(far);
    assert_eq!(producer.stats().slots_held, 4);
}

#[test]
fn a_consumer_that_lags_by_less_than_the_time_misses_nothing() {
    let place = Place::new();
    let producer = kept_for_100_ms(&place).build().unwrap();
    let mut consumer = Consumer::builder(&place.pool()).connect().unwrap();
    for frame in 0..200 {
        let lease = producer.acquire(1).unwrap();
        lease.publish(at(Some(frame * 5 * MS))).unwrap();
        if frame >= 15 {
            let received = consumer.receive(Some(HANG)).unwrap();
            assert_eq!(received.meta().timestamp, Some((frame - 15) * 5 * MS));
        }
    }
    assert_eq!(consumer.stats().missed, 0);
}

#[test]
fn timestamps_that_jump_keep_the_promised_history() {
    let place = Place::new();
    let producer = kept_for_100_ms(&place).build().unwrap();
    let _late = late(&place);
    publish(&producer, 20, 5 * MS);
    // Back by 95 ms, then far ahead.
    publish(&producer, 1, 0);
    assert_eq!(kept(&place, &producer), 21);
    let lease = producer.acquire(1).unwrap();
    lease.publish(at(Some(i64::MAX))).unwrap();
    assert_eq!(kept(&place, &producer), 4);
    let lease = producer.acquire(1).unwrap();
    lease.publish(at(Some(i64::MIN))).unwrap();
    assert_eq!(kept(&place, &producer), 4);
}

#[test]
fn frames_without_a_timestamp_or_with_a_release_hook_are_not_kept_longer() {
    let place = Place::new();
    let producer = kept_for_100_ms(&place).build().unwrap();
    let _late = late(&place);
    publish(&producer, 20, MS);
    let lease = producer.acquire(1).unwrap();
    lease.publish(at(None)).unwrap();
    assert_eq!(kept(&place, &producer), 4);

    for frame in 0..20 {
        let mut lease = producer.acquire(1).unwrap();
        lease.set_release_hook(|| {});
        lease.publish(at(Some(frame * MS))).unwrap();
    }
    assert_eq!(kept(&place, &producer), 4);
}

#[test]
fn events_between_frames_do_not_push_them_out() {
    let place = Place::new();
    let producer = kept_for_100_ms(&place).build().unwrap();
    let builder = Consumer::builder(&place.pool()).events(true);
    let mut consumer = builder.connect().unwrap();
    let mut attachments = Attachments::new();
    attachments.set("text", "between");
    for frame in 0..30 {
        let lease = producer.acquire(1).unwrap();
        lease.publish(at(Some(frame * 5 * MS))).unwrap();
        let event = FrameMeta {
            attachments: attachments.clone(),
            ..FrameMeta::default()
        };
        producer.publish_event(event).unwrap();
    }
    let (mut frames, mut events) = (0, 0);
    while frames + events < 40 {
        let is_event = consumer.receive(Some(HANG)).unwrap().meta().event;
        *if is_event { &mut events } else { &mut frames } += 1;
    }
    let more = consumer.receive(Some(Duration::ZERO));
    assert!(matches!(more, Err(ReceiveError::Timeout)));
    assert_eq!((frames, events), (20, 20));
}

#[test]
fn many_events_in_a_row_push_no_frame_out() {
    let place = Place::new();
    let producer = Producer::builder(&place.pool()).history(4).build().unwrap();
    publish(&producer, 4, MS);
    for _ in 0..6 {
        producer.publish_event(FrameMeta::default()).unwrap();
    }
    let builder = Consumer::builder(&place.pool()).start_from(StartFrom::Oldest);
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
    let builder = kept_for_100_ms(&place).delivery(Delivery::Lossless);
    let producer = builder.build().unwrap();
    publish(&producer, 20, MS);
    assert_eq!(kept(&place, &producer), 4);
}

/// Frames beyond the guaranteed history are released for any other need.
#[test]
fn extra_frames_are_released_for_any_other_need() {
    for max_bytes in [0, 30 * page_size() as u64] {
        let place = Place::new();
        let builder = kept_for_100_ms(&place).max_slots(30).max_bytes(max_bytes);
        let producer = builder.build().unwrap();
        producer.set_upstream_need(6).unwrap();
        let consumer = |start_from| {
            let builder = Consumer::builder(&place.pool()).start_from(start_from);
            builder.max_held(8).connect().unwrap()
        };
        let mut consumers = vec![consumer(StartFrom::Next)];
        publish(&producer, 40, MS);
        consumers.push(consumer(StartFrom::Oldest));
        assert!(consumers.iter().all(|consumer| consumer.budget() == 8));
        assert!(rest(&producer, &mut consumers[1]) > 20);
        // All reserved slots are in use: by consumers, which hold different frames, and by upstream.
        let mut held = Vec::new();
        for consumer in &mut consumers {
            rest(&producer, consumer);
            for frame in 0..8 {
                publish(&producer, 1, frame);
                held.push(consumer.receive(Some(HANG)).unwrap());
            }
        }
        let upstream: Vec<_> = (0..6).map(|_| producer.acquire(1).unwrap()).collect();
        publish(&producer, 10, MS);
        let left = rest(&producer, &mut consumers[1]);
        assert!((4..10).contains(&left), "{left}");
        drop((upstream, held));
    }
}
