// SPDX-License-Identifier: MPL-2.0

//! What every kind of region has to do, as far as its capabilities promise.
#![allow(unsafe_code)] // one mprotect, to see it refused

mod support;

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use support::*;
use xmem_core::{
    AcquireError, Backing, Canceller, ConnectError, Consumer, DType, Delivery, FrameMeta, Producer,
    ProducerBuilder, PublishError, ReceiveError, StartFrom, Sticky, VideoLayout, WaitError, query,
};

macro_rules! conformance {
    ($($name:ident)*) => {
        mod memfd { $(#[test] fn $name() { super::$name(xmem_core::Backing::Memfd) })* }
        mod posix_shm { $(#[test] fn $name() { super::$name(xmem_core::Backing::PosixShm) })* }
        mod heap { $(#[test] fn $name() { super::$name(xmem_core::Backing::Heap) })* }
    };
}

conformance! {
    content_is_bit_exact_for_every_size
    metadata_comes_through_whole
    a_payload_may_lie_anywhere_in_its_slot
    pools_grow_and_frames_stay_where_they_are
    every_consumer_sees_every_frame_in_the_same_slot
    start_from_says_which_frame_comes_first
    a_slow_live_consumer_gets_the_newest
    a_consumer_holds_its_budget_and_no_more
    clones_of_a_frame_are_one_lease
    budgets_are_reserved
    the_same_slot_can_be_published_again
    frames_belong_to_their_sticky_version
    lossless_frames_keep_their_sticky_version
    the_end_of_the_stream_comes_after_the_last_frame
    frames_with_hooks_can_be_taken_after_the_end
    a_release_hook_runs_once_after_the_last_reference
    a_release_hook_runs_when_an_idle_pool_is_closed
    a_release_hook_of_an_unpublished_frame_never_runs
    frames_are_kept_until_so_many_consumers_took_them
    a_dropped_write_lease_gives_its_slot_back
    slots_run_out_at_max_slots
    slots_run_out_at_max_bytes
    a_full_pool_can_change_the_size_of_its_frames
    a_held_frame_does_not_stop_a_change_of_size
    what_cannot_be_published_comes_back
    regions_go_when_the_frames_change_their_size
    regions_go_when_a_peak_is_over
    retired_regions_do_not_use_up_max_bytes
    frames_outlive_consumer_and_producer
    a_consumer_that_left_gives_back_when_its_frames_go
    lossless_loses_nothing
    lossless_waits_end
    many_threads_may_publish
    nothing_is_left_behind
    capabilities_hold
}

fn pool(place: &Place, backing: Backing) -> ProducerBuilder {
    Producer::builder(&place.pool()).backing(backing)
}

fn connect(place: &Place) -> Consumer {
    Consumer::builder(&place.pool()).connect().unwrap()
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
        assert_eq!(frame.meta().sequence, seed);
        assert_frame(&frame, seed, size);
        assert_frame(&own, seed, size);
        assert!(own.is_local() && !frame.is_local());
        assert!(frame.slot_len() >= size);
    }
    assert_eq!(consumer.stats().missed, 0);
    assert_eq!(consumer.stats().received, sizes.len() as u64);
}

fn metadata_comes_through_whole(backing: Backing) {
    let place = Place::new();
    let producer = pool(&place, backing).build().unwrap();
    let mut consumer = connect(&place);
    let meta = FrameMeta {
        size: 853 * 480 * 3 / 2,
        device_id: 3,
        dtype: DType::F16,
        ndim: 3,
        shape: [2, 480, 853, 0, 0, 0, 0, 9],
        strides: [-7, 1706, 2, 0, 0, 0, 0, i64::MIN],
        content_type: "video/x-raw".into(),
        producer: "a test".into(),
        reserved: std::array::from_fn(|i| i as u8),
        timestamp: Some(i64::MIN),
        decode_timestamp: Some(i64::MAX),
        pts: Some(1),
        dts: None,
        duration: Some(33_366_666),
        buffer_offset: Some(4),
        buffer_offset_end: Some(5),
        flags: u32::MAX,
        video: Some(VideoLayout {
            format: "NV12".into(),
            width: 853,
            height: 480,
            n_planes: 2,
            offsets: [0, 856 * 480, 0, 0],
            strides: [856, -856, 0, 0],
        }),
        ..FrameMeta::default()
    };
    let slot = producer.acquire(853 * 480 * 2).unwrap();
    let (number, generation) = (slot.slot(), slot.generation());
    let before = xmem_core::monotonic_ns();
    let own = slot.publish(meta.clone()).unwrap();
    let frame = receive(&mut consumer);
    assert!((before..=xmem_core::monotonic_ns()).contains(&frame.meta().published_at));
    let expected = FrameMeta {
        sequence: 0,
        slot: number,
        generation,
        published_at: frame.meta().published_at,
        sticky_version: frame.meta().sticky_version,
        ..meta
    };
    assert_eq!(*frame.meta(), expected);
    assert_eq!(*own.meta(), expected);
}

fn a_payload_may_lie_anywhere_in_its_slot(backing: Backing) {
    let place = Place::new();
    let producer = pool(&place, backing).build().unwrap();
    let mut consumer = connect(&place);
    for (seed, offset, size) in [(0, 1, 4095), (1, 4096, 0), (2, 0, 0), (3, 17, 100)] {
        let mut slot = producer.acquire(4096).unwrap();
        fill(seed, &mut slot.as_mut_slice()[offset..offset + size]);
        let meta = FrameMeta {
            offset: offset as u64,
            ..seeded(seed, size)
        };
        slot.publish(meta).unwrap();
        let frame = receive(&mut consumer);
        assert_frame(&frame, seed, size);
        assert_eq!(frame.as_ptr() as usize - frame.slot_ptr() as usize, offset);
        assert_eq!(frame.is_empty(), size == 0);
    }
}

fn pools_grow_and_frames_stay_where_they_are(backing: Backing) {
    let place = Place::new();
    let producer = pool(&place, backing).history(1).build().unwrap();
    let mut consumer = Consumer::builder(&place.pool())
        .max_held(8)
        .connect()
        .unwrap();
    let mut own = Vec::new();
    let mut theirs = Vec::new();
    for seed in 0..40 {
        own.push(publish(&producer, seed, 10_000));
        if theirs.len() < 8 {
            theirs.push(receive(&mut consumer));
        }
    }
    let stats = producer.stats();
    assert_eq!(stats.slots_held, 40);
    assert!(stats.slots >= 40 && stats.regions > 1, "{stats:?}");
    let slots: HashSet<u32> = own.iter().map(|frame| frame.meta().slot).collect();
    assert_eq!(slots.len(), 40, "every frame has a slot of its own");
    for (seed, frame) in (0..).zip(&own) {
        assert_frame(frame, seed, 10_000);
    }
    for (seed, frame) in (0..).zip(&theirs) {
        assert_frame(frame, seed, 10_000);
    }
    drop(own);
    drop(theirs);
    assert_eq!(producer.stats().slots_held, 1);
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

fn start_from_says_which_frame_comes_first(backing: Backing) {
    let place = Place::new();
    let producer = pool(&place, backing).history(4).build().unwrap();
    let join = |start| {
        Consumer::builder(&place.pool())
            .start_from(start)
            .connect()
            .unwrap()
    };
    // Nothing there yet: all three wait for the first frame.
    for start in [StartFrom::Next, StartFrom::Newest, StartFrom::Oldest] {
        assert!(matches!(
            join(start).receive(Some(Duration::ZERO)),
            Err(ReceiveError::Timeout)
        ));
    }
    for seed in 0..10 {
        publish(&producer, seed, 3000);
    }
    let mut next = join(StartFrom::Next);
    let mut newest = join(StartFrom::Newest);
    let mut oldest = join(StartFrom::Oldest);
    assert!(matches!(
        next.receive(Some(Duration::ZERO)),
        Err(ReceiveError::Timeout)
    ));
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
    assert!(matches!(
        consumer.receive(Some(Duration::ZERO)),
        Err(ReceiveError::Timeout)
    ));
    let stats = producer.stats();
    assert_eq!((stats.published, stats.dropped), (1000, 0));
    assert_eq!(
        (stats.consumers[0].missed, stats.consumers[0].received),
        (997, 3)
    );
    assert_eq!(stats.slots_held, 3);
}

fn a_consumer_holds_its_budget_and_no_more(backing: Backing) {
    let place = Place::new();
    let producer = pool(&place, backing)
        .history(8)
        .max_held(3)
        .build()
        .unwrap();
    let mut consumer = Consumer::builder(&place.pool())
        .max_held(100)
        .connect()
        .unwrap();
    assert_eq!(consumer.budget(), 3);
    for seed in 0..6 {
        publish(&producer, seed, 700);
    }
    let mut held: Vec<_> = (0..3).map(|_| receive(&mut consumer)).collect();
    for _ in 0..3 {
        let error = consumer.receive(Some(HANG)).unwrap_err();
        assert!(
            matches!(error, ReceiveError::OverBudget { budget: 3 }),
            "{error}"
        );
    }
    assert_eq!(
        (consumer.held(), producer.stats().consumers[0].held),
        (3, 3)
    );
    // Past the budget a frame can be looked at, to copy it.
    let copy = consumer
        .receive_with(Some(HANG), |frame| {
            assert_frame(frame, 3, 700);
            frame.to_vec()
        })
        .unwrap();
    assert_eq!(difference(3, &copy), None);
    consumer.note_copied();
    assert_eq!(producer.stats().consumers[0].copied, 1);
    // One given back, one more taken.
    held.remove(1);
    held.push(receive(&mut consumer));
    for (frame, seed) in held.iter().zip([0, 2, 4]) {
        assert_frame(frame, seed, 700);
    }
    // Nor does a clone that is kept beyond the function lead further than one past the budget.
    let kept = consumer
        .receive_with(Some(HANG), |frame| frame.clone())
        .unwrap();
    assert_frame(&kept, 5, 700);
    publish(&producer, 6, 700);
    assert!(matches!(
        consumer.receive_with(Some(HANG), |_| ()),
        Err(ReceiveError::OverBudget { .. })
    ));
    assert_eq!(producer.stats().cut_off, 0);
    drop((held, kept));
    assert_frame(&receive(&mut consumer), 6, 700);
    assert_eq!(producer.stats().consumers[0].held, 0);
}

fn clones_of_a_frame_are_one_lease(backing: Backing) {
    let place = Place::new();
    let producer = pool(&place, backing).history(1).build().unwrap();
    let mut consumer = connect(&place);
    publish(&producer, 0, 900);
    let frame = receive(&mut consumer);
    let clones: Vec<_> = (0..100).map(|_| frame.clone()).collect();
    assert_eq!(consumer.held(), 1);
    publish(&producer, 1, 900);
    drop(frame);
    // The last one goes on another thread.
    let last = std::thread::spawn(move || {
        let mut clones = clones;
        let last = clones.pop().unwrap();
        drop(clones);
        last
    })
    .join()
    .unwrap();
    assert_eq!(producer.stats().slots_held, 2);
    assert_frame(&last, 0, 900);
    std::thread::spawn(move || drop(last)).join().unwrap();
    assert_eq!((consumer.held(), producer.stats().slots_held), (0, 1));
}

fn budgets_are_reserved(backing: Backing) {
    let place = Place::new();
    let producer = pool(&place, backing)
        .history(2)
        .max_slots(12)
        .max_held(8)
        .build()
        .unwrap();
    producer.set_upstream_need(1).unwrap();
    let ask = |held| Consumer::builder(&place.pool()).max_held(held).connect();
    // 12 slots: 1 for upstream, 2 of history, 2 in somebody's hands; 7 are left, one of them to copy from.
    let first = ask(4).unwrap();
    assert_eq!(first.budget(), 4);
    let second = ask(8).unwrap();
    assert_eq!(
        second.budget(),
        1,
        "it gets less than it asked for, but something"
    );
    let error = ask(1).unwrap_err();
    assert!(
        matches!(&error, ConnectError::Refused { reason, .. } if reason.contains("max-slots")),
        "{error}"
    );
    drop(first);
    eventually("the first one's budget is free again", || ask(4).is_ok());
    assert!(producer.set_upstream_need(9).is_err());
    // Nobody can be starved: with both budgets used up there is still room for every frame.
    let mut second = second;
    publish(&producer, 0, 100);
    let held = receive(&mut second);
    for seed in 1..100 {
        publish(&producer, seed, 100);
    }
    assert_frame(&held, 0, 100);
}

fn the_same_slot_can_be_published_again(backing: Backing) {
    let place = Place::new();
    let producer = pool(&place, backing).history(3).build().unwrap();
    let other = Place::new();
    let stranger = pool(&other, backing).build().unwrap();
    let mut consumer = Consumer::builder(&place.pool())
        .max_held(1)
        .connect()
        .unwrap();
    let own = publish(&producer, 7, 1234);
    for n in 1..=2 {
        let meta = FrameMeta {
            duration: Some(n),
            ..seeded(7, 1234)
        };
        assert_eq!(producer.republish(&own, meta).unwrap(), n);
    }
    assert!(matches!(
        stranger.republish(&own, seeded(7, 1)),
        Err(PublishError::OtherPool)
    ));
    let frames: Vec<_> = (0..3).map(|_| receive(&mut consumer)).collect();
    assert!(matches!(
        producer.republish(&frames[0], seeded(7, 1)),
        Err(PublishError::OtherPool)
    ));
    for (n, frame) in (0..).zip(&frames) {
        assert_frame(frame, 7, 1234);
        assert_eq!(frame.meta().sequence, n);
        assert_eq!(frame.meta().duration, (n > 0).then_some(n));
        assert_eq!(frame.as_ptr(), frames[0].as_ptr());
    }
    assert_eq!(consumer.held(), 1, "one slot, so one lease");
    drop(own);
    // Out of the history, it lives on by the consumer's lease alone, until the last handle to it goes.
    for seed in 10..20 {
        publish(&producer, seed, 1234);
    }
    let mut frames = frames;
    while let Some(frame) = frames.pop() {
        assert_frame(&frame, 7, 1234);
        publish(&producer, 30, 1234);
    }
    assert_eq!(producer.stats().slots_held, 3);
    // Again, but bound to no slot any more: out of the slot is refused.
    let own = publish(&producer, 8, 1234);
    let outside = FrameMeta::new(own.slot_len() + 1);
    assert!(matches!(
        producer.republish(&own, outside),
        Err(PublishError::OutOfSlot { .. })
    ));
}

fn sticky(n: u64) -> Sticky {
    let mut sticky = Sticky::new();
    sticky.set("caps", format!("video/x-raw,n={n}"));
    sticky
}

fn frames_belong_to_their_sticky_version(backing: Backing) {
    let place = Place::new();
    let producer = pool(&place, backing).history(8).build().unwrap();
    let version = producer.set_sticky(&sticky(0)).unwrap();
    let mut consumer = connect(&place);
    eventually("the state comes before the first frame", || {
        consumer
            .sticky()
            .is_some_and(|state| state.text("caps") == Some("video/x-raw,n=0"))
    });
    publish(&producer, 0, 10);
    assert!(producer.set_sticky(&sticky(1)).unwrap() > version);
    publish(&producer, 1, 10);
    publish(&producer, 2, 10);
    producer.set_sticky(&sticky(2)).unwrap();
    producer.set_sticky(&sticky(3)).unwrap();
    publish(&producer, 3, 10);
    let mut late = Consumer::builder(&place.pool())
        .start_from(StartFrom::Oldest)
        .connect()
        .unwrap();
    for consumer in [&mut consumer, &mut late] {
        for (seed, n) in [(0, 0), (1, 1), (2, 1), (3, 3)] {
            let frame = receive(consumer);
            assert_frame(&frame, seed, 10);
            assert_eq!(**frame.sticky(), sticky(n), "frame {seed}");
        }
    }
    assert_eq!(*producer.sticky(), sticky(3));
    assert_eq!(
        producer.stats().sticky,
        [("caps".to_owned(), "video/x-raw,n=3".to_owned())]
    );
    // A large one, too.
    let mut large = Sticky::new();
    large.set("tags", vec![7; 3 << 20]);
    producer.set_sticky(&large).unwrap();
    publish(&producer, 4, 10);
    assert_eq!(**receive(&mut consumer).sticky(), large);
    large.set("tags", vec![7; xmem_core::MAX_NAMED_SIZE]);
    assert!(producer.set_sticky(&large).is_err());
}

/// However often the state changes, a frame that may not be lost has its own.
fn lossless_frames_keep_their_sticky_version(backing: Backing) {
    let place = Place::new();
    let producer = pool(&place, backing)
        .delivery(Delivery::Lossless)
        .build()
        .unwrap();
    let mut consumer = connect(&place);
    for n in 0..150 {
        producer.set_sticky(&sticky(n)).unwrap();
        publish(&producer, n, 10);
    }
    for n in 0..150 {
        let frame = receive(&mut consumer);
        assert_frame(&frame, n, 10);
        assert_eq!(**frame.sticky(), sticky(n));
    }
}

fn frames_with_hooks_can_be_taken_after_the_end(backing: Backing) {
    let place = Place::new();
    let producer = pool(&place, backing)
        .delivery(Delivery::Lossless)
        .build()
        .unwrap();
    let mut consumer = connect(&place);
    publish(&producer, 0, 64);
    assert_frame(&receive(&mut consumer), 0, 64);
    let ran = Arc::new(AtomicBool::new(false));
    for seed in 1..4 {
        let mut slot = producer.acquire(64).unwrap();
        fill(seed, &mut slot.as_mut_slice()[..64]);
        let ran = ran.clone();
        slot.set_release_hook(move || ran.store(true, Ordering::Relaxed));
        slot.publish(seeded(seed, 64)).unwrap();
    }
    drop(producer);
    assert!(
        ran.load(Ordering::Relaxed),
        "hooks run when the pool is closed"
    );
    for seed in 1..4 {
        assert_frame(&receive(&mut consumer), seed, 64);
    }
    assert!(matches!(
        consumer.receive(None),
        Err(ReceiveError::ProducerLost)
    ));
}

fn the_end_of_the_stream_comes_after_the_last_frame(backing: Backing) {
    let place = Place::new();
    let producer = pool(&place, backing).history(4).build().unwrap();
    let mut consumer = connect(&place);
    publish(&producer, 0, 64);
    publish(&producer, 1, 64);
    producer.set_eos(true);
    assert!(producer.stats().eos);
    assert_frame(&receive(&mut consumer), 0, 64);
    assert_frame(&receive(&mut consumer), 1, 64);
    for _ in 0..3 {
        assert!(matches!(consumer.receive(None), Err(ReceiveError::Eos)));
    }
    // A late joiner hears of it, too.
    assert!(matches!(
        connect(&place).receive(None),
        Err(ReceiveError::Eos)
    ));
    // A new stream.
    producer.set_eos(false);
    assert!(matches!(
        consumer.receive(Some(Duration::ZERO)),
        Err(ReceiveError::Timeout)
    ));
    // Someone asleep is woken by it.
    let sleeper = std::thread::spawn(move || {
        let error = consumer.receive(None).unwrap_err();
        (consumer, error)
    });
    std::thread::sleep(Duration::from_millis(20));
    producer.set_eos(true);
    let (mut consumer, error) = sleeper.join().unwrap();
    assert!(matches!(error, ReceiveError::Eos));
    // Who was told of the end is told that no other stream comes; who was not is told of the end first.
    let mut late = connect(&place);
    drop(producer);
    eventually("the producer is gone", || {
        matches!(consumer.receive(None), Err(ReceiveError::ProducerLost))
    });
    assert!(matches!(late.receive(None), Err(ReceiveError::Eos)));
    eventually("it is told the same", || {
        matches!(late.receive(None), Err(ReceiveError::ProducerLost))
    });
}

fn a_release_hook_runs_once_after_the_last_reference(backing: Backing) {
    // Who lets go in which order: the producer's own reference, the history, the two consumers.
    for order in [
        [0, 1, 2, 3],
        [3, 2, 1, 0],
        [1, 2, 3, 0],
        [2, 0, 3, 1],
        [1, 0, 2, 3],
    ] {
        let place = Place::new();
        let producer = pool(&place, backing).history(1).build().unwrap();
        let mut consumers = [connect(&place), connect(&place)];
        let runs = Arc::new(AtomicU32::new(0));
        let mut slot = producer.acquire(50).unwrap();
        fill(1, &mut slot.as_mut_slice()[..50]);
        slot.set_release_hook({
            let runs = runs.clone();
            move || {
                runs.fetch_add(1, Ordering::SeqCst);
            }
        });
        let mut own = Some(slot.publish(seeded(1, 50)).unwrap());
        let mut held = consumers.each_mut().map(|consumer| Some(receive(consumer)));
        for (step, who) in (1..).zip(order) {
            assert_eq!(runs.load(Ordering::SeqCst), 0, "{order:?}");
            match who {
                0 => own = None,
                1 => drop(publish(&producer, 2, 50)),
                n => held[n - 2] = None,
            }
            if step < 4 {
                std::thread::sleep(Duration::from_millis(5));
            }
        }
        // Also on a pool where nothing else happens.
        eventually("the hook ran", || runs.load(Ordering::SeqCst) > 0);
        drop((own, held));
        for seed in 3..20 {
            publish(&producer, seed, 50);
        }
        producer.collect();
        drop((producer, consumers));
        assert_eq!(runs.load(Ordering::SeqCst), 1, "{order:?}");
    }
}

fn a_release_hook_runs_when_an_idle_pool_is_closed(backing: Backing) {
    let place = Place::new();
    let producer = pool(&place, backing).build().unwrap();
    let mut consumer = connect(&place);
    let runs = Arc::new(AtomicU32::new(0));
    let mut slot = producer.acquire(50).unwrap();
    fill(1, &mut slot.as_mut_slice()[..50]);
    let counter = runs.clone();
    slot.set_release_hook(move || {
        counter.fetch_add(1, Ordering::SeqCst);
    });
    slot.publish(seeded(1, 50)).unwrap();
    let frame = receive(&mut consumer);
    drop(producer);
    assert_frame(&frame, 1, 50);
    drop((frame, consumer));
    assert_eq!(runs.load(Ordering::SeqCst), 1);
}

fn a_release_hook_of_an_unpublished_frame_never_runs(backing: Backing) {
    let place = Place::new();
    let producer = pool(&place, backing).build().unwrap();
    let token = Arc::new(());
    let mut slot = producer.acquire(50).unwrap();
    let kept = token.clone();
    slot.set_release_hook(move || panic!("{kept:?}"));
    drop(slot);
    assert_eq!(Arc::strong_count(&token), 1, "the hook is dropped");
    publish(&producer, 0, 50);
}

fn frames_are_kept_until_so_many_consumers_took_them(backing: Backing) {
    let place = Place::new();
    let producer = pool(&place, backing).history(1).build().unwrap();
    let mut first = connect(&place);
    let mut second = connect(&place);
    let runs = Arc::new(AtomicU32::new(0));
    // Keeps the content of a seed until so many took it. Returns the slot.
    let keep = |seed, consumers| {
        let mut slot = producer.acquire(80).unwrap();
        fill(seed, &mut slot.as_mut_slice()[..80]);
        slot.keep_until(consumers);
        let counter = runs.clone();
        slot.set_release_hook(move || {
            counter.fetch_add(1, Ordering::SeqCst);
        });
        slot.publish(seeded(seed, 80)).unwrap().meta().slot
    };
    let publish_others = |not_into| {
        for seed in 1000..1050 {
            assert_ne!(publish(&producer, seed, 80).meta().slot, not_into);
        }
    };

    // Two are to take it, and one after the other lets go.
    let kept = keep(5, 2);
    let one = receive(&mut first);
    publish_others(kept);
    drop(one);
    publish_others(kept);
    assert_eq!(runs.load(Ordering::SeqCst), 0, "one of two took it");
    // The second one is too late for the history, but not for the next.
    let kept = keep(6, 2);
    let frames = [&mut first, &mut second].map(|consumer| {
        let frame = receive(consumer);
        assert_frame(&frame, 6, 80);
        frame
    });
    publish_others(kept);
    let [one, two] = frames;
    drop(two);
    publish_others(kept);
    assert_eq!(runs.load(Ordering::SeqCst), 0);
    drop(one);
    eventually("both let go", || runs.load(Ordering::SeqCst) == 1);

    // Who took it and then leaves counts as having let go of it.
    let kept = keep(7, 2);
    let frames = [&mut first, &mut second].map(receive);
    publish_others(kept);
    drop((frames, second));
    eventually("both let go", || runs.load(Ordering::SeqCst) == 2);
    let kept = keep(8, 2);
    drop(receive(&mut first));
    drop(first);
    eventually("it left", || producer.stats().consumers.is_empty());
    publish_others(kept);
    assert_eq!(runs.load(Ordering::SeqCst), 2, "one of two took it");
    let mut third = connect(&place);
    publish(&producer, 9, 80);
    assert_frame(&receive(&mut third), 9, 80);
    publish_others(kept);
    assert_eq!(runs.load(Ordering::SeqCst), 2);
    drop(producer);
    assert_eq!(
        runs.load(Ordering::SeqCst),
        4,
        "at the latest with the pool"
    );
}

fn a_dropped_write_lease_gives_its_slot_back(backing: Backing) {
    let place = Place::new();
    let producer = pool(&place, backing)
        .history(1)
        .max_slots(3)
        .build()
        .unwrap();
    let mut consumer = connect_small(&place);
    for round in 0..20 {
        let leases: Vec<_> = std::iter::from_fn(|| producer.acquire(100).ok()).collect();
        assert_eq!(leases.len(), 3, "round {round}");
        assert_eq!(producer.stats().slots_held, 3);
    }
    assert_eq!(producer.stats().slots_held, 0);
    assert_eq!(producer.stats().published, 0);
    if let Some(consumer) = &mut consumer {
        assert!(matches!(
            consumer.receive(Some(Duration::ZERO)),
            Err(ReceiveError::Timeout)
        ));
    }
    // What was in an abandoned slot is not a frame any more.
    publish(&producer, 0, 100);
    publish(&producer, 1, 100);
    assert_eq!(producer.stats().slots_held, 1);
}

/// A pool as small as this one may have no budget for anybody.
fn connect_small(place: &Place) -> Option<Consumer> {
    Consumer::builder(&place.pool()).max_held(1).connect().ok()
}

fn slots_run_out_at_max_slots(backing: Backing) {
    let place = Place::new();
    let producer = pool(&place, backing)
        .history(1)
        .max_slots(5)
        .build()
        .unwrap();
    assert!(matches!(producer.acquire(0), Err(AcquireError::ZeroSize)));
    let mut held: Vec<_> = (0..5).map(|seed| publish(&producer, seed, 4000)).collect();
    let error = producer.acquire(4000).unwrap_err();
    assert!(
        matches!(
            error,
            AcquireError::Exhausted {
                slots: 5,
                max_slots: 5,
                ..
            }
        ),
        "{error}"
    );
    // Another size is no way around it.
    assert!(matches!(
        producer.acquire(1 << 20),
        Err(AcquireError::Exhausted { .. })
    ));
    for (seed, frame) in (0..).zip(&held) {
        assert_frame(frame, seed, 4000);
    }
    // What goes makes room, also for a frame that is larger.
    held.remove(2);
    let large = publish(&producer, 9, 1 << 20);
    assert_frame(&large, 9, 1 << 20);
    assert!(producer.acquire(10).is_err());
    for (seed, frame) in [0, 1, 3, 4].into_iter().zip(&held) {
        assert_frame(frame, seed, 4000);
    }
    drop((held, large));
    publish(&producer, 10, 4000);
}

fn slots_run_out_at_max_bytes(backing: Backing) {
    let place = Place::new();
    let producer = pool(&place, backing)
        .history(1)
        .max_bytes(4 << 20)
        .build()
        .unwrap();
    let error = producer.acquire((4 << 20) + 1).unwrap_err();
    assert!(matches!(error, AcquireError::TooLarge { .. }), "{error}");
    let held: Vec<_> = (0..4)
        .map(|seed| publish(&producer, seed, 1 << 20))
        .collect();
    assert!(matches!(
        producer.acquire(1 << 20),
        Err(AcquireError::Exhausted { .. })
    ));
    assert_eq!(producer.stats().bytes, 4 << 20);
    drop(held);
    // Small frames would waste such slots, so the room is made anew.
    for seed in 10..20 {
        publish(&producer, seed, 1000);
        publish(&producer, seed, 2 << 20);
        assert!(producer.stats().bytes <= 4 << 20);
    }
    // All of it in one frame: as soon as the history lets go.
    drop(producer);
    let producer = pool(&place, backing).max_bytes(4 << 20).build().unwrap();
    assert_frame(&publish(&producer, 1, 4 << 20), 1, 4 << 20);
}

/// The frames of the history must not keep the ones of the new size out.
fn a_full_pool_can_change_the_size_of_its_frames(backing: Backing) {
    for (max_slots, max_bytes) in [(4, 0), (256, 6 << 20)] {
        let place = Place::new();
        let producer = pool(&place, backing)
            .history(2)
            .max_slots(max_slots)
            .max_bytes(max_bytes)
            .build()
            .unwrap();
        for (seed, size) in [(0, 1 << 20), (10, 1_400_000), (20, 300), (30, 1_300_000)] {
            for seed in seed..seed + 5 {
                assert_frame(&publish(&producer, seed, size), seed, size);
            }
        }
    }
}

/// Nor must one who stopped and holds a frame of the old size.
fn a_held_frame_does_not_stop_a_change_of_size(backing: Backing) {
    let place = Place::new();
    let producer = pool(&place, backing)
        .history(2)
        .min_slots(7)
        .max_slots(7)
        .build()
        .unwrap();
    let mut consumer = Consumer::builder(&place.pool())
        .max_held(2)
        .connect()
        .unwrap();
    let hold = |consumer: &mut Consumer, seed, size| {
        publish(&producer, seed, size);
        let frame = receive(consumer);
        assert_frame(&frame, seed, size);
        frame
    };
    let held = hold(&mut consumer, 0, 300_000);
    for (seed, size) in [(1, 2 << 20), (2, 1 << 10), (3, 3 << 20), (4, 4 << 10)] {
        for _ in 0..20 {
            drop(hold(&mut consumer, seed, size));
        }
    }
    assert_frame(&held, 0, 300_000);
}

fn what_cannot_be_published_comes_back(backing: Backing) {
    let place = Place::new();
    let producer = pool(&place, backing).build().unwrap();
    let mut consumer = connect(&place);
    let mut slot = producer.acquire(100).unwrap();
    let len = slot.len();
    fill(3, &mut slot.as_mut_slice()[..100]);
    for (offset, size) in [
        (0, len as u64 + 1),
        (1, len as u64),
        (u64::MAX, 1),
        (u64::MAX, u64::MAX),
    ] {
        let meta = FrameMeta {
            offset,
            size,
            ..FrameMeta::default()
        };
        let failure = slot.publish(meta).unwrap_err();
        assert!(matches!(failure.error, PublishError::OutOfSlot { .. }));
        slot = failure.lease;
    }
    assert!(matches!(
        consumer.receive(Some(Duration::ZERO)),
        Err(ReceiveError::Timeout)
    ));
    slot.publish(seeded(3, 100)).unwrap();
    assert_frame(&receive(&mut consumer), 3, 100);
    // A closed pool takes nothing more, and what was begun is given up without harm.
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

fn regions_go_when_the_frames_change_their_size(backing: Backing) {
    let place = Place::new();
    let producer = pool(&place, backing).build().unwrap();
    let mut consumer = connect(&place);
    publish(&producer, 0, 2 << 20);
    let old = receive(&mut consumer);
    let file = map_of(old.as_ptr()).unwrap().file;
    let shared = backing != Backing::Heap;
    if shared {
        assert_eq!(mapped(&file), 2, "the producer's view and the consumer's");
    }
    for seed in 1..100 {
        publish(&producer, seed, 300_000);
        assert_frame(&receive(&mut consumer), seed, 300_000);
    }
    assert_eq!(producer.collect(), 0, "a frame is held in the old one");
    let with_both = producer.stats().bytes;
    assert_frame(&old, 0, 2 << 20);
    let address = old.as_ptr();
    drop(old);
    assert_eq!(producer.collect(), 1);
    // The consumer lets go when it looks for the next frame, and says so.
    publish(&producer, 100, 300_000);
    assert_frame(&receive(&mut consumer), 100, 300_000);
    producer.collect();
    let stats = producer.stats();
    assert!(stats.bytes < with_both, "{} < {with_both}", stats.bytes);
    assert_eq!(stats.regions, 1, "{stats:?}");
    if shared {
        assert_eq!(mapped(&file), 0, "at {address:?}");
    }
    // And without being asked, when the size changes for good.
    for seed in 0..200 {
        publish(&producer, seed, 3 << 20);
        assert_frame(&receive(&mut consumer), seed, 3 << 20);
    }
    assert_eq!(producer.stats().regions, 1, "{:?}", producer.stats());
}

fn regions_go_when_a_peak_is_over(backing: Backing) {
    const SIZE: usize = 300_000;
    let place = Place::new();
    let producer = pool(&place, backing).build().unwrap();
    let mut consumer = connect(&place);
    let before = producer
        .acquire(SIZE)
        .map(|_| producer.stats().bytes)
        .unwrap();
    let mut peak: Vec<_> = (0..13).map(|_| producer.acquire(SIZE).unwrap()).collect();
    assert!(producer.stats().regions > 3, "{:?}", producer.stats());
    // Used last are slots of several regions.
    let last: Vec<_> = [12, 8, 4].map(|at| peak.remove(at)).into();
    drop(peak);
    drop(last);
    for seed in 0..1500 {
        publish(&producer, seed, SIZE);
        assert_frame(&receive(&mut consumer), seed, SIZE);
    }
    let stats = producer.stats();
    assert_eq!((stats.regions, stats.bytes), (1, before), "{stats:?}");
}

/// What a consumer never asked for, it does not keep; what it asked for goes also while it sleeps.
fn retired_regions_do_not_use_up_max_bytes(backing: Backing) {
    let place = Place::new();
    let producer = pool(&place, backing)
        .history(1)
        .max_bytes(2_200_000)
        .build()
        .unwrap();
    let mut idle = connect(&place);
    let mut active = connect(&place);
    std::thread::scope(|scope| {
        let sleeper = scope.spawn(move || {
            for seed in 0..40 {
                assert_frame(&receive(&mut active), seed, size_of(seed));
            }
            // Its figures are looked at once more.
            active
        });
        for seed in 0..40 {
            eventually("there is room", || {
                let Ok(mut slot) = producer.acquire(size_of(seed)) else {
                    return false;
                };
                fill(seed, &mut slot.as_mut_slice()[..size_of(seed)]);
                slot.publish(seeded(seed, size_of(seed))).is_ok()
            });
            eventually("it is taken", || {
                producer.stats().consumers[1].received == seed + 1
            });
            assert!(producer.stats().bytes <= 2_200_000);
        }
        drop(sleeper.join().unwrap());
    });
    assert_frame(&receive(&mut idle), 39, size_of(39));

    fn size_of(seed: u64) -> usize {
        if seed.is_multiple_of(2) {
            300_000
        } else {
            2_000_000
        }
    }
}

fn frames_outlive_consumer_and_producer(backing: Backing) {
    let place = Place::new();
    let producer = pool(&place, backing).build().unwrap();
    let mut consumer = connect(&place);
    let own = publish(&producer, 0, 100_000);
    let frame = receive(&mut consumer);
    let handle = consumer.handle();
    drop(consumer);
    for seed in 1..50 {
        publish(&producer, seed, 100_000);
    }
    assert_frame(&frame, 0, 100_000);
    assert_eq!(handle.stats().unwrap().held, 1);
    drop(producer);
    assert_frame(&frame, 0, 100_000);
    assert_frame(&own, 0, 100_000);
    assert_eq!(frame.pool(), place.pool());
    // A new producer of the same name has its own memory.
    let producer = pool(&place, backing).build().unwrap();
    for seed in 50..100 {
        publish(&producer, seed, 100_000);
    }
    assert_frame(&frame, 0, 100_000);
    assert_frame(&own, 0, 100_000);
    drop((own, frame));
    assert_eq!(handle.stats(), None);
}

fn a_consumer_that_left_gives_back_when_its_frames_go(backing: Backing) {
    let place = Place::new();
    let producer = pool(&place, backing).history(1).build().unwrap();
    let mut consumer = connect(&place);
    publish(&producer, 0, 100);
    publish(&producer, 1, 100);
    let frame = receive(&mut consumer);
    assert_frame(&frame, 1, 100);
    drop(consumer);
    eventually("it left", || producer.num_consumers() == 0);
    publish(&producer, 2, 100);
    let stats = producer.stats();
    assert_eq!(stats.slots_held, 2);
    assert!(stats.consumers[0].leaving && stats.consumers[0].held == 1);
    drop(frame);
    eventually("its connection closes with its last frame", || {
        producer.stats().consumers.is_empty()
    });
    assert_eq!(producer.stats().slots_held, 1);
}

fn lossless_loses_nothing(backing: Backing) {
    const FRAMES: u64 = 400;
    let place = Place::new();
    let producer = pool(&place, backing)
        .delivery(Delivery::Lossless)
        .history(1)
        .max_slots(8)
        .build()
        .unwrap();
    let mut consumers: Vec<Consumer> = (0..2)
        .map(|_| {
            Consumer::builder(&place.pool())
                .max_held(1)
                .connect()
                .unwrap()
        })
        .collect();
    assert_eq!(consumers[0].delivery(), Delivery::Lossless);
    std::thread::scope(|scope| {
        for (n, consumer) in consumers.iter_mut().enumerate() {
            scope.spawn(move || {
                for seed in 0..FRAMES {
                    let frame = receive(consumer);
                    assert_eq!(frame.meta().sequence, seed);
                    assert_frame(&frame, seed, 3000);
                    if seed % 50 == n as u64 {
                        std::thread::sleep(Duration::from_millis(2));
                    }
                }
            });
        }
        let cancel = Canceller::new();
        for seed in 0..FRAMES {
            producer.wait_for_room(&cancel).unwrap();
            let mut slot = producer.acquire_wait(3000, Some(HANG), &cancel).unwrap();
            fill(seed, &mut slot.as_mut_slice()[..3000]);
            slot.publish(seeded(seed, 3000)).unwrap();
        }
        producer.drain(Some(HANG), &cancel).unwrap();
    });
    let stats = producer.stats();
    assert!(
        stats
            .consumers
            .iter()
            .all(|consumer| consumer.received == FRAMES && consumer.missed == 0)
    );
    assert!(stats.slots <= 8);
}

fn lossless_waits_end(backing: Backing) {
    let place = Place::new();
    let producer = pool(&place, backing)
        .delivery(Delivery::Lossless)
        .history(1)
        .max_slots(5)
        .build()
        .unwrap();
    let cancel = Canceller::new();
    assert_eq!(
        producer.wait_for_consumer(Some(Duration::from_millis(1)), &cancel),
        Err(WaitError::Timeout)
    );
    // With nobody there, nothing is waited for.
    for seed in 0..20 {
        publish(&producer, seed, 10);
    }
    producer.drain(Some(Duration::ZERO), &cancel).unwrap();
    let consumer = Consumer::builder(&place.pool())
        .max_held(1)
        .connect()
        .unwrap();
    producer.wait_for_consumer(Some(HANG), &cancel).unwrap();
    while let Ok(mut slot) = producer.acquire(10) {
        fill(1, &mut slot.as_mut_slice()[..10]);
        slot.publish(seeded(1, 10)).unwrap();
    }
    let some = Some(Duration::from_millis(5));
    assert!(matches!(
        producer.acquire_wait(10, some, &cancel),
        Err(AcquireError::Timeout)
    ));
    assert_eq!(producer.drain(some, &cancel), Err(WaitError::Timeout));
    // Called off from another thread.
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| producer.acquire_wait(10, None, &cancel).map(drop));
        let draining = scope.spawn(|| producer.drain(None, &cancel));
        std::thread::sleep(Duration::from_millis(20));
        cancel.cancel();
        assert!(matches!(
            waiting.join().unwrap(),
            Err(AcquireError::Cancelled)
        ));
        assert_eq!(draining.join().unwrap(), Err(WaitError::Cancelled));
    });
    cancel.reset();
    // Ended because the one that was waited for leaves.
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| producer.acquire_wait(10, None, &cancel).map(drop));
        let draining = scope.spawn(|| producer.drain(None, &cancel));
        std::thread::sleep(Duration::from_millis(20));
        drop(consumer);
        waiting.join().unwrap().unwrap();
        draining.join().unwrap().unwrap();
    });
    // Ended by closing.
    let consumer = connect_small(&place).unwrap();
    while let Ok(slot) = producer.acquire(10) {
        slot.publish(seeded(1, 10)).unwrap();
    }
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| producer.acquire_wait(10, None, &cancel).map(drop));
        std::thread::sleep(Duration::from_millis(20));
        producer.close();
        assert!(matches!(waiting.join().unwrap(), Err(AcquireError::Closed)));
    });
    drop(consumer);
}

