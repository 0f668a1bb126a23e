// SPDX-License-Identifier: MPL-2.0

//! Frames arrive complete and in order.

use std::time::Duration;

use xmem_core::{
    AcquireError, Backing, Consumer, DType, FrameFlags, FrameInfo, FrameLayout, FrameMeta, OwnSlot,
    PublishError, ReceiveError, StartFrom, VideoLayout,
};

use super::*;

crate::conformance! {
    content_is_bit_exact_for_every_size
    metadata_arrives_complete
    a_payload_may_lie_anywhere_in_its_slot
    every_consumer_sees_every_frame_in_the_same_slot
    more_layouts_than_the_table_has_room_for_arrive
    start_from_selects_the_first_frame
    a_consumer_that_waits_gets_the_first_frames
    a_slow_live_consumer_gets_the_newest
    the_same_slot_can_be_published_again
    a_slot_is_published_where_it_stays
    a_description_lasts_as_long_as_its_frame
    a_slot_that_cannot_be_published_is_returned
}

fn content_is_bit_exact_for_every_size(backing: Backing) {
    let place = Place::new();
    let producer = pool(&place, backing).build().unwrap();
    let mut consumer = connect(&place);
    let sizes = [
        1, 2, 3, 7, 8, 9, 4095, 4096, 4097, 65_535, 65_537, 262_143, 262_144, 262_145, 1_000_003,
        3_110_400, 5_242_881, 4096, 1,
    ];
    for (seed, size) in (0..).zip(sizes) {
        let own = publish(&producer, seed, size);
        let frame = receive(&mut consumer);
        assert_eq!(frame.info().sequence, seed);
        assert_frame(&frame, seed, size);
        assert_frame(&own, seed, size);
        assert!(own.is_local() && !frame.is_local());
        assert!(frame.slot_len() >= size);
    }
    assert_eq!(consumer.stats().missed, 0);
    assert_eq!(consumer.stats().received, sizes.len() as u64);
}

fn metadata_arrives_complete(backing: Backing) {
    let place = Place::new();
    let producer = pool(&place, backing).build().unwrap();
    let mut consumer = connect(&place);
    let layout = FrameLayout {
        dtype: DType::F16,
        ndim: 3,
        shape: [2, 480, 853, 0, 0, 0, 0, 9],
        strides: [-7, 1706, 2, 0, 0, 0, 0, i64::MIN],
        content_type: "video/x-raw".into(),
        producer: "a test".into(),
        video: Some(VideoLayout {
            format: "NV12".into(),
            width: 853,
            height: 480,
            n_planes: 2,
            offsets: [0, 856 * 480, 0, 0],
            strides: [856, -856, 0, 0],
        }),
    };
    let mut meta = FrameMeta::with_layout(853 * 480 * 3 / 2, layout)
        .timestamp(i64::MIN)
        .pts(1)
        .duration(33_366_666)
        .flags(FrameFlags::from_bits(u32::MAX));
    meta.reserved = Some(Box::new(std::array::from_fn(|i| i as u8)));
    meta.decode_timestamp = Some(i64::MAX);
    (meta.buffer_offset, meta.buffer_offset_end) = (Some(4), Some(5));
    let slot = producer.acquire(853 * 480 * 2).unwrap();
    let (number, generation) = (slot.slot(), slot.generation());
    let before = xmem_core::monotonic_ns();
    let own = slot.publish(meta.clone()).unwrap();
    let frame = receive(&mut consumer);
    assert!((before..=xmem_core::monotonic_ns()).contains(&frame.info().published_at));
    let expected = FrameInfo {
        sequence: 0,
        slot: number,
        generation,
        published_at: frame.info().published_at,
        sticky_version: frame.info().sticky_version,
        ..FrameInfo::default()
    };
    assert_eq!((frame.info(), frame.meta()), (&expected, &meta));
    assert_eq!((own.info(), own.meta()), (&expected, &meta));
    let slot = producer.acquire(853 * 480 * 2).unwrap();
    let again = slot.publish(own.meta().clone()).unwrap();
    assert!(!again.is_same(&own));
    assert!(own.is_same(&own.clone()));
    assert_eq!(receive(&mut consumer).meta(), &meta);
}

