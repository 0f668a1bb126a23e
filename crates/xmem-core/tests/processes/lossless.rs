// SPDX-License-Identifier: MPL-2.0

//! Producers that wait for their consumers.

use std::time::{Duration, Instant};

use xmem_core::{
    AcquireError, Consumer, Delivery, Producer, ReceiveError, StartFrom, Wait, WaitError,
};

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

/// A pool in which a consumer blocks the producer, with this timeout.
fn blocked(place: &Place, timeout: Duration) -> (Producer, Consumer) {
    let producer = Producer::builder(place.pool())
        .delivery(Delivery::Lossless)
        .history(10)
        .max_slots(16)
        .lossless_timeout(Some(timeout))
        .build()
        .unwrap();
    let consumer = Consumer::builder(place.pool()).connect().unwrap();
    let mut seed = 0;
    while producer.wait_for_room(Wait::up_to(Duration::ZERO)).is_ok() {
        publish(&producer, seed, SIZE);
        seed += 1;
    }
    (producer, consumer)
}

/// As while both pipelines are paused.
#[test]
fn the_time_between_two_waits_is_no_wait() {
    let timeout = Duration::from_millis(500);
    let place = Place::new();
    let (producer, mut consumer) = blocked(&place, timeout);
    std::thread::sleep(2 * timeout);
    let turn = Wait::up_to(Duration::from_millis(20));
    assert_eq!(producer.wait_for_room(turn), Err(WaitError::Timeout));
    assert_eq!(producer.stats().timed_out, 0);
    consumer.receive(Some(HANG)).unwrap();
}

#[test]
fn a_consumer_that_joins_during_a_wait_is_not_blamed_for_the_time_before() {
    let place = Place::new();
    let (producer, _stopped) = blocked(&place, Duration::from_millis(500));
    let turn = || producer.wait_for_room(Wait::up_to(Duration::from_millis(20)));
    for _ in 0..10 {
        assert_eq!(turn(), Err(WaitError::Timeout));
    }
    let late = Consumer::builder(place.pool()).start_from(StartFrom::Oldest);
    let mut late = late.connect().unwrap();
    eventually("a timeout", || {
        let _ = turn();
        producer.stats().timed_out > 0
    });
    assert_eq!(producer.stats().timed_out, 1);
    late.receive(Some(HANG)).unwrap();
}

/// The program itself holds the slots.
#[test]
fn a_live_producer_disconnects_no_consumer() {
    let place = Place::new();
    let producer = place.producer(|it| {
        it.history(1)
            .max_slots(6)
            .lossless_timeout(Some(Duration::from_millis(50)))
    });
    let mut consumer = Consumer::builder(place.pool()).connect().unwrap();
    for seed in 0..3 {
        publish(&producer, seed, SIZE);
    }
    let own: Vec<_> = std::iter::from_fn(|| producer.acquire(SIZE).ok()).collect();
    assert!(!own.is_empty());
    let waited = producer.acquire_wait(SIZE, Wait::up_to(Duration::from_millis(300)));
    assert!(
        matches!(waited, Err(AcquireError::Timeout)),
        "{:?}",
        waited.err()
    );
    assert_eq!(producer.stats().timed_out, 0);
    consumer.receive(Some(HANG)).unwrap();
}

#[test]
fn the_next_stream_waits_until_consumers_have_the_end() {
    let place = Place::new();
    let producer = place.producer(|it| it.delivery(Delivery::Lossless));
    let mut consumer = Consumer::builder(place.pool()).connect().unwrap();
    publish(&producer, 0, SIZE);
    producer.set_eos(true);
    // As xmemsink does for a flush.
    producer.set_eos(false);
    let look = || producer.wait_for_room(Wait::up_to(Duration::ZERO));
    assert_eq!(look(), Err(WaitError::Timeout));
    consumer.receive(Some(HANG)).unwrap();
    // All frames are taken, but not the end.
    producer.drain(Wait::up_to(HANG)).unwrap();
    assert_eq!(look(), Err(WaitError::Timeout));
    assert_eq!(producer.held_up_by().len(), 1);
    std::thread::scope(|scope| {
        let wait = scope.spawn(|| producer.wait_for_room(Wait::up_to(HANG)));
        let end = consumer.receive(Some(HANG));
        assert!(matches!(end, Err(ReceiveError::Eos)));
        wait.join().unwrap().unwrap();
    });
    publish(&producer, 1, SIZE);
    consumer.pass_eos();
    consumer.receive(Some(HANG)).unwrap();
}
