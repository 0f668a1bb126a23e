// SPDX-License-Identifier: MPL-2.0

//! A consumer that limits its rate.

use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use xmem_core::{Canceller, Consumer, Delivery, FrameMeta, Producer, ReadyFd, ReceiveError, Wait};

use crate::support::{HANG, Place, assert_frame, publish, publish_wait, receive};

const SIZE: usize = 100;
/// Longer than any test, so that only the first frame is taken.
const LONG: Duration = Duration::from_secs(3600);

fn limited(place: &Place, time: Duration) -> Consumer {
    let builder = Consumer::builder(place.pool()).max_rate(1, time);
    builder.events(true).connect().unwrap()
}

/// The history is far shorter than a pause: nothing is missed, and each frame is counted once.
#[test]
fn frames_in_between_are_skipped_and_not_missed() {
    let place = Place::new();
    let producer = place.producer(|it| it.history(2));
    let time = Duration::from_millis(100);
    let mut consumer = limited(&place, time);
    let end = Instant::now() + 5 * time;
    let publishing = thread::spawn(move || {
        let mut count = 0;
        while Instant::now() < end {
            publish(&producer, count, SIZE);
            count += 1;
            thread::sleep(Duration::from_millis(2));
        }
        producer.set_eos(true);
        (producer, count)
    });
    let mut times = Vec::new();
    let error = loop {
        match consumer.receive(Some(HANG)) {
            Ok(lease) => times.push(lease.info().published_at),
            Err(error) => break error,
        }
    };
    assert!(matches!(error, ReceiveError::Eos), "{error}");
    let (producer, published) = publishing.join().unwrap();
    let stats = consumer.stats();
    assert!(times.len() >= 2, "{times:?}");
    // The n-th frame is not before its turn.
    for (n, at) in times.iter().enumerate() {
        assert!(
            at - times[0] >= n as i64 * time.as_nanos() as i64,
            "{times:?}"
        );
    }
    assert_eq!(stats.received, times.len() as u64);
    assert_eq!(stats.received + stats.missed + stats.skipped, published);
    let seen = &producer.stats().consumers[0];
    assert_eq!(
        (seen.received, seen.skipped),
        (stats.received, stats.skipped)
    );
    assert!(stats.skipped > stats.received, "{stats:?}");
}

#[test]
fn events_and_the_end_come_through() {
    let place = Place::new();
    let producer = place.producer(|it| it.history(16));
    let mut consumer = limited(&place, LONG);
    publish(&producer, 0, SIZE);
    publish(&producer, 1, SIZE);
    producer.publish_event(FrameMeta::default().pts(7)).unwrap();
    publish(&producer, 2, SIZE);
    producer.set_eos(true);
    assert_frame(&receive(&mut consumer), 0, SIZE);
    assert!(receive(&mut consumer).meta().event);
    let end = consumer.receive(Some(HANG));
    assert!(matches!(end, Err(ReceiveError::Eos)));
    let stats = consumer.stats();
    assert_eq!((stats.received, stats.missed, stats.skipped), (1, 0, 2));
}

/// A pause is a sleep from which frames do not wake it, but a canceller, a lost producer and a timeout do.
#[test]
fn a_pause_ends_for_everything_but_frames() {
    let place = Place::new();
    let producer = Producer::builder(place.pool()).build().unwrap();
    let canceller = Canceller::new();
    let builder = Consumer::builder(place.pool()).max_rate(1, LONG);
    let mut consumer = builder.canceller(&canceller).connect().unwrap();
    publish(&producer, 0, SIZE);
    receive(&mut consumer);
    publish(&producer, 1, SIZE);
    let next = consumer.receive(Some(Duration::from_millis(20)));
    assert!(matches!(next, Err(ReceiveError::Timeout)));
    let waiting = thread::spawn(move || (consumer.receive(None).unwrap_err(), consumer));
    canceller.cancel();
    let (error, mut consumer) = waiting.join().unwrap();
    assert!(matches!(error, ReceiveError::Cancelled), "{error}");
    canceller.reset();
    let waiting = thread::spawn(move || consumer.receive(None).unwrap_err());
    drop(producer);
    let error = waiting.join().unwrap();
    assert!(matches!(error, ReceiveError::ProducerLost), "{error}");
}

#[test]
fn a_descriptor_is_readable_when_a_frame_is_due() {
    let place = Place::new();
    // The program may be late on a busy machine.
    let producer = place.producer(|it| it.history(100));
    let mut consumer = limited(&place, Duration::from_millis(50));
    let ready = ReadyFd::new().unwrap();
    consumer.notify(&ready).unwrap();
    let mut taken = Vec::new();
    let mut published = 0;
    while taken.len() < 3 {
        publish(&producer, published, SIZE);
        published += 1;
        let mut fds = [PollFd::new(&ready, PollFlags::IN)];
        let time = Timespec::try_from(Duration::from_millis(2)).unwrap();
        if poll(&mut fds, Some(&time)).unwrap() == 1 {
            match consumer.receive(Some(Duration::ZERO)) {
                Ok(lease) => taken.push(lease.info().published_at),
                Err(error) => assert!(matches!(error, ReceiveError::Timeout), "{error}"),
            }
        }
    }
    assert!(taken[2] - taken[0] >= 100_000_000, "{taken:?}");
    assert_eq!(consumer.stats().missed, 0);
}

/// It skips at once, so it delays no producer.
#[test]
fn a_lossless_producer_goes_on() {
    let place = Place::new();
    let builder = Producer::builder(place.pool()).delivery(Delivery::Lossless);
    let producer = builder.build().unwrap();
    let mut consumer = limited(&place, LONG);
    producer.wait_for_consumers(1, Wait::up_to(HANG)).unwrap();
    let receiving = thread::spawn(move || {
        receive(&mut consumer);
        let end = consumer.receive(Some(HANG));
        assert!(matches!(end, Err(ReceiveError::Eos)));
        consumer.stats()
    });
    // Many more frames than a lossless producer may be ahead.
    for seed in 0..50 {
        publish_wait(&producer, seed, SIZE);
    }
    producer.set_eos(true);
    producer.drain(Wait::up_to(HANG)).unwrap();
    let stats = receiving.join().unwrap();
    assert_eq!((stats.received, stats.missed, stats.skipped), (1, 0, 49));
}
