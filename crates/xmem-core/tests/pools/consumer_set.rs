// SPDX-License-Identifier: MPL-2.0

//! One thread that receives from several consumers.

use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use crate::support::{HANG, Place, assert_frame, publish, publish_wait, receive};
use xmem_core::{
    Canceller, Consumer, ConsumerSet, Delivery, Producer, ReadyFd, ReceiveError, Wait,
};

const NOW: Option<Duration> = Some(Duration::ZERO);
const FOREVER: Option<Duration> = None;

fn pool(place: &Place, name: impl ToString) -> PathBuf {
    place.path().join(name.to_string()).with_extension("sock")
}

fn consumer(place: &Place, name: impl ToString) -> Consumer {
    Consumer::builder(pool(place, name)).connect().unwrap()
}

/// Pools with one consumer each, which all are in the set.
fn pairs(place: &Place, count: usize, delivery: Delivery) -> (Vec<Producer>, ConsumerSet) {
    let mut set = ConsumerSet::new().unwrap();
    let pair = |number| {
        let producer = Producer::builder(pool(place, number)).delivery(delivery);
        let producer = producer.build().unwrap();
        assert_eq!(set.add(consumer(place, number)).unwrap(), number);
        producer
    };
    ((0..count).map(pair).collect(), set)
}

fn ready(set: &mut ConsumerSet, timeout: Option<Duration>) -> Vec<usize> {
    set.wait(timeout).map(|(number, _)| number).collect()
}

/// Takes all frames that come until `count` were taken: the number of the consumer, and the seed. Of each consumer that is ready it
/// takes at most `each`.
fn take(set: &mut ConsumerSet, count: usize, each: usize) -> Vec<(usize, u64)> {
    let mut taken = Vec::new();
    while taken.len() < count {
        let before = Instant::now();
        for (number, consumer) in set.wait(Some(HANG)) {
            for _ in 0..each {
                match consumer.receive(NOW) {
                    Ok(frame) => {
                        let seed = frame.meta().pts.unwrap();
                        assert_frame(&frame, seed, 100);
                        taken.push((number, seed));
                    }
                    // Its region may not have arrived yet.
                    Err(ReceiveError::Timeout) => break,
                    Err(error) => panic!("{error}"),
                }
            }
        }
        assert!(before.elapsed() < HANG, "{taken:?}");
    }
    taken
}

#[test]
fn frames_of_all_pools_are_taken_in_the_order_of_each() {
    let place = Place::new();
    let (producers, mut set) = pairs(&place, 3, Delivery::Live);
    assert!(ready(&mut set, NOW).is_empty());
    for seed in 0..2 {
        producers.iter().for_each(|it| drop(publish(it, seed, 100)));
    }
    for _ in 0..2 {
        assert_eq!(ready(&mut set, NOW), [0, 1, 2], "nothing was received");
    }
    let mut taken = take(&mut set, 6, 1);
    taken.sort();
    assert_eq!(taken, [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0), (2, 1)]);
    assert!(ready(&mut set, NOW).is_empty());
}

#[test]
fn a_wait_ends_at_its_time() {
    let place = Place::new();
    let (_producers, set) = pairs(&place, 2, Delivery::Live);
    let time = Duration::from_millis(30);
    for mut set in [set, ConsumerSet::new().unwrap()] {
        let begin = Instant::now();
        assert!(ready(&mut set, Some(time)).is_empty());
        assert!(begin.elapsed() >= time);
    }
}

/// 150 wake-ups are more than one call takes.
#[test]
fn no_wake_up_is_lost() {
    for (count, frames, each) in [(2, 4000, 1), (2, 4000, 5), (150, 40, 2)] {
        let place = Place::new();
        let (producers, mut set) = pairs(&place, count, Delivery::Lossless);
        thread::scope(|scope| {
            scope.spawn(|| {
                for seed in 0..frames {
                    producers
                        .iter()
                        .for_each(|it| drop(publish_wait(it, seed, 100)));
                }
            });
            let taken = take(&mut set, count * frames as usize, each);
            for number in 0..count {
                let seeds = taken.iter().filter(|it| it.0 == number).map(|it| it.1);
                assert!(seeds.eq(0..frames), "pool {number}");
            }
        });
    }
}