fn a_payload_may_lie_anywhere_in_its_slot(backing: Backing) {
    let place = Place::new();
    let producer = pool(&place, backing).build().unwrap();
    let mut consumer = connect(&place);
    for (seed, offset, size) in [(0, 1, 4095), (1, 4096, 0), (2, 0, 0), (3, 17, 100)] {
        let mut slot = producer.acquire(4096).unwrap();
        fill(seed, &mut slot.as_mut_slice()[offset..offset + size]);
        let mut meta = seeded(seed, size);
        meta.offset = offset as u64;
        slot.publish(meta).unwrap();
        let frame = receive(&mut consumer);
        assert_frame(&frame, seed, size);
        let bytes = frame.bytes().unwrap();
        assert_eq!(bytes.as_ptr().addr() - frame.slot_ptr().addr(), offset);
        assert_eq!(bytes.is_empty(), size == 0);
    }
}

fn every_consumer_sees_every_frame_in_the_same_slot(backing: Backing) {
    let place = Place::new();
    let producer = pool(&place, backing).build().unwrap();
    let mut consumers: Vec<Consumer> = (0..3).map(|_| connect(&place)).collect();
    for seed in 0..50 {
        let own = publish(&producer, seed, 5000);
        for consumer in &mut consumers {
            let frame = receive(consumer);
            assert_frame(&frame, seed, 5000);
            assert_eq!(frame.meta(), own.meta());
        }
    }
    let stats = producer.stats();
    assert_eq!(stats.consumers.len(), 3);
    assert!(
        stats
            .consumers
            .iter()
            .all(|consumer| consumer.received == 50 && consumer.missed == 0 && consumer.held == 0)
    );
}

fn more_layouts_than_the_table_has_room_for_arrive(backing: Backing) {
    let place = Place::new();
    let producer = pool(&place, backing).history(100).build().unwrap();
    let mut consumer = connect(&place);
    let publish = |seed: u64| {
        let mut meta = seeded(seed, 100);
        meta.layout_mut().content_type = format!("kind {}", seed % 80).as_str().into();
        meta.reserved = seed.is_multiple_of(3).then(|| Box::new([seed as u8; 64]));
        let mut slot = producer.acquire(100).unwrap();
        fill(seed, slot.as_mut_slice());
        let own = slot.publish(meta.clone()).unwrap();
        assert_eq!(own.meta(), &meta);
        meta
    };
    for seed in 0..200 {
        let meta = publish(seed);
        let frame = receive(&mut consumer);
        assert_frame(&frame, seed, 100);
        assert_eq!(frame.meta(), &meta);
    }
    // A consumer that joins later gets all of them.
    let mut late = place.consumer(|it| it.start_from(StartFrom::Oldest));
    for seed in 100..200 {
        let frame = receive(&mut late);
        assert_eq!(
            frame.meta().layout.content_type.as_str(),
            format!("kind {}", seed % 80)
        );
    }
    // There is one copy of each layout in this process.
    let frames = [0, 80].map(|seed| {
        publish(seed);
        receive(&mut consumer)
    });
    let [first, second] = frames.map(|frame| frame.meta().layout.clone());
    assert!(std::sync::Arc::ptr_eq(&first, &second));
}

fn start_from_selects_the_first_frame(backing: Backing) {
    let place = Place::new();
    let producer = pool(&place, backing).history(4).build().unwrap();
    let join = |start| place.consumer(|it| it.start_from(start));
    // The pool is empty: all three wait for the first frame.
    for start in [StartFrom::Next, StartFrom::Newest, StartFrom::Oldest] {
        assert_no_frame(&mut join(start));
    }
    for seed in 0..10 {
        publish(&producer, seed, 3000);
    }
    let mut next = join(StartFrom::Next);
    let mut newest = join(StartFrom::Newest);
    let mut oldest = join(StartFrom::Oldest);
    assert_no_frame(&mut next);
    assert_frame(&receive(&mut newest), 9, 3000);
    for seed in 6..10 {
        assert_frame(&receive(&mut oldest), seed, 3000);
    }
    publish(&producer, 10, 3000);
    for consumer in [&mut next, &mut newest, &mut oldest] {
        assert_frame(&receive(consumer), 10, 3000);
        assert_eq!(
            consumer.stats().missed,
            0,
            "what was before it joined is not missed"
        );
    }
}

