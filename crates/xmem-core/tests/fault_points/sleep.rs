// SPDX-License-Identifier: MPL-2.0

//! Consumers that sleep without a time limit, while a producer is killed or stopped between the two steps of a wake-up.

use std::sync::mpsc::channel;
use std::time::Duration;

use xmem_core::fault::Point;
use xmem_core::{Canceller, Consumer, ConsumerSet, ReadyFd, ReceiveError};

use crate::start;
use crate::support::child::Child;
use crate::support::victim::*;
use crate::support::*;
use crate::table::Kind;

/// Receives until there is an error, in each way to wait.
const WAYS: [fn(Consumer) -> ReceiveError; 3] = [
    |mut consumer| take_all(&mut consumer, None),
    |mut consumer| {
        consumer.notify(&ReadyFd::new().unwrap()).unwrap();
        take_all(&mut consumer, None)
    },
    |consumer| {
        let mut set = ConsumerSet::new().unwrap();
        set.add(consumer).unwrap();
        loop {
            let (_, consumer) = set.wait(None).next().unwrap();
            match take_all(consumer, Some(Duration::ZERO)) {
                ReceiveError::Timeout => {}
                error => break error,
            }
        }
    },
];

fn take_all(consumer: &mut Consumer, timeout: Option<Duration>) -> ReceiveError {
    loop {
        match consumer.receive(timeout) {
            Ok(_) => {}
            // The producer ends its stream now and then, and goes on. A fast consumer sees that.
            Err(ReceiveError::Eos) => consumer.pass_eos(),
            Err(error) => break error,
        }
    }
}

/// Returns the error that ended the sleep. `end`: called after the fault with the producer and the canceller of the sleep.
fn woken_by(
    wait: fn(Consumer) -> ReceiveError,
    action: &str,
    end: impl FnOnce(&mut Child, &Canceller),
) -> ReceiveError {
    let place = Place::new();
    let mut producer = start("produce", Kind::Live, &place);
    wait_for_reply(&mut producer, "ready");
    let cancel = Canceller::new();
    let consumer = place.consumer(|it| it.canceller(&cancel));
    arm_child(&mut producer, Point::WakeChanged, 5..6, action);
    let (send, woken) = channel();
    std::thread::spawn(move || send.send(wait(consumer)));
    end(&mut producer, &cancel);
    woken.recv_timeout(HANG).expect("it sleeps")
}

#[test]
fn the_death_of_a_producer_wakes_it() {
    let dies = |producer: &mut Child, _: &Canceller| {
        assert_eq!(producer.dies_of(), Some(libc::SIGKILL));
    };
    for wait in WAYS {
        let error = woken_by(wait, "kill", dies);
        assert!(matches!(error, ReceiveError::ProducerLost), "{error}");
    }
}

#[test]
fn a_canceller_wakes_it_while_the_producer_is_stopped() {
    let cancelled = |producer: &mut Child, cancel: &Canceller| {
        assert!(producer.stops());
        cancel.cancel();
    };
    for wait in WAYS {
        let error = woken_by(wait, "stop", cancelled);
        assert!(matches!(error, ReceiveError::Cancelled), "{error}");
    }
}
