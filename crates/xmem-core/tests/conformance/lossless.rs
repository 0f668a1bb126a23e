// SPDX-License-Identifier: MPL-2.0

//! Producers that wait for consumers, and several threads that publish.

use std::collections::HashSet;
use std::time::Duration;

use xmem_core::{AcquireError, Backing, Canceller, Consumer, Delivery, Wait, WaitError};

use super::*;

crate::conformance! {
    lossless_loses_nothing
    lossless_waits_end
    many_threads_may_publish
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
    let mut consumers: Vec<Consumer> = (0..2).map(|_| connect_with(&place, 1)).collect();
    assert_eq!(consumers[0].delivery(), Delivery::Lossless);
    std::thread::scope(|scope| {
        for (n, consumer) in consumers.iter_mut().enumerate() {
            scope.spawn(move || {
                for seed in 0..FRAMES {
                    let frame = receive(consumer);
                    assert_eq!(frame.info().sequence, seed);
                    assert_frame(&frame, seed, 3000);
                    if seed % 50 == n as u64 {
                        std::thread::sleep(Duration::from_millis(2));
                    }
                }
            });
        }
        for seed in 0..FRAMES {
            publish_wait(&producer, seed, 3000);
        }
        producer.drain(Wait::up_to(HANG)).unwrap();
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
        producer.wait_for_consumers(1, Wait::up_to(Duration::from_millis(1))),
        Err(WaitError::Timeout)
    );
    // Without consumers the producer does not wait.
    for seed in 0..20 {
        publish(&producer, seed, 10);
    }
    producer.drain(Wait::up_to(Duration::ZERO)).unwrap();
    let consumer = connect_with(&place, 1);
    producer.wait_for_consumers(1, Wait::up_to(HANG)).unwrap();
    while let Ok(mut slot) = producer.acquire(10) {
        fill(1, slot.as_mut_slice());
        slot.publish(seeded(1, 10)).unwrap();
    }
    let wait = Wait::up_to(Duration::from_millis(5));
    assert!(matches!(
        producer.acquire_wait(10, wait),
        Err(AcquireError::Timeout)
    ));
    assert_eq!(producer.drain(wait), Err(WaitError::Timeout));
    let forever = Wait::FOREVER.unless(&cancel);
    let acquire = || producer.acquire_wait(10, forever).map(drop);
    let drain = || producer.drain(forever);
    // Another thread cancels the wait.
    std::thread::scope(|scope| {
        let waiting = scope.spawn(acquire);
        let draining = scope.spawn(drain);
        std::thread::sleep(Duration::from_millis(20));
        cancel.cancel();
        assert!(matches!(
            waiting.join().unwrap(),
            Err(AcquireError::Cancelled)
        ));
        assert_eq!(draining.join().unwrap(), Err(WaitError::Cancelled));
    });
    cancel.reset();
    // The wait ends because the consumer leaves.
    std::thread::scope(|scope| {
        let waiting = scope.spawn(acquire);
        let draining = scope.spawn(drain);
        std::thread::sleep(Duration::from_millis(20));
        drop(consumer);
        waiting.join().unwrap().unwrap();
        draining.join().unwrap().unwrap();
    });
    // The wait ends because the pool is closed.
    let consumer = connect_with(&place, 1);
    while let Ok(slot) = producer.acquire(10) {
        slot.publish(seeded(1, 10)).unwrap();
    }
    std::thread::scope(|scope| {
        let waiting = scope.spawn(acquire);
        std::thread::sleep(Duration::from_millis(20));
        producer.close();
        assert!(matches!(waiting.join().unwrap(), Err(AcquireError::Closed)));
    });
    drop(consumer);
}

fn many_threads_may_publish(backing: Backing) {
    let place = Place::new();
    let producer = place.producer(|it| it.backing(backing).delivery(Delivery::Lossless));
    let mut consumer = connect(&place);
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            let producer = producer.clone();
            scope.spawn(move || {
                for n in 0..100u64 {
                    let (seed, size) = (thread * 1000 + n, 500 + n as usize * 37);
                    assert_frame(&publish_wait(&producer, seed, size), seed, size);
                }
            });
        }
        let mut seen = HashSet::new();
        for sequence in 0..400 {
            let frame = receive(&mut consumer);
            assert_eq!(frame.info().sequence, sequence);
            assert_whole(&frame);
            assert!(seen.insert(frame.meta().pts));
        }
    });
}
