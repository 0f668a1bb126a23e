// SPDX-License-Identifier: MPL-2.0

//! One thread that waits for several consumers.

use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use crate::notify::descriptor;
use crate::support::{HANG, Place, assert_frame, publish, publish_wait};
use xmem_core::{Canceller, Consumer, Delivery, Producer, ReceiveError, wait_any};

const NOW: Option<Duration> = Some(Duration::ZERO);
const FOREVER: Option<Duration> = None;

fn pool(place: &Place, name: impl ToString) -> PathBuf {
    place.path().join(name.to_string()).with_extension("sock")
}

fn pairs(place: &Place, count: usize, delivery: Delivery) -> (Vec<Producer>, Vec<Consumer>) {
    let pair = |number| {
        let pool = pool(place, number);
        let producer = Producer::builder(&pool).delivery(delivery);
        let producer = producer.build().unwrap();
        (producer, Consumer::builder(&pool).connect().unwrap())
    };
    (0..count).map(pair).unzip()
}

/// Takes all frames that come until `count` were taken: the number of the consumer, and the seed.
fn take(consumers: &mut [Consumer], count: usize) -> Vec<(usize, u64)> {
    let mut taken = Vec::new();
    while taken.len() < count {
        assert!(wait_any(&*consumers, Some(HANG)), "{taken:?}");
        let ready = consumers.iter_mut().enumerate();
        for (number, consumer) in ready.filter(|(_, it)| it.is_ready()) {
            match consumer.receive(NOW) {
                Ok(frame) => {
                    let seed = frame.meta().pts.unwrap();
                    assert_frame(&frame, seed, 100);
                    taken.push((number, seed));
                }
                // Its region may not have arrived yet.
                Err(ReceiveError::Timeout) => {}
                Err(error) => panic!("{error}"),
            }
        }
    }
    taken
}

#[test]
fn frames_of_all_pools_are_taken_in_the_order_of_each() {
    let place = Place::new();
    let (producers, mut consumers) = pairs(&place, 3, Delivery::Live);
    assert!(!wait_any(&consumers, NOW));
    assert!(!consumers[0].is_ready());
    for seed in 0..2 {
        producers.iter().for_each(|it| drop(publish(it, seed, 100)));
    }
    assert!(wait_any(&consumers, NOW));
    let mut taken = take(&mut consumers, 6);
    taken.sort();
    assert_eq!(taken, [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0), (2, 1)]);
    assert!(!wait_any(&consumers, NOW));
}

#[test]
fn a_wait_ends_at_its_time() {
    let place = Place::new();
    let (_producers, consumers) = pairs(&place, 2, Delivery::Live);
    let (begin, time) = (Instant::now(), Duration::from_millis(30));
    assert!(!wait_any(&consumers, Some(time)));
    assert!(begin.elapsed() >= time);
    assert!(!wait_any([], Some(time)));
}

/// 150 do not fit into one system call.
#[test]
fn no_wake_up_is_lost() {
    for (count, frames) in [(2, 4000), (150, 40)] {
        let place = Place::new();
        let (producers, mut consumers) = pairs(&place, count, Delivery::Lossless);
        thread::scope(|scope| {
            scope.spawn(|| {
                for seed in 0..frames {
                    producers
                        .iter()
                        .for_each(|it| drop(publish_wait(it, seed, 100)));
                }
            });
            let taken = take(&mut consumers, count * frames as usize);
            for number in 0..count {
                let seeds = taken.iter().filter(|it| it.0 == number).map(|it| it.1);
                assert!(seeds.eq(0..frames), "pool {number}");
            }
        });
    }
}

#[test]
fn ends_and_cancelled_waits_are_ready() {
    let place = Place::new();
    let canceller = Canceller::new();
    let (mut producers, mut consumers) = pairs(&place, 2, Delivery::Live);
    let pool = pool(&place, "last");
    producers.push(Producer::builder(&pool).build().unwrap());
    let last = Consumer::builder(&pool).canceller(&canceller);
    consumers.push(last.connect().unwrap());
    let ready = |consumers: &[Consumer]| {
        assert!(wait_any(consumers, FOREVER));
        consumers.iter().position(Consumer::is_ready).unwrap()
    };
    thread::scope(|scope| {
        scope.spawn(|| {
            thread::sleep(Duration::from_millis(20));
            canceller.cancel();
        });
        assert_eq!(ready(&consumers), 2);
    });
    let error = consumers[2].receive(FOREVER).unwrap_err();
    assert!(matches!(error, ReceiveError::Cancelled));
    canceller.reset();

    producers[1].set_eos(true);
    assert_eq!(ready(&consumers), 1);
    let error = consumers[1].receive(FOREVER).unwrap_err();
    assert!(matches!(error, ReceiveError::Eos));
    consumers[1].pass_eos();

    drop(producers.remove(0));
    assert_eq!(ready(&consumers), 0);
    let error = consumers[0].receive(FOREVER).unwrap_err();
    assert!(matches!(error, ReceiveError::ProducerLost), "{error}");
}

#[test]
fn consumers_with_a_limit_or_a_descriptor_are_waited_for_too() {
    let place = Place::new();
    let (producers, mut consumers) = pairs(&place, 2, Delivery::Live);
    consumers[0].notify(descriptor()).unwrap();
    let limited = Consumer::builder(pool(&place, 1)).max_rate(1, 2 * HANG);
    consumers[1] = limited.connect().unwrap();
    publish(&producers[1], 0, 100);
    assert_eq!(take(&mut consumers, 1), [(1, 0)]);
    // The next one of this pool is due much later.
    publish(&producers[1], 1, 100);
    publish(&producers[0], 7, 100);
    assert_eq!(take(&mut consumers, 1), [(0, 7)]);
    assert!(!consumers[1].is_ready());
    drop(producers);
    assert!(wait_any(&consumers[1..], Some(HANG)));
}
