// SPDX-License-Identifier: MPL-2.0

//! More consumers than `max_slots` has full budgets for: all of them are served, with smaller budgets.

mod support;

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use support::raw::{self, Memory, Raw};
use support::{HANG, Place, assert_frame, eventually, hold_or_copy, publish, receive};
use xmem_core::{
    BudgetLimit, Consumer, Delivery, PoolEvent, Producer, ReadLease, ReceiveError, Wait,
};

const SIZE: usize = 1000;

fn connect(place: &Place, count: usize) -> Vec<Consumer> {
    // Each consumer needs about six descriptors.
    let limit = getrlimit(Resource::Nofile);
    let current = limit.maximum;
    setrlimit(Resource::Nofile, Rlimit { current, ..limit }).unwrap();
    let connect = |_| Consumer::builder(place.pool()).connect().unwrap();
    (0..count).map(connect).collect()
}

#[test]
fn each_of_many_consumers_gets_each_frame() {
    for (count, share) in [(26, 8), (64, 2), (200, 0)] {
        let place = Place::new();
        let cuts = Arc::<Mutex<Vec<_>>>::default();
        let producer = Producer::builder(place.pool()).on_event({
            let cuts = cuts.clone();
            move |event| {
                if let PoolEvent::BudgetsCut { budget, limit, .. } = event {
                    cuts.lock().unwrap().push((budget, limit));
                }
            }
        });
        let producer = producer.build().unwrap();
        let mut consumers = connect(&place, count);
        let budgets: Vec<u32> = consumers.iter().map(Consumer::budget).collect();
        assert_eq!(budgets, vec![share; count]);
        let mut held: Vec<Vec<ReadLease>> = vec![Vec::new(); count];
        for seed in 0..30 {
            publish(&producer, seed, SIZE);
            for (consumer, held) in consumers.iter_mut().zip(&mut held) {
                hold_or_copy(consumer, seed, SIZE, held);
            }
        }
        assert!(held.iter().all(|held| held.len() == share as usize));
        let stats = producer.stats();
        let is_served = |seen: &xmem_core::ConsumerStats| {
            (seen.budget, seen.received, seen.missed) == (share, 30, 0)
        };
        assert!(stats.consumers.iter().all(is_served), "{stats:?}");
        let is_cut = share < 8;
        let limit = if is_cut {
            BudgetLimit::MaxSlots
        } else {
            BudgetLimit::Asked
        };
        assert_eq!(stats.budget_limit, limit);
        // Logged when budgets first become smaller, and when they are used up.
        eventually("the producer's program knows", || {
            let expected = [(7, is_cut), (0, share == 0)];
            let expected = expected.iter().filter(|(_, is_so)| *is_so);
            let expected = expected.map(|(budget, _)| (*budget, BudgetLimit::MaxSlots));
            *cuts.lock().unwrap() == expected.collect::<Vec<_>>()
        });
        held.clear();
        let mut last = consumers.split_off(count - 4);
        drop(consumers);
        eventually("the last ones have all they asked for", || {
            last.iter().all(|consumer| {
                (consumer.budget(), consumer.budget_limit()) == (8, BudgetLimit::Asked)
            })
        });
        publish(&producer, 30, SIZE);
        assert_frame(&receive(&mut last[0]), 30, SIZE);
    }
}

/// A frame that a consumer reads has its own slot, also if all other consumers read other frames.
#[test]
fn many_stopped_consumers_delay_no_other() {
    let place = Place::new();
    let producer = Producer::builder(place.pool()).build().unwrap();
    let mut consumers = connect(&place, 200);
    let mut held = Vec::new();
    for (seed, consumer) in (0..).zip(&mut consumers) {
        publish(&producer, seed, SIZE);
        let frame = loop {
            let frame = receive(consumer);
            if frame.meta().pts == Some(seed) {
                break frame;
            }
        };
        held.push(frame);
    }
    assert!(matches!(
        consumers[0].receive(Some(HANG)),
        Err(ReceiveError::OverBudget { budget: 0 })
    ));
    for seed in 200..500 {
        publish(&producer, seed, SIZE);
    }
    for (seed, frame) in (0..).zip(&held) {
        assert_frame(frame, seed, SIZE);
    }
}

#[test]
fn many_consumers_of_a_lossless_pool_miss_nothing() {
    let place = Place::new();
    let producer = place.producer(|it| it.delivery(Delivery::Lossless));
    let consumers = Mutex::new(connect(&place, 64));
    std::thread::scope(|scope| {
        for _ in 0..64 {
            scope.spawn(|| {
                let mut consumer = consumers.lock().unwrap().pop().unwrap();
                let mut held = Vec::new();
                for seed in 0..100 {
                    hold_or_copy(&mut consumer, seed, SIZE, &mut held);
                }
                assert_eq!(consumer.stats().missed, 0);
            });
        }
        for seed in 0..100 {
            support::publish_wait(&producer, seed, SIZE);
        }
        producer.drain(Wait::up_to(HANG)).unwrap();
    });
}