/// The wait is not observable. If it has not begun, the test covers less.
fn a_consumer_that_waits_gets_the_first_frames(backing: Backing) {
    let place = Place::new();
    let builder = Consumer::builder(place.pool());
    let waiting = std::thread::spawn(move || builder.connect_wait(Some(HANG)).unwrap());
    std::thread::sleep(Duration::from_millis(200));
    let producer = pool(&place, backing).build().unwrap();
    for seed in 0..3 {
        publish(&producer, seed, 100);
    }
    let mut consumer = waiting.join().unwrap();
    for seed in 0..3 {
        assert_frame(&receive(&mut consumer), seed, 100);
    }
}

fn a_slow_live_consumer_gets_the_newest(backing: Backing) {
    let place = Place::new();
    let producer = pool(&place, backing).history(3).build().unwrap();
    let mut consumer = connect(&place);
    for seed in 0..1000 {
        publish(&producer, seed, 2000);
    }
    for seed in 997..1000 {
        assert_frame(&receive(&mut consumer), seed, 2000);
    }
    assert_eq!(consumer.stats().missed, 997);
    assert_no_frame(&mut consumer);
    let stats = producer.stats();
    assert_eq!((stats.published, stats.dropped), (1000, 0));
    assert_eq!(
        (stats.consumers[0].missed, stats.consumers[0].received),
        (997, 3)
    );
    assert_eq!(stats.slots_held, 3);
}

fn the_same_slot_can_be_published_again(backing: Backing) {
    let place = Place::new();
    let producer = pool(&place, backing).history(3).build().unwrap();
    let other = Place::new();
    let stranger = pool(&other, backing).build().unwrap();
    let mut consumer = connect_with(&place, 1);
    let own = publish(&producer, 7, 1234);
    for n in 1..=2 {
        let meta = seeded(7, 1234).duration(n);
        assert_eq!(producer.republish(&own, &meta).unwrap(), n);
    }
    assert!(matches!(
        stranger.republish(&own, &seeded(7, 1)),
        Err(PublishError::OtherPool)
    ));
    let frames: Vec<_> = (0..3).map(|_| receive(&mut consumer)).collect();
    assert!(matches!(
        producer.republish(&frames[0], &seeded(7, 1)),
        Err(PublishError::OtherPool)
    ));
    for (n, frame) in (0..).zip(&frames) {
        assert_frame(frame, 7, 1234);
        assert_eq!(frame.info().sequence, n);
        assert_eq!(frame.meta().duration, (n > 0).then_some(n));
        assert_eq!(
            frame.bytes().unwrap().as_ptr(),
            frames[0].bytes().unwrap().as_ptr()
        );
    }
    assert_eq!(consumer.held(), 1, "one slot, so one lease");
    drop(own);
    // After it left the history, only the consumer's lease keeps the frame, until the last handle is dropped.
    for seed in 10..20 {
        publish(&producer, seed, 1234);
    }
    let mut frames = frames;
    while let Some(frame) = frames.pop() {
        assert_frame(&frame, 7, 1234);
        publish(&producer, 30, 1234);
    }
    assert_eq!(producer.stats().slots_held, 3);
    // A frame cannot be published again with a length beyond its slot.
    let own = publish(&producer, 8, 1234);
    let outside = FrameMeta::new(own.slot_len() + 1);
    assert!(matches!(
        producer.republish(&own, &outside),
        Err(PublishError::OutOfSlot { .. })
    ));
}

