// SPDX-License-Identifier: MPL-2.0

//! Producers and consumers in separate processes that are killed, stopped, restarted and forked.

mod ends;
mod forks;
mod kills;
mod lossless;
mod namespaces;
mod roles;
mod segments;
mod stops;
#[path = "../support/mod.rs"]
mod support;
mod versions;

use support::child::Child;
use support::*;
use xmem_core::Producer;

const SIZE: usize = 200_000;

/// Runs a role in a child process.
#[test]
fn child() {
    roles::play();
}

/// Starts a child with this role, and waits until it replies `answer`.
#[track_caller]
fn start(role: &str, answer: &str, place: &Place) -> Child {
    let mut child = Child::start(role, &place.pool());
    assert_eq!(child.reply(), answer);
    child
}

/// A consumer that holds its whole budget of four frames, and checks them on command.
#[track_caller]
fn holding(producer: &Producer, place: &Place) -> Child {
    let mut consumer = start("hold", "joined", place);
    let mut seed = 0;
    eventually("it holds its budget", || {
        publish(producer, seed, SIZE);
        seed += 1;
        producer.stats().consumers[0].held == 4
    });
    publish(producer, seed, SIZE);
    assert_eq!(consumer.reply(), "4");
    consumer
}
