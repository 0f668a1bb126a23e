// SPDX-License-Identifier: MPL-2.0

//! Processes that are killed.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use xmem_core::{Backing, ConnectError, Consumer, Producer, ReceiveError};

use crate::support::child::Child;
use crate::support::*;
use crate::{SIZE, holding, start};

#[test]
fn a_killed_consumers_whole_budget_is_reclaimed() {
    for backing in [Backing::Memfd, Backing::PosixShm] {
        let place = Place::new();
        let producer = place.producer(|it| it.backing(backing).history(1));
        let mut consumer = holding(&producer, &place);
        let stats = producer.stats();
        assert_eq!(stats.consumers[0].pid, consumer.pid());
        assert!(stats.slots_held == 5 && stats.consumers[0].oldest_held_age_ns > 0);
        consumer.kill();
        eventually("its slots are back", || {
            let stats = producer.stats();
            stats.consumers.is_empty() && stats.slots_held == 1
        });
        assert_eq!(producer.stats().cut_off, 0);
    }
}

/// The producer was killed before the consumer requested the region of a frame.
#[test]
fn a_lossless_consumer_receives_nothing_behind_a_gap() {
    for (role, missed) in [("gap-live", 1), ("gap-lossless", 0)] {
        let place = Place::new();
        let mut producer = start(role, "ready", &place);
        let mut consumer = Consumer::builder(place.pool()).connect().unwrap();
        producer.send("");
        assert_eq!(producer.reply(), "published");
        assert_frame(&receive(&mut consumer), 1, SIZE);
        producer.kill();
        if missed > 0 {
            assert_frame(&receive(&mut consumer), 3, SIZE);
        }
        for _ in 0..2 {
            let end = consumer.receive(Some(HANG));
            assert!(matches!(end, Err(ReceiveError::ProducerLost)), "{end:?}");
        }
        assert_eq!(consumer.stats().missed, missed);
    }
}

#[test]
fn frames_outlive_a_killed_producer_and_a_new_one_goes_on() {
    for role in ["produce", "produce-posix-shm"] {
        let place = Place::new();
        let pool = place.pool();
        // There is no producer yet, so the consumer waits.
        let waiting = std::thread::spawn({
            let pool = pool.clone();
            move || Consumer::builder(&pool).connect_wait(Some(HANG)).unwrap()
        });
        let mut producer = Child::start(role, &pool).ready();
        let mut consumer = waiting.join().unwrap();
        let mut held = Vec::new();
        for round in 0..4 {
            let frames = [receive(&mut consumer), receive(&mut consumer)];
            let pid = frames[0].meta().pts.unwrap() >> 32;
            assert_eq!(pid, u64::from(producer.pid()));
            assert_eq!(consumer.producer_pid(), producer.pid());
            held.extend(frames);
            // The time of the kill: between frames, or while the consumer sleeps.
            if round % 2 == 0 {
                producer.kill();
            } else {
                producer.stop();
            }
            let lost = loop {
                match consumer.receive(Some(Duration::from_millis(100))) {
                    Ok(frame) => assert_whole(&frame),
                    // The consumer probably sleeps now.
                    Err(ReceiveError::Timeout) => producer.kill(),
                    Err(error) => break error,
                }
            };
            assert!(matches!(lost, ReceiveError::ProducerLost), "{lost}");
            held.iter().for_each(assert_whole);
            // The stale socket, lock and segments do not block a producer.
            assert!(std::fs::symlink_metadata(&pool).is_ok());
            assert!(matches!(
                Consumer::builder(&pool).connect(),
                Err(ConnectError::NotFound { .. })
            ));
            producer = Child::start(role, &pool);
            consumer = Consumer::builder(&pool).connect_wait(Some(HANG)).unwrap();
            assert_eq!(producer.reply(), "ready");
        }
        for _ in 0..100 {
            assert_whole(&receive(&mut consumer));
        }
        held.iter().for_each(assert_whole);
        assert_eq!(held.len(), 8);
        drop((held, consumer));
        producer.kill();
        // The next producer removes the files of a killed one, and leaves none itself.
        drop(
            Producer::builder(&pool)
                .backing(Backing::PosixShm)
                .build()
                .unwrap(),
        );
        place.assert_clean();
    }
}

#[test]
fn consumers_killed_at_any_moment_tear_no_frame() {
    let place = Place::new();
    let producer = place.producer(|it| it.history(2));
    let mut checker = Consumer::builder(place.pool()).connect().unwrap();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for seed in 0.. {
                if done.load(Ordering::Relaxed) {
                    break;
                }
                publish(&producer, seed, SIZE);
            }
            producer.set_eos(true);
        });
        let checking = scope.spawn(|| {
            loop {
                match checker.receive(Some(HANG)) {
                    Ok(frame) => assert_whole(&frame),
                    Err(ReceiveError::Eos) => break,
                    Err(error) => panic!("{error}"),
                }
            }
            (checker.stats().received, checker.stats().missed)
        });
        let mut random = Random(1);
        for _ in 0..50 {
            let mut victim = start("churn", "joined", &place);
            std::thread::sleep(Duration::from_micros(random.below(15_000)));
            victim.kill();
        }
        done.store(true, Ordering::Relaxed);
        let (received, missed) = checking.join().unwrap();
        assert_eq!(received + missed, producer.stats().published);
        assert!(received > 50);
    });
    eventually("all are gone", || producer.stats().consumers.len() == 1);
    let stats = producer.stats();
    assert_eq!(
        (stats.slots_held, stats.cut_off, stats.dropped),
        (2, 0, 0),
        "{stats:?}"
    );
    assert!(stats.slots < 40, "{stats:?}");
}
