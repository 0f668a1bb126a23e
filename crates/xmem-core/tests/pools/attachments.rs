// SPDX-License-Identifier: MPL-2.0

//! Attachments, events between frames, and requests upstream.

use std::sync::mpsc;

use crate::support::{HANG, Place, assert_contains, assert_no_frame, eventually};
use rustix::param::page_size;
use xmem_core::{
    Attachments, Backing, Consumer, Delivery, FrameMeta, MAX_NAMED_ENTRIES, MAX_NAMED_SIZE,
    MAX_REQUEST, PoolEvent, Producer, PublishError, ReadLease, ReceiveError, RequestError,
    SlotSpec, StartFrom, Wait,
};

fn attachments(text: &str) -> Attachments {
    let mut attachments = Attachments::new();
    attachments.set("text", text);
    attachments.set("none", "");
    attachments
}

fn event(text: &str) -> FrameMeta {
    FrameMeta::default()
        .timestamp(7)
        .duration(text.len() as u64)
        .attachments(attachments(text))
}

fn publish(producer: &Producer, fill: u8, size: usize, text: &str) -> ReadLease {
    let attachments = attachments(text);
    let mut lease = producer
        .acquire(SlotSpec::new(size).attachments(text.len() + 100))
        .expect("a slot");
    lease.as_mut_slice().fill(fill);
    let meta = FrameMeta::new(size).attachments(attachments);
    lease.publish(meta).expect("there is room")
}

fn assert_frame(frame: &ReadLease, fill: u8, size: usize, text: &str) {
    let bytes = frame.bytes().unwrap();
    assert_eq!(bytes.len(), size);
    assert!(bytes.iter().all(|byte| *byte == fill));
    assert_eq!(frame.meta().attachments, attachments(text));
}

fn attachments_come_with_their_frame(backing: Backing) {
    let place = Place::new();
    let producer = place.producer(|it| it.backing(backing).history(8));
    let mut consumer = Consumer::builder(place.pool()).connect().unwrap();
    let big = "x".repeat(300_000);
    let frames = [
        (1, 1, "a"),
        (2, 4096, ""),
        (3, 4095, "several words"),
        (4, 1 << 20, "ü"),
        (5, 100, big.as_str()),
    ];
    let own: Vec<_> = frames
        .iter()
        .map(|(fill, size, text)| publish(&producer, *fill, *size, text))
        .collect();
    for ((fill, size, text), own) in frames.iter().zip(&own) {
        assert_frame(own, *fill, *size, text);
        assert_frame(&consumer.receive(Some(HANG)).unwrap(), *fill, *size, text);
    }
    // A frame without attachments.
    let lease = producer.acquire(10).unwrap();
    lease.publish(FrameMeta::new(10)).unwrap();
    let frame = consumer.receive(Some(HANG)).unwrap();
    assert!(frame.meta().attachments.is_empty());
    drop((own, frame, consumer, producer));
    place.assert_clean();
}

#[test]
fn attachments_come_with_their_frame_memfd() {
    attachments_come_with_their_frame(Backing::Memfd);
}

#[test]
fn attachments_come_with_their_frame_posix_shm() {
    attachments_come_with_their_frame(Backing::PosixShm);
}

#[test]
fn attachments_without_room_return_the_slot() {
    let place = Place::new();
    let producer = Producer::builder(place.pool()).build().unwrap();
    // The payload uses the whole slot.
    let lease = producer.acquire(page_size()).unwrap();
    let meta = FrameMeta::new(10).attachments(attachments("too much"));
    // The requested space may belong to another frame's payload, also if this frame has only ten bytes.
    let failure = lease.publish(meta).unwrap_err();
    assert!(matches!(
        failure.error,
        PublishError::NoRoomForAttachments { room: 0, .. }
    ));
    let frame = failure.lease.publish(FrameMeta::new(10)).unwrap();
    assert_eq!(frame.info().sequence, 0);

    let size = MAX_NAMED_SIZE + 1;
    let lease = producer
        .acquire(SlotSpec::new(1).attachments(size * 2))
        .unwrap();
    let mut too_large = Attachments::new();
    too_large.set("large", vec![0; size]);
    let meta = FrameMeta::new(1).attachments(too_large);
    assert!(matches!(
        lease.publish(meta).unwrap_err().error,
        PublishError::NoRoomForAttachments { .. }
    ));
}

