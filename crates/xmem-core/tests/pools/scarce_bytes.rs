// SPDX-License-Identifier: MPL-2.0

//! A pool whose `max_bytes` has space for fewer slots than its consumers were promised: they do not block each other.

use crate::support::{HANG, Place, assert_frame, hold_or_copy, publish, publish_wait, receive};
use xmem_core::{Consumer, Delivery, Producer, ReadLease, Wait};

const SIZE: usize = 1 << 20;

fn pool(place: &Place, slots: usize) -> Producer {
    let builder = Producer::builder(place.pool()).history(4);
    builder.max_bytes((slots * SIZE) as u64).build().unwrap()
}

fn connect(place: &Place) -> Consumer {
    Consumer::builder(place.pool()).connect().unwrap()
}

#[test]
fn consumers_at_their_budget_block_no_other() {
    for (slots, share) in [(3, 0), (6, 2), (9, 3)] {
        let place = Place::new();
        let producer = pool(&place, slots);
        // Before the frame size is known.
        let (mut keeper, mut other) = (connect(&place), connect(&place));
        assert_eq!(keeper.budget(), 8);
        let mut held = Vec::new();
        let mut newest = None;
        for seed in 0..30 {
            // A producer may keep its frame until it has published the next one.
            drop(newest.replace(publish(&producer, seed, SIZE)));
            hold_or_copy(&mut keeper, seed, SIZE, &mut held);
            assert_frame(&receive(&mut other), seed, SIZE);
        }
        assert_eq!((held.len(), keeper.budget()), (share, share as u32));
        assert_eq!(producer.stats().consumers[0].budget, share as u32);
        assert_eq!(producer.stats().dropped, 0);
    }
}

/// Held frames stay with their holders. Later consumers get correspondingly less.
#[test]
fn consumers_that_join_later_block_no_other() {
    let place = Place::new();
    let producer = pool(&place, 6);
    let mut keeper = connect(&place);
    let mut held = Vec::new();
    for seed in 0..10 {
        publish(&producer, seed, SIZE);
        hold_or_copy(&mut keeper, seed, SIZE, &mut held);
    }
    assert_eq!(held.len(), 4);
    let mut late = connect(&place);
    assert_eq!((keeper.budget(), late.budget()), (0, 0));
    // It always gets one frame at a time.
    for seed in 10..30 {
        publish(&producer, seed, SIZE);
        assert_frame(&receive(&mut late), seed, SIZE);
        hold_or_copy(&mut keeper, seed, SIZE, &mut held);
    }
    assert_eq!(held.len(), 4);
    held.clear();
    // Read occasionally.
    for seed in 30..100 {
        publish(&producer, seed, SIZE);
        assert_frame(&receive(&mut late), seed, SIZE);
    }
    assert_eq!(late.budget(), 2);
    drop(keeper);
    crate::support::eventually("the share of one is the other's", || late.budget() == 4);
}

#[test]
fn a_lossless_stream_goes_on() {
    let place = Place::new();
    let builder = Producer::builder(place.pool()).delivery(Delivery::Lossless);
    let producer = builder.max_bytes(3 * SIZE as u64).build().unwrap();
    let mut keeper = connect(&place);
    producer.wait_for_consumers(1, Wait::up_to(HANG)).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut held = Vec::new();
            for seed in 0..30 {
                hold_or_copy(&mut keeper, seed, SIZE, &mut held);
            }
            assert_eq!(held.len(), 1);
        });
        for seed in 0..30 {
            publish_wait(&producer, seed, SIZE);
        }
    });
}

/// A frame of another size does not need the memory of a held one.
#[test]
fn a_held_frame_keeps_few_other_bytes() {
    let place = Place::new();
    let producer = pool(&place, 4);
    let mut keeper = connect(&place);
    publish(&producer, 0, SIZE / 16);
    let held = receive(&mut keeper);
    for seed in 1..20 {
        publish(&producer, seed, 3 * SIZE);
        let look = |frame: &ReadLease| assert_frame(frame, seed, 3 * SIZE);
        keeper.receive_with(Some(HANG), look).unwrap();
    }
    assert_frame(&held, 0, SIZE / 16);
}

/// Past their shares, all consumers copy, each for a short time.
#[test]
fn a_consumer_that_copies_keeps_the_budgets_of_others() {
    let place = Place::new();
    let producer = pool(&place, 8);
    let mut consumers: Vec<_> = (0..4).map(|_| (connect(&place), Vec::new())).collect();
    publish(&producer, 0, SIZE);
    for seed in 0..200 {
        for (consumer, held) in &mut consumers {
            hold_or_copy(consumer, seed, SIZE, held);
            assert_eq!((consumer.budget(), held.len()), (1, 1), "{seed}");
        }
        publish(&producer, seed + 1, SIZE);
    }
}

/// Frames with very different sizes, such as messages, get memory in the order of requests.
#[test]
fn mixed_sizes_are_not_divided_among_consumers() {
    let place = Place::new();
    let builder = Producer::builder(place.pool()).mixed_sizes(true);
    let producer = builder.max_bytes(4 * SIZE as u64).build().unwrap();
    let mut consumer = connect(&place);
    let mut held = Vec::new();
    for size in [2 * SIZE, SIZE / 4, SIZE / 4, SIZE / 4] {
        publish(&producer, 1, size);
        held.push(receive(&mut consumer));
    }
    assert_eq!(consumer.budget(), 8);
}