fn many_threads_may_publish(backing: Backing) {
    let place = Place::new();
    let producer = pool(&place, backing)
        .delivery(Delivery::Lossless)
        .build()
        .unwrap();
    let mut consumer = connect(&place);
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            let producer = producer.clone();
            scope.spawn(move || {
                let cancel = Canceller::new();
                for n in 0..100u64 {
                    let (seed, size) = (thread * 1000 + n, 500 + n as usize * 37);
                    producer.wait_for_room(&cancel).unwrap();
                    let mut slot = producer.acquire_wait(size, Some(HANG), &cancel).unwrap();
                    fill(seed, &mut slot.as_mut_slice()[..size]);
                    let own = slot.publish(seeded(seed, size)).unwrap();
                    assert_frame(&own, seed, size);
                }
            });
        }
        let mut seen = HashSet::new();
        for sequence in 0..400 {
            let frame = receive(&mut consumer);
            assert_eq!(frame.meta().sequence, sequence);
            assert_whole(&frame);
            assert!(seen.insert(frame.meta().pts));
        }
    });
}

fn nothing_is_left_behind(backing: Backing) {
    let place = Place::new();
    for round in 0..10 {
        let producer = pool(&place, backing).build().unwrap();
        let mut consumer = connect(&place);
        publish(&producer, round, 100_000);
        let frame = receive(&mut consumer);
        assert_frame(&frame, round, 100_000);
        assert_eq!(
            place.segments().is_empty(),
            backing != Backing::PosixShm,
            "segments are where they should be"
        );
        let file = map_of(frame.as_ptr()).unwrap().file;
        assert_eq!(query(&place.pool()).unwrap().published, 1);
        drop((producer, consumer, frame));
        if backing != Backing::Heap {
            assert_eq!(mapped(&file), 0);
        }
        place.assert_clean();
    }
}