/// The number of attachments is limited, not their size: consumers would reject more.
#[test]
fn more_attachments_than_a_consumer_takes_are_refused() {
    let place = Place::new();
    let producer = Producer::builder(place.pool()).build().unwrap();
    let mut consumer = Consumer::builder(place.pool()).connect().unwrap();
    let mut most = Attachments::new();
    for number in 0..MAX_NAMED_ENTRIES {
        most.set(&number.to_string(), "");
    }
    let mut too_many = most.clone();
    too_many.set("one more", "");
    let publish = |attachments: &Attachments| {
        let slot = producer
            .acquire(SlotSpec::new(1).attachments(1 << 20))
            .unwrap();
        slot.publish(FrameMeta::new(1).attachments(attachments.clone()))
    };
    let failure = publish(&too_many).unwrap_err();
    assert!(
        matches!(failure.error, PublishError::TooManyAttachments { count } if count == MAX_NAMED_ENTRIES + 1),
        "{failure}"
    );
    drop(failure);
    publish(&most).unwrap();
    let frame = consumer.receive(Some(HANG)).unwrap();
    assert_eq!(frame.meta().attachments, most);
    let error = producer.set_sticky(&too_many).unwrap_err();
    assert_contains(&error.to_string(), "1025 entries");
    producer.set_sticky(&most).unwrap();
    eventually("the state has come", || {
        consumer.sticky().as_deref() == Some(&most)
    });
}

/// Attachments of repeated frames are in separate parts of the slot, so none overwrites another.
#[test]
fn a_slot_published_again_has_attachments_of_its_own_each_time() {
    let place = Place::new();
    let producer = place.producer(|it| it.history(9));
    let mut consumer = Consumer::builder(place.pool()).connect().unwrap();
    let mut lease = producer
        .acquire(SlotSpec::new(1000).attachments(300))
        .unwrap();
    // At least this number of bytes for each.
    let most = lease.capacity() as u64 / 30;
    for (n, part) in (0..).zip(lease.as_mut_slice().chunks_mut(100)) {
        part.fill(n);
    }
    let part = |n: u64, text: &str| {
        let mut meta = FrameMeta::new(100).attachments(attachments(text));
        meta.offset = n * 100;
        meta
    };
    let own = lease.publish(part(0, "first")).unwrap();
    let mut published = 1;
    let refused = loop {
        match producer.republish(&own, &part(published % 10, &format!("number {published}"))) {
            Ok(sequence) => assert_eq!(sequence, published),
            Err(error) => break error,
        }
        published += 1;
    };
    assert!(matches!(refused, PublishError::NoRoomForAttachments { .. }));
    assert!((5..most).contains(&published), "{published}");
    producer.republish(&own, &FrameMeta::new(1000)).unwrap();
    drop(own);
    let first = consumer.receive(Some(HANG)).unwrap().info().sequence;
    for sequence in first + 1..published {
        let frame = consumer.receive(Some(HANG)).unwrap();
        let fill = (sequence % 10) as u8;
        assert_frame(&frame, fill, 100, &format!("number {sequence}"));
    }
    let whole = consumer.receive(Some(HANG)).unwrap();
    for (n, part) in (0..).zip(whole.bytes().unwrap().chunks(100)) {
        assert!(part.iter().all(|byte| *byte == n));
    }
}

/// A slot is larger than requested, and its first frame has no attachments.
#[test]
fn attachments_go_behind_a_payload_that_is_longer_than_was_asked_for() {
    let place = Place::new();
    let producer = place.producer(|it| it.history(4));
    let mut consumer = Consumer::builder(place.pool()).connect().unwrap();
    let mut slot = producer.acquire(100).unwrap();
    let size = slot.capacity() - 100;
    assert!(size > 200);
    slot.as_mut_slice().fill(7);
    let own = slot.publish(FrameMeta::new(size)).unwrap();
    // Less than the whole slot.
    let again = FrameMeta::new(50).attachments(attachments("again"));
    producer.republish(&own, &again).unwrap();
    let first = consumer.receive(Some(HANG)).unwrap();
    assert!(first.meta().attachments.is_empty());
    let bytes = first.bytes().unwrap();
    let (asked_for, behind) = bytes.split_at(100);
    assert!(bytes.len() == size && asked_for.iter().all(|byte| *byte == 7));
    assert!(behind.iter().all(|byte| *byte == 0), "never written");
    assert_frame(&consumer.receive(Some(HANG)).unwrap(), 7, 50, "again");
}