/// Each way to wait ends the request that the other one made.
#[test]
fn no_wake_up_is_lost_between_two_ways_to_wait() {
    const FRAMES: u64 = 6000;
    let place = Place::new();
    let (producers, mut set) = pairs(&place, 1, Delivery::Lossless);
    thread::scope(|scope| {
        scope.spawn(|| {
            for seed in 0..FRAMES {
                producers[0].wait_for_room(Wait::FOREVER).unwrap();
                publish(&producers[0], seed, 100);
            }
        });
        for seed in 0..FRAMES {
            if seed % 3 == 0 {
                assert_eq!(take(&mut set, 1, 1), [(0, seed)]);
            } else {
                let consumer = set.get_mut(0).unwrap();
                assert_frame(&consumer.receive(Some(HANG)).unwrap(), seed, 100);
            }
        }
    });
}

#[test]
fn ends_and_cancelled_waits_are_ready() {
    let place = Place::new();
    let canceller = Canceller::new();
    let (mut producers, mut set) = pairs(&place, 2, Delivery::Live);
    let pool = pool(&place, "last");
    producers.push(Producer::builder(&pool).build().unwrap());
    let last = Consumer::builder(&pool).canceller(&canceller);
    set.add(last.connect().unwrap()).unwrap();
    let mut end = |number| {
        assert_eq!(ready(&mut set, FOREVER), [number]);
        let consumer = set.get_mut(number).unwrap();
        let error = consumer.receive(FOREVER).unwrap_err();
        consumer.pass_eos();
        error
    };
    thread::scope(|scope| {
        scope.spawn(|| {
            thread::sleep(Duration::from_millis(20));
            canceller.cancel();
        });
        assert!(matches!(end(2), ReceiveError::Cancelled));
    });
    canceller.reset();

    producers[1].set_eos(true);
    assert!(matches!(end(1), ReceiveError::Eos));
    drop(producers.remove(0));
    assert!(matches!(end(0), ReceiveError::ProducerLost));
}

#[test]
fn consumers_come_and_go() {
    let place = Place::new();
    let (producers, mut set) = pairs(&place, 3, Delivery::Live);
    assert!(ready(&mut set, NOW).is_empty());
    let mut removed = set.remove(1).unwrap();
    assert!(set.remove(1).is_none() && set.get_mut(1).is_none());
    producers.iter().for_each(|it| drop(publish(it, 0, 100)));
    assert_eq!(take(&mut set, 2, 1).len(), 2);
    assert!(ready(&mut set, NOW).is_empty());
    assert_frame(&receive(&mut removed), 0, 100);

    // It has another descriptor now, and then this set again.
    let other = ReadyFd::new().unwrap();
    removed.notify(&other).unwrap();
    other.clear();
    assert_eq!(set.add(removed).unwrap(), 1);
    assert!(ready(&mut set, NOW).is_empty());
    other.clear();
    publish(&producers[1], 1, 100);
    assert_eq!(take(&mut set, 1, 1), [(1, 1)]);
}

#[test]
fn a_consumer_with_a_limit_is_waited_for_too() {
    let place = Place::new();
    let (producers, mut set) = pairs(&place, 1, Delivery::Live);
    let slow = Producer::builder(pool(&place, "slow")).build().unwrap();
    let limited = Consumer::builder(slow.pool());
    let limited = limited.max_rate(20, Duration::from_secs(1));
    assert_eq!(set.add(limited.connect().unwrap()).unwrap(), 1);
    publish(&slow, 0, 100);
    assert_eq!(take(&mut set, 1, 1), [(1, 0)]);
    // The next one of this pool is due later.
    publish(&producers[0], 7, 100);
    assert_eq!(take(&mut set, 1, 1), [(0, 7)]);
    let mut seed = 1;
    // Nothing wakes the set when the next one is due.
    let due = loop {
        publish(&slow, seed, 100);
        seed += 1;
        if let Some((number, consumer)) = set.wait(Some(HANG)).next() {
            assert_eq!(number, 1);
            match consumer.receive(NOW) {
                Ok(frame) => break frame.meta().pts.unwrap(),
                Err(error) => assert!(matches!(error, ReceiveError::Timeout), "{error}"),
            }
        }
    };
    assert!(due > 0);
    assert_eq!(set.get_mut(1).unwrap().stats().missed, 0);
    drop(slow);
    assert_eq!(ready(&mut set, Some(HANG)), [1]);
}