/// A consumer keeps the frames that it holds. Later ones get the remaining slots.
#[test]
fn budgets_that_become_smaller_take_no_frame_away() {
    let place = Place::new();
    let producer = Producer::builder(place.pool()).build().unwrap();
    let mut early = connect(&place, 20);
    let mut held: Vec<Vec<ReadLease>> = vec![Vec::new(); 20];
    for seed in 0..8 {
        publish(&producer, seed, SIZE);
        for (consumer, held) in early.iter_mut().zip(&mut held) {
            hold_or_copy(consumer, seed, SIZE, held);
        }
    }
    let mut late = connect(&place, 30);
    let budgets = |of: &[Consumer]| of.iter().map(Consumer::budget).max();
    // 234 slots, of which the early consumers keep nine each.
    assert_eq!((budgets(&early), budgets(&late)), (Some(0), Some(0)));
    for seed in 8..300 {
        publish(&producer, seed, SIZE);
        let mut none = Vec::new();
        for consumer in early.iter_mut().chain(&mut late) {
            hold_or_copy(consumer, seed, SIZE, &mut none);
        }
    }
    for frames in &held {
        assert_eq!(frames.len(), 8);
        for (seed, frame) in (0..).zip(frames) {
            assert_frame(frame, seed, SIZE);
        }
    }
    assert_eq!(producer.stats().cut_off, 0);
    held.clear();
    for seed in 300..400 {
        publish(&producer, seed, SIZE);
    }
    // 234 / 50
    assert_eq!((budgets(&early), budgets(&late)), (Some(3), Some(3)));
}

/// The number of frames that a consumer may keep from before decreases with each release.
#[test]
fn a_consumer_that_leases_a_released_frame_again_is_disconnected() {
    let place = Place::new();
    let producer = Producer::builder(place.pool()).build().unwrap();
    let (raw, joined) = Raw::join(&place.pool(), 8);
    let control = Memory::map(&joined.control, false);
    let page = Memory::map(&joined.page, true);
    for seed in 0..20 {
        publish(&producer, seed, SIZE);
    }
    let pin = |slot: usize| {
        let word = control.words()[raw::SLOTS + slot].load(Ordering::Relaxed);
        page.halves()[raw::LEASES + slot].store((word >> 32) as u32, Ordering::Relaxed);
    };
    let used: Vec<usize> = (0..joined.max_slots as usize)
        .filter(|slot| control.words()[raw::SLOTS + slot].load(Ordering::Relaxed) != 0)
        .collect();
    used[..4].iter().for_each(|slot| pin(*slot));
    let _others = connect(&place, 63);
    for seed in 20..200 {
        publish(&producer, seed, SIZE);
    }
    assert_eq!(producer.stats().cut_off, 0);
    // It keeps two of the four, which is its new budget, and reads another.
    used[..2].iter().for_each(|slot| {
        page.halves()[raw::LEASES + slot].store(0, Ordering::Relaxed);
    });
    for seed in 200..400 {
        publish(&producer, seed, SIZE);
    }
    assert_eq!(producer.stats().cut_off, 0);
    eventually("it is disconnected", || {
        used[..2].iter().for_each(|slot| pin(*slot));
        publish(&producer, 0, SIZE);
        producer.stats().cut_off == 1
    });
    drop(raw);
}

/// The smallest possible pools serve a consumer.
#[test]
fn the_smallest_pools_serve_a_consumer() {
    for (history, max_slots) in [(1, 3), (4, 6), (4, 7), (4, 8)] {
        let place = Place::new();
        let builder = Producer::builder(place.pool()).history(history);
        assert!(builder.clone().max_slots(history + 1).build().is_err());
        let producer = builder.max_slots(max_slots).build().unwrap();
        let mut consumer = Consumer::builder(place.pool()).connect().unwrap();
        let mut newest = None;
        for seed in 0..100 {
            // One consumer reads a frame while others are published.
            let late = (seed % 10 == 9).then(|| receive(&mut consumer));
            // The producer may keep a frame until it has published the next one.
            let mut slot = producer.acquire(SIZE).unwrap();
            support::fill(seed, slot.as_mut_slice());
            drop(newest.replace(slot.publish(support::seeded(seed, SIZE)).unwrap()));
            drop(late);
            let look = |frame: &ReadLease| assert_frame(frame, seed, SIZE);
            if seed % 10 != 8 {
                consumer.receive_with(Some(HANG), look).unwrap();
            }
        }
        assert_eq!(consumer.stats().missed, 0);
    }
}
