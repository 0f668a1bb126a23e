// SPDX-License-Identifier: MPL-2.0

//! Consumers that are stopped: nobody waits for them, and what they hold stays theirs.

use xmem_core::Producer;

use crate::support::*;
use crate::{SIZE, holding, start};

#[test]
fn a_stopped_consumer_changes_nothing_for_the_others() {
    let place = Place::new();
    let mut producer = start("count-resources", "ready", &place);
    let mut stopped = start("churn", "joined", &place);
    let mut reader = start("read", "joined", &place);
    stopped.stop();
    producer.tell("go");
    assert_eq!(producer.says(), "done");
    let stats = stats_of(&place.pool());
    assert_eq!(stats.published, 6000);
    assert_eq!(stats.consumers.len(), 2, "who is stopped is not cut off");
    producer.tell("end");
    assert_eq!(producer.says(), "6000");
    let received: u64 = reader.says().parse().unwrap();
    let missed: u64 = reader.says().parse().unwrap();
    assert_eq!(received + missed, 6000);
    assert!(received > 0);
    // Awake again it goes on, with the newest.
    stopped.go_on();
    assert_ne!(stopped.says(), "0");
    producer.tell("bye");
    assert!(producer.end());
}

#[test]
fn a_stopped_consumers_frames_stay_intact() {
    let place = Place::new();
    let producer = Producer::builder(&place.pool()).build().unwrap();
    let mut consumer = holding(&producer, &place);
    consumer.stop();
    let slots = producer.stats().slots;
    for seed in 1000..3000 {
        publish(&producer, seed, SIZE);
    }
    assert_eq!(producer.stats().consumers[0].held, 4);
    assert!(producer.stats().slots <= slots.max(16));
    consumer.go_on();
    consumer.tell("check");
    assert_eq!(consumer.says(), "whole");
    assert_eq!(consumer.says(), "received");
    consumer.tell("bye");
    assert!(consumer.end());
}