fn capabilities_hold(backing: Backing) {
    let promises = backing.capabilities();
    let place = Place::new();
    let producer = pool(&place, backing).build().unwrap();
    let mut consumer = connect(&place);
    publish(&producer, 0, 4096);
    let frame = receive(&mut consumer);
    let map = map_of(frame.as_ptr()).unwrap();
    if backing != Backing::Heap {
        assert_eq!(map.perms, "r--s", "a consumer's own mistakes hit nobody");
    }
    // As root, the descriptor that was mapped can be had again. `hostile` has it from the socket.
    let path = format!("/proc/self/map_files/{:x}-{:x}", map.start, map.end);
    let file = std::fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open(path)
        .ok();
    if promises.consumers_cannot_write {
        // SAFETY: the range is the mapping, and the call is refused.
        let refused = unsafe {
            rustix::mm::mprotect(
                map.start as *mut _,
                map.end - map.start,
                rustix::mm::MprotectFlags::READ | rustix::mm::MprotectFlags::WRITE,
            )
        };
        assert!(refused.is_err(), "a mapping can be made writable");
        if let Some(file) = &file {
            use std::os::unix::fs::FileExt;
            assert!(file.write_at(b"x", 0).is_err(), "its memory can be written");
        }
    }
    if promises.size_is_sealed
        && let Some(file) = &file
    {
        assert!(file.set_len(0).is_err(), "its memory can be truncated");
        assert!(file.set_len(1 << 30).is_err(), "its memory can be extended");
    }
    assert_frame(&frame, 0, 4096);
    // What crosses processes is tried with processes, in `processes`.
    assert_eq!(promises.crosses_processes, backing != Backing::Heap);
}
