// SPDX-License-Identifier: MPL-2.0

//! Points that are passed only if two processes alternate in a certain order.

use xmem_core::fault::Point;

use crate::start;
use crate::support::child::Child;
use crate::support::victim::*;
use crate::support::*;
use crate::table::{HISTORY, Kind};

/// A producer and a consumer that alternate.
fn two(kind: Kind, place: &Place) -> (Child, Child) {
    let mut producer = start("step", kind, place);
    wait_for_reply(&mut producer, "ready");
    let mut consumer = start("take", kind, place);
    wait_for_reply(&mut consumer, "joined");
    (producer, consumer)
}

#[test]
fn a_consumer_dies_as_it_finds_its_frame_gone() {
    let place = Place::new();
    let (mut producer, mut consumer) = two(Kind::Live, &place);
    arm_child(&mut consumer, Point::EntryRead, 1..2, "stop");
    arm_child(&mut consumer, Point::HoldWithdrawn, 1..2, "kill");
    ask(&mut producer, "1", "published");
    consumer.send("take");
    assert!(consumer.stops());
    // All slots are written again.
    ask(&mut producer, "50", "published");
    consumer.go_on();
    assert_eq!(consumer.dies_of(), SIGKILL);
    eventually("nothing is left of it", || {
        let stats = stats_of(&place.pool());
        stats.consumers.is_empty() && stats.slots_held == HISTORY
    });
}

#[test]
fn a_producer_dies_as_it_finds_a_slot_held() {
    let place = Place::new();
    let (mut producer, mut consumer) = two(Kind::Live, &place);
    // The region is already mapped, so the consumer needs nothing from the producer.
    ask(&mut producer, "1", "published");
    ask(&mut consumer, "take", "0");
    arm_child(&mut consumer, Point::EntryRead, 1..2, "stop");
    ask(&mut producer, "1", "published");
    consumer.send("take");
    assert!(consumer.stops());
    // This frame was the last to leave the history, so its slot is the next to be claimed.
    ask(&mut producer, &HISTORY.to_string(), "published");
    arm_child(&mut producer, Point::ClaimLooked, 1..2, "stop");
    arm_child(&mut producer, Point::ClaimPutBack, 1..2, "kill");
    producer.send("1");
    assert!(producer.stops());
    // The slot was free when it was checked, and is held now.
    consumer.go_on();
    wait_for_reply(&mut consumer, "1");
    producer.go_on();
    assert_eq!(producer.dies_of(), SIGKILL);
    ask(&mut consumer, "check", "whole");
    // Frames that were published before can be taken.
    ask(&mut consumer, "take", "2");
    let mut next = start("step", Kind::Live, &place);
    wait_for_reply(&mut next, "ready");
    ask(&mut consumer, "check", "whole");
}

#[test]
fn a_producer_dies_as_it_gives_up_on_a_consumer() {
    let place = Place::new();
    let (mut producer, mut consumer) = two(Kind::Lossless, &place);
    arm_child(&mut producer, Point::TimedOutMarked, 1..2, "kill");
    // The consumer takes no frame.
    producer.send("50");
    assert_eq!(producer.dies_of(), SIGKILL);
    let mut next = start("step", Kind::Lossless, &place);
    wait_for_reply(&mut next, "ready");
    consumer.send("end");
    assert!(consumer.ends());
}

#[test]
fn a_sticky_state_that_cannot_be_sent_now_costs_no_frame() {
    let place = Place::new();
    let mut producer = start("step", Kind::Lossless, &place);
    wait_for_reply(&mut producer, "ready");
    ask(&mut producer, "sticky 4", "published");
    // After the lease page, the states of the first frames are sent, for which there are no descriptors.
    let errno = rustix::io::Errno::MFILE.raw_os_error().to_string();
    arm_child(&mut producer, Point::MemfdCreate, 2..4, &errno);
    let mut consumer = start("take", Kind::Lossless, &place);
    wait_for_reply(&mut consumer, "joined");
    for sequence in 0..4 {
        ask(&mut consumer, "take", &sequence.to_string());
    }
    ask(&mut consumer, "check", "whole");
}