/// A producer can repeat a frame any number of times.
#[test]
fn a_repeated_frame_takes_no_more_room_for_the_same_attachments() {
    let place = Place::new();
    let producer = place.producer(|it| it.history(9));
    let mut consumer = Consumer::builder(place.pool()).connect().unwrap();
    let own = publish(&producer, 7, 4000, "the same");
    let again = |text: &str| FrameMeta::new(4000).attachments(attachments(text));
    for _ in 0..1000 {
        producer.republish(&own, &again("the same")).unwrap();
        assert_frame(&consumer.receive(Some(HANG)).unwrap(), 7, 4000, "the same");
    }
    producer.republish(&own, &again("another")).unwrap();
    for _ in 0..1000 {
        producer.republish(&own, &again("another")).unwrap();
    }
    assert_frame(&consumer.receive(Some(HANG)).unwrap(), 7, 4000, "another");
}

#[test]
fn events_are_delivered_between_frames_on_request() {
    let place = Place::new();
    let producer = place.producer(|it| it.history(4));
    let mut plain = Consumer::builder(place.pool()).connect().unwrap();
    let mut curious = place.consumer(|it| it.events(true));
    publish(&producer, 1, 10, "one");
    assert_eq!(producer.publish_event(event("between")).unwrap(), 1);
    publish(&producer, 2, 10, "two");
    assert_frame(&curious.receive(Some(HANG)).unwrap(), 1, 10, "one");
    let event = curious.receive(Some(HANG)).unwrap();
    assert!(event.meta().event && event.bytes() == Ok(&[]));
    assert_eq!(event.meta().attachments, attachments("between"));
    assert_eq!(
        (event.meta().timestamp, event.meta().duration),
        (Some(7), Some(7))
    );
    assert_frame(&curious.receive(Some(HANG)).unwrap(), 2, 10, "two");

    assert_frame(&plain.receive(Some(HANG)).unwrap(), 1, 10, "one");
    assert_frame(&plain.receive(Some(HANG)).unwrap(), 2, 10, "two");
    assert_no_frame(&mut plain);
    assert_eq!(plain.stats().missed, 0, "an event is no frame");
    let slot = producer.acquire(10).unwrap();
    let mut by_slot = FrameMeta::default();
    by_slot.event = true;
    drop(slot.publish(by_slot).unwrap());
    let stats = producer.stats();
    assert_eq!(
        (stats.published, stats.zero_copy),
        (2, 2),
        "nor is it counted as one"
    );
}

#[test]
fn events_displace_no_frame_and_are_no_newest_frame() {
    let place = Place::new();
    let producer = place.producer(|it| it.history(1));
    let mut slow = Consumer::builder(place.pool()).connect().unwrap();
    publish(&producer, 7, 10, "frame");
    for n in 0..20 {
        producer.publish_event(event(&n.to_string())).unwrap();
    }
    assert!(
        producer.stats().slots_held <= 1 + 4,
        "events are not kept without end"
    );
    // This number of events replaces the frame in the history, a few do not.
    publish(&producer, 8, 10, "next");
    producer.publish_event(event("a")).unwrap();
    producer.publish_event(event("b")).unwrap();
    assert_frame(&slow.receive(Some(HANG)).unwrap(), 8, 10, "next");
    let mut late = place.consumer(|it| it.start_from(StartFrom::Newest).events(true));
    assert_frame(&late.receive(Some(HANG)).unwrap(), 8, 10, "next");
    assert!(late.receive(Some(HANG)).unwrap().meta().event);
}

#[test]
fn events_take_no_slot_that_a_frame_needs() {
    let place = Place::new();
    let builder = Producer::builder(place.pool()).history(4).max_slots(8);
    let producer = builder.build().unwrap();
    producer.set_upstream_need(0).unwrap();
    for n in 0..20 {
        publish(&producer, n, 10, "frame");
        producer.publish_event(event("after it")).unwrap();
    }
    let mut late = place.consumer(|it| it.start_from(StartFrom::Oldest));
    for n in 16..20 {
        assert_frame(&late.receive(Some(HANG)).unwrap(), n, 10, "frame");
    }
}

