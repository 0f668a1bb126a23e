// SPDX-License-Identifier: MPL-2.0

//! Pools grow up to their limits.

use std::collections::HashSet;

use xmem_core::{AcquireError, Backing, Consumer, Delivery, SlotSpec, StartFrom};

use super::*;

crate::conformance! {
    pools_grow_and_frames_stay_where_they_are
    a_dropped_write_lease_gives_its_slot_back
    slots_run_out_at_max_slots
    slots_run_out_at_max_bytes
    a_stream_goes_on_with_less_room_than_its_history_needs
    the_history_shrinks_only_for_a_free_slot
    a_slot_asked_for_ahead_costs_no_frame
    a_full_pool_can_change_the_size_of_its_frames
    a_held_frame_does_not_stop_a_change_of_size
}

fn pools_grow_and_frames_stay_where_they_are(backing: Backing) {
    let place = Place::new();
    let producer = pool(&place, backing).history(1).build().unwrap();
    let mut consumer = connect_with(&place, 8);
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
    let slots: HashSet<u32> = own.iter().map(|frame| frame.info().slot).collect();
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

fn a_dropped_write_lease_gives_its_slot_back(backing: Backing) {
    let place = Place::new();
    let producer = place.producer(|it| it.backing(backing).history(1).max_slots(3));
    // A pool as small as this may have no budget for a consumer.
    let mut consumer = Consumer::builder(place.pool()).max_held(1).connect().ok();
    for round in 0..20 {
        let leases: Vec<_> = std::iter::from_fn(|| producer.acquire(100).ok()).collect();
        assert_eq!(leases.len(), 3, "round {round}");
        assert_eq!(producer.stats().slots_held, 3);
    }
    assert_eq!(producer.stats().slots_held, 0);
    assert_eq!(producer.stats().published, 0);
    if let Some(consumer) = &mut consumer {
        assert_no_frame(consumer);
    }
    // The content of an abandoned slot is not a frame any more.
    publish(&producer, 0, 100);
    publish(&producer, 1, 100);
    assert_eq!(producer.stats().slots_held, 1);
}

fn slots_run_out_at_max_slots(backing: Backing) {
    let place = Place::new();
    let producer = place.producer(|it| it.backing(backing).history(1).max_slots(5));
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
    // A request for another size is also refused.
    assert!(matches!(
        producer.acquire(1 << 20),
        Err(AcquireError::Exhausted { .. })
    ));
    for (seed, frame) in (0..).zip(&held) {
        assert_frame(frame, seed, 4000);
    }
    // A released region frees memory, also for a larger frame.
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
    let producer = place.producer(|it| it.backing(backing).history(1).max_bytes(4 << 20));
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
    // Small frames would waste large slots, so regions are replaced.
    for seed in 10..20 {
        publish(&producer, seed, 1000);
        publish(&producer, seed, 2 << 20);
        assert!(producer.stats().bytes <= 4 << 20);
    }
    // One frame can use all memory as soon as the history releases its frames.
    drop(producer);
    let producer = pool(&place, backing).max_bytes(4 << 20).build().unwrap();
    assert_frame(&publish(&producer, 1, 4 << 20), 1, 4 << 20);
}

/// Frames that are kept for late joiners do not block the next frame.
fn a_stream_goes_on_with_less_room_than_its_history_needs(backing: Backing) {
    const FRAMES: u64 = 20;
    let size = 1 << 20;
    for (delivery, slots) in [Delivery::Live, Delivery::Lossless]
        .into_iter()
        .flat_map(|delivery| (1..6).map(move |slots| (delivery, slots)))
    {
        let place = Place::new();
        let producer = pool(&place, backing)
            .history(4)
            .max_bytes(slots * size as u64)
            .delivery(delivery)
            .build()
            .unwrap();
        let mut consumer = connect_with(&place, 1);
        for seed in 0..FRAMES {
            drop(publish(&producer, seed, size));
            assert_frame(&receive(&mut consumer), seed, size);
        }
        // The frames are not taken, which only live delivery ignores.
        for seed in 0..FRAMES {
            match producer.acquire(size) {
                Ok(mut slot) => {
                    fill(seed, slot.as_mut_slice());
                    slot.publish(seeded(seed, size)).unwrap();
                }
                Err(error) => {
                    assert!(
                        delivery == Delivery::Lossless,
                        "{slots} slots, {seed}: {error}"
                    );
                    assert_eq!(seed, slots, "frames that were not taken");
                    break;
                }
            }
        }
        assert!(producer.stats().bytes <= slots * size as u64);
    }
}

/// Consumers hold the frames of the history as well, so shrinking it would free no slot.
fn the_history_shrinks_only_for_a_free_slot(backing: Backing) {
    let size = 1 << 20;
    for delivery in [Delivery::Live, Delivery::Lossless] {
        let place = Place::new();
        let producer = pool(&place, backing)
            .history(4)
            .max_bytes(4 * size as u64)
            .delivery(delivery)
            .build()
            .unwrap();
        let mut consumer = connect_with(&place, 4);
        // The consumer's share. The other slots are the producer's.
        let mut held: Vec<_> = (0..2)
            .map(|seed| {
                drop(publish(&producer, seed, size));
                receive(&mut consumer)
            })
            .collect();
        let own = [2, 3].map(|seed| publish(&producer, seed, size));
        let exhausted = producer.acquire(size);
        assert!(matches!(exhausted, Err(AcquireError::Exhausted { .. })));
        let mut late = place.consumer(|it| it.start_from(StartFrom::Oldest));
        for seed in 0..4 {
            assert_frame(&receive(&mut late), seed, size);
        }
        // Slots that only the history holds can be claimed.
        drop(late);
        drop(held.remove(1));
        let mut slot = producer.acquire(size).unwrap();
        fill(4, slot.as_mut_slice());
        slot.publish(seeded(4, size)).unwrap();
        for seed in 2..5 {
            assert_frame(&receive(&mut consumer), seed, size);
        }
        drop(own);
    }
}

/// Upstream's pool requests slots in advance while a consumer is about to take a frame. Upstream can use other memory.
fn a_slot_asked_for_ahead_costs_no_frame(backing: Backing) {
    let size = 1 << 20;
    let place = Place::new();
    let producer = place.producer(|it| it.backing(backing).history(4).max_bytes(4 * size as u64));
    let mut consumer = connect_with(&place, 1);
    let ahead = || producer.acquire(SlotSpec::new(size).ahead());
    let is_exhausted = || matches!(ahead(), Err(AcquireError::Exhausted { .. }));
    let mut slots: Vec<_> = (0..3).map(|_| ahead().unwrap()).collect();
    // The last slot is left for a frame that is ready.
    assert!(is_exhausted());
    producer.acquire(size).unwrap();
    let mut first = slots.remove(0);
    fill(0, first.as_mut_slice());
    first.publish(seeded(0, size)).unwrap();
    slots.push(ahead().unwrap());
    assert!(is_exhausted());
    assert_frame(&receive(&mut consumer), 0, size);
    // A request for a frame that is ready succeeds: it may use a slot of the history.
    producer.acquire(size).unwrap();
}

/// Frames in the history do not block frames of a new size.
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

/// A stopped consumer that holds a frame of the old size does not block it either.
fn a_held_frame_does_not_stop_a_change_of_size(backing: Backing) {
    let place = Place::new();
    let producer = place.producer(|it| it.backing(backing).history(2).min_slots(7).max_slots(7));
    let mut consumer = connect_with(&place, 2);
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