fn a_slot_is_published_where_it_stays(backing: Backing) {
    let place = Place::new();
    let producer = pool(&place, backing).history(1).build().unwrap();
    let mut consumer = connect(&place);
    let lease = producer.acquire(4096).unwrap();
    let number = lease.slot();
    drop(OwnSlot::from(lease));
    let mut lease = producer.acquire(4096).unwrap();
    assert_eq!(lease.slot(), number, "it was given back unpublished");
    fill(7, &mut lease.as_mut_slice()[16..116]);
    let at = |offset, mut meta: FrameMeta| {
        meta.offset = offset;
        meta
    };
    let outside = FrameMeta::new(lease.capacity());
    let mut slot = OwnSlot::from(lease);
    for offset in [16, u64::MAX] {
        let error = slot.publish(&at(offset, outside.clone())).unwrap_err();
        assert!(matches!(error, PublishError::OutOfSlot { offset: it, .. } if it == offset));
    }
    assert_eq!((slot.sequence(), slot.pool()), (None, producer.pool()));
    let meta = at(16, seeded(7, 100));
    for sequence in 0..2 {
        assert_eq!(slot.publish(&meta).unwrap(), sequence);
        assert_eq!(slot.sequence(), Some(0));
        let frame = receive(&mut consumer);
        assert_frame(&frame, 7, 100);
        assert_eq!(
            (frame.info().sequence, frame.info().slot),
            (sequence, number)
        );
        assert_eq!(frame.meta().offset, 16);
    }
    for seed in 10..20 {
        assert_ne!(publish(&producer, seed, 4096).info().slot, number);
    }
    drop(slot);
    assert_eq!(producer.acquire(4096).unwrap().slot(), number);
}

fn a_description_lasts_as_long_as_its_frame(backing: Backing) {
    let place = Place::new();
    let producer = pool(&place, backing).build().unwrap();
    let mut consumer = connect(&place);
    for seed in 0..3 {
        publish(&producer, seed, 100);
    }
    let first = receive(&mut consumer);
    let description = std::ptr::from_ref(first.meta());
    let clone = first.clone();
    drop(first);
    let second = receive(&mut consumer);
    assert_ne!(std::ptr::from_ref(second.meta()), description);
    assert_frame(&clone, 0, 100);
    drop(clone);
    let third = receive(&mut consumer);
    assert_eq!(std::ptr::from_ref(third.meta()), description, "used again");
    assert_frame(&second, 1, 100);
    assert_frame(&third, 2, 100);
}

fn a_slot_that_cannot_be_published_is_returned(backing: Backing) {
    let place = Place::new();
    let producer = pool(&place, backing).build().unwrap();
    let mut consumer = connect(&place);
    let mut slot = producer.acquire(100).unwrap();
    let len = slot.capacity();
    fill(3, slot.as_mut_slice());
    for (offset, size) in [
        (0, len as u64 + 1),
        (1, len as u64),
        (u64::MAX, 1),
        (u64::MAX, u64::MAX),
    ] {
        let mut meta = FrameMeta::default();
        meta.offset = offset;
        meta.size = size;
        let failure = slot.publish(meta).unwrap_err();
        assert!(matches!(failure.error, PublishError::OutOfSlot { .. }));
        slot = failure.lease;
    }
    // Metadata that consumers would reject.
    let mut planes = seeded(3, 100);
    planes.layout_mut().video = Some(VideoLayout {
        n_planes: 5,
        ..VideoLayout::default()
    });
    let mut dims = seeded(3, 100);
    dims.layout_mut().ndim = 9;
    let mut reserved = seeded(3, 100);
    reserved.attachments.set("xmem:parts", "");
    for meta in [planes, dims, reserved] {
        let failure = slot.publish(meta).unwrap_err();
        assert!(matches!(failure.error, PublishError::Metadata { .. }));
        slot = failure.lease;
    }
    assert_no_frame(&mut consumer);
    slot.publish(seeded(3, 100)).unwrap();
    assert_frame(&receive(&mut consumer), 3, 100);
    // A closed pool refuses new frames. Slots that are being written can be dropped.
    let slot = producer.acquire(100).unwrap();
    producer.close();
    let failure = slot.publish(seeded(4, 100)).unwrap_err();
    assert!(matches!(failure.error, PublishError::Closed));
    drop(failure);
    assert!(matches!(producer.acquire(1), Err(AcquireError::Closed)));
    assert!(matches!(
        consumer.receive(None),
        Err(ReceiveError::ProducerLost)
    ));
}
