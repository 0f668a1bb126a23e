// SPDX-License-Identifier: MPL-2.0

//! Producers that wait for their consumers.

use std::time::{Duration, Instant};

use xmem_core::{Delivery, Producer, Wait, WaitError};

use crate::support::*;
use crate::{SIZE, start};

#[test]
fn lossless_loses_nothing_between_processes() {
    const FRAMES: u64 = 2000;
    let place = Place::new();
    let producer = place.producer(|it| it.delivery(Delivery::Lossless));
    let mut consumers = [(); 2].map(|()| start("slow-lossless", "joined", &place));
    for seed in 0..FRAMES {
        publish_wait(&producer, seed, 5000);
        // One of two consumers dies. The other one is not affected.
        if seed == FRAMES / 2 {
            consumers[0].kill();
        }
    }
    producer.set_eos(true);
    let [_, mut consumer] = consumers;
    assert_eq!(consumer.reply(), FRAMES.to_string());
    producer.drain(Wait::up_to(HANG)).unwrap();
    assert!(consumer.end());
    assert_eq!(producer.stats().dropped, 0);
}

#[test]
fn a_lossless_producer_gives_up_on_an_idle_consumer() {
    gives_up_on_an_idle_consumer(None);
}

/// A producer that waits in short calls also disconnects a slow consumer.
#[test]
fn a_lossless_producer_that_waits_in_short_turns_gives_up_too() {
    gives_up_on_an_idle_consumer(Some(Duration::from_millis(20)));
}

fn gives_up_on_an_idle_consumer(turn: Option<Duration>) {
    let place = Place::new();
    let producer = Producer::builder(place.pool())
        .delivery(Delivery::Lossless)
        .history(1)
        .max_slots(12)
        .lossless_timeout(Some(Duration::from_millis(150)))
        .build()
        .unwrap();
    let mut stopped = start("hold", "joined", &place);
    let mut seed = 0;
    let mut publish_one = || {
        let start = Instant::now();
        while let Err(error) = producer.wait_for_room(Wait::from(turn)) {
            assert_eq!(error, WaitError::Timeout);
            assert!(start.elapsed() < HANG, "never given up on");
        }
        let mut slot = producer.acquire_wait(SIZE, Wait::up_to(HANG)).unwrap();
        fill(seed, slot.as_mut_slice());
        slot.publish(seeded(seed, SIZE)).unwrap();
        seed += 1;
    };
    for _ in 0..5 {
        publish_one();
    }
    assert_eq!(stopped.reply(), "4");
    stopped.stop();
    let start = Instant::now();
    for _ in 0..200 {
        publish_one();
    }
    assert!(
        start.elapsed() >= Duration::from_millis(150),
        "not given up on too early"
    );
    let stats = producer.stats();
    assert_eq!(stats.timed_out, 1);
    assert_eq!(stats.consumers[0].held, 4, "what it holds stays its own");
    stopped.go_on();
    stopped.send("check");
    assert_eq!(stopped.reply(), "whole");
    assert_eq!(stopped.reply(), "TimedOut");
    stopped.send("bye");
    assert!(stopped.end());
    eventually("it is gone", || producer.stats().consumers.is_empty());
    assert_eq!(producer.stats().slots_held, 1);
}