#[test]
fn lossless_consumers_get_every_event() {
    let place = Place::new();
    let producer = place.producer(|it| it.delivery(Delivery::Lossless));
    let mut curious = place.consumer(|it| it.events(true));
    let mut plain = Consumer::builder(place.pool()).connect().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for n in 0..200u32 {
                producer.wait_for_room(Wait::FOREVER).unwrap();
                if n % 3 == 0 {
                    publish(&producer, n as u8, 10, &n.to_string());
                } else {
                    let event = event(&n.to_string());
                    producer.publish_event_wait(event, Wait::FOREVER).unwrap();
                }
            }
            producer.set_eos(true);
        });
        scope.spawn(|| {
            for n in (0..200u32).filter(|n| n % 3 == 0) {
                assert_frame(
                    &plain.receive(Some(HANG)).unwrap(),
                    n as u8,
                    10,
                    &n.to_string(),
                );
            }
            assert!(matches!(plain.receive(Some(HANG)), Err(ReceiveError::Eos)));
        });
        for n in 0..200u32 {
            let entry = curious.receive(Some(HANG)).unwrap();
            assert_eq!(entry.meta().event, n % 3 != 0);
            assert_eq!(entry.meta().attachments, attachments(&n.to_string()));
        }
    });
    // Events do not count as frames.
    assert_eq!(
        [curious, plain].map(|consumer| consumer.stats().received),
        [67; 2]
    );
}

#[test]
fn requests_reach_the_producer() {
    let place = Place::new();
    let (to, from) = mpsc::channel();
    let producer = Producer::builder(place.pool())
        .on_event(move |event| {
            if let PoolEvent::Request {
                consumer,
                name,
                data,
                ..
            } = event
            {
                let _ = to.send((consumer.name, name, data));
            }
        })
        .build()
        .unwrap();
    let consumer = place.consumer(|it| it.name("asker"));
    let handle = consumer.handle();
    consumer.request("key-frame", b"now").unwrap();
    handle.request("other", &[7; MAX_REQUEST]).unwrap();
    let got = |name: &str, data: &[u8]| ("asker".to_owned(), name.to_owned(), data.to_vec());
    assert_eq!(from.recv_timeout(HANG).unwrap(), got("key-frame", b"now"));
    assert_eq!(
        from.recv_timeout(HANG).unwrap(),
        got("other", &[7; MAX_REQUEST])
    );
    assert_eq!(
        consumer.request("long", &[0; MAX_REQUEST + 1]),
        Err(RequestError::TooLarge {
            size: MAX_REQUEST + 1
        })
    );
    drop(producer);
    eventually("the loss is noticed", || {
        handle.request("late", b"") == Err(RequestError::ProducerLost)
    });
    drop(consumer);
    assert_eq!(
        handle.request("later", b""),
        Err(RequestError::ProducerLost)
    );
}

#[test]
fn the_sticky_state_arrives_without_a_frame() {
    let place = Place::new();
    let producer = Producer::builder(place.pool()).build().unwrap();
    let mut state = xmem_core::Sticky::new();
    state.set("caps", "a/b");
    producer.set_sticky(&state).unwrap();
    producer.set_eos(true);
    let mut late = Consumer::builder(place.pool()).connect().unwrap();
    assert_eq!(late.wait_sticky(Some(HANG)).as_deref(), Some(&state));
    assert_eq!(late.handle().sticky().as_deref(), Some(&state));
    assert!(matches!(late.receive(Some(HANG)), Err(ReceiveError::Eos)));
}

#[test]
fn pass_eos_waits_for_frames_after_the_end() {
    let place = Place::new();
    let producer = Producer::builder(place.pool()).build().unwrap();
    let mut consumer = Consumer::builder(place.pool()).connect().unwrap();
    publish(&producer, 1, 10, "");
    producer.set_eos(true);
    assert_frame(&consumer.receive(Some(HANG)).unwrap(), 1, 10, "");
    for _ in 0..2 {
        assert!(matches!(
            consumer.receive(Some(HANG)),
            Err(ReceiveError::Eos)
        ));
    }
    consumer.pass_eos();
    assert_no_frame(&mut consumer);
    publish(&producer, 2, 10, "");
    assert_frame(&consumer.receive(Some(HANG)).unwrap(), 2, 10, "");
    producer.set_eos(true);
    assert!(matches!(
        consumer.receive(Some(HANG)),
        Err(ReceiveError::Eos)
    ));
    consumer.pass_eos();
    drop(producer);
    assert!(matches!(
        consumer.receive(Some(HANG)),
        Err(ReceiveError::ProducerLost)
    ));
}
