// SPDX-License-Identifier: MPL-2.0

//! Waiting for a descriptor instead of in `receive`.

use std::thread;
use std::time::Duration;

use crate::support::{HANG, Place, assert_frame, eventually, publish};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::retry_on_intr;
use xmem_core::follow::{Follower, Step};
use xmem_core::{Canceller, Consumer, Delivery, Producer, ReadLease, ReadyFd, ReceiveError, Wait};

const NOW: Option<Duration> = Some(Duration::ZERO);

/// Whether the descriptor is or becomes readable.
fn readable(fd: &ReadyFd, timeout: Duration) -> bool {
    let timeout = Timespec::try_from(timeout).unwrap();
    let mut fds = [PollFd::new(fd, PollFlags::IN)];
    retry_on_intr(|| poll(&mut fds, Some(&timeout))).unwrap() == 1
}

/// Receives the frame that made the descriptor readable. Its region may not have arrived yet.
fn receive(consumer: &mut Consumer, fd: &ReadyFd) -> ReadLease {
    loop {
        assert!(readable(fd, HANG));
        match consumer.receive(NOW) {
            Ok(frame) => return frame,
            Err(ReceiveError::Timeout) => {}
            Err(error) => panic!("{error}"),
        }
    }
}

/// Waits until the descriptor is not readable, while nothing can be received. A message of the producer can make it readable once more
/// after a join.
fn assert_silent(fd: &ReadyFd, mut is_empty: impl FnMut() -> bool) {
    eventually("the descriptor is not readable", || {
        assert!(is_empty());
        !readable(fd, Duration::ZERO)
    });
}

fn is_empty(consumer: &mut Consumer) -> bool {
    matches!(consumer.receive(NOW), Err(ReceiveError::Timeout))
}

#[test]
fn readable_until_nothing_is_left() {
    let place = Place::new();
    let producer = place.producer(|it| it.history(4));
    let mut consumer = Consumer::builder(place.pool()).connect().unwrap();
    let fd = ReadyFd::new().unwrap();
    consumer.notify(&fd).unwrap();
    assert_silent(&fd, || is_empty(&mut consumer));
    for seed in 0..3 {
        publish(&producer, seed, 100);
    }
    for seed in 0..3 {
        assert_frame(&receive(&mut consumer, &fd), seed, 100);
    }
    assert_silent(&fd, || is_empty(&mut consumer));

    producer.set_eos(true);
    assert!(readable(&fd, HANG));
    assert!(matches!(consumer.receive(NOW), Err(ReceiveError::Eos)));
    consumer.pass_eos();
    assert_silent(&fd, || is_empty(&mut consumer));

    drop(producer);
    assert!(readable(&fd, HANG));
    // The socket may end before the end of the connection is known.
    let mut ends = std::iter::repeat_with(|| consumer.receive(Some(HANG)).unwrap_err());
    assert!(ends.any(|end| matches!(end, ReceiveError::ProducerLost)));
    drop(consumer);
    place.assert_clean();
}

/// Other wake-ups do not affect the consumer.
#[test]
fn wake_ups_from_elsewhere_and_cancelled_waits_are_harmless() {
    let place = Place::new();
    let _producer = Producer::builder(place.pool()).build().unwrap();
    let canceller = Canceller::new();
    let mut consumer = place.consumer(|it| it.canceller(&canceller));
    let fd = ReadyFd::new().unwrap();
    consumer.notify(&fd).unwrap();
    fd.signal();
    assert!(readable(&fd, HANG));
    assert_silent(&fd, || is_empty(&mut consumer));

    canceller.cancel();
    assert!(readable(&fd, HANG));
    let end = consumer.receive(Some(HANG)).unwrap_err();
    assert!(matches!(end, ReceiveError::Cancelled));
    canceller.reset();
    assert!(is_empty(&mut consumer));

    // Also after the consumer is dropped.
    drop(consumer);
    assert!(readable(&fd, HANG));
}

/// No wake-up is lost, with either way to wait.
#[test]
fn no_wake_up_is_lost() {
    const FRAMES: u64 = 20_000;
    let place = Place::new();
    let producer = place.producer(|it| it.delivery(Delivery::Lossless));
    let mut consumer = Consumer::builder(place.pool()).connect().unwrap();
    let fd = ReadyFd::new().unwrap();
    consumer.notify(&fd).unwrap();
    thread::scope(|scope| {
        scope.spawn(|| {
            for seed in 0..FRAMES {
                producer.wait_for_room(Wait::FOREVER).unwrap();
                publish(&producer, seed, 64);
            }
        });
        let mut next = 0;
        while next < FRAMES {
            let frame = match consumer.receive(NOW) {
                Ok(frame) => frame,
                Err(ReceiveError::Timeout) if next % 2 == 0 => {
                    assert!(readable(&fd, HANG), "no wake-up for frame {next}");
                    continue;
                }
                Err(ReceiveError::Timeout) => consumer.receive(Some(HANG)).unwrap(),
                Err(error) => panic!("{error}"),
            };
            assert_frame(&frame, next, 64);
            next += 1;
        }
    });
}

/// A program that polls between steps would otherwise never sleep.
#[test]
fn without_a_producer_a_follower_reports_nothing() {
    let place = Place::new();
    let fd = ReadyFd::new().unwrap();
    let mut follower = Consumer::builder(place.pool()).follow();
    follower.notify(&fd).unwrap();
    let step = |follower: &mut Follower| follower.step(NOW, |_| ()).unwrap();
    for seed in 0..2 {
        let producer = Producer::builder(place.pool()).build().unwrap();
        assert!(matches!(step(&mut follower), Step::Joined { .. }));
        assert!(matches!(step(&mut follower), Step::Nothing));
        publish(&producer, seed, 100);
        assert!(readable(&fd, HANG));
        while !matches!(step(&mut follower), Step::Took(())) {
            assert!(readable(&fd, HANG));
        }
        assert_silent(&fd, || matches!(step(&mut follower), Step::Nothing));

        drop(producer);
        // The socket may end before the end of the connection is known.
        while !matches!(step(&mut follower), Step::Lost(_)) {
            assert!(readable(&fd, HANG));
        }
        // The loss is reported until the next step.
        assert!(readable(&fd, Duration::ZERO));
        for _ in 0..2 {
            assert!(matches!(step(&mut follower), Step::NoProducer { .. }));
            assert!(!readable(&fd, Duration::ZERO));
        }
    }
}
