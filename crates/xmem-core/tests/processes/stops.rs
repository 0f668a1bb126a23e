// SPDX-License-Identifier: MPL-2.0

//! Stopped consumers: no process waits for them, and they keep their frames.

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
    producer.send("go");
    assert_eq!(producer.reply(), "done");
    let stats = stats_of(&place.pool());
    assert_eq!(stats.published, 6000);
    assert_eq!(
        stats.consumers.len(),
        2,
        "a stopped consumer is not disconnected"
    );
    producer.send("end");
    assert_eq!(producer.reply(), "6000");
    let received: u64 = reader.reply().parse().unwrap();
    let missed: u64 = reader.reply().parse().unwrap();
    assert_eq!(received + missed, 6000);
    assert!(received > 0);
    // After it is continued, it receives the newest frame.
    stopped.go_on();
    assert_ne!(stopped.reply(), "0");
    producer.send("bye");
    assert!(producer.end());
}

#[test]
fn a_stopped_consumers_frames_stay_intact() {
    let place = Place::new();
    let producer = Producer::builder(place.pool()).build().unwrap();
    let mut consumer = holding(&producer, &place);
    consumer.stop();
    let slots = producer.stats().slots;
    for seed in 1000..3000 {
        publish(&producer, seed, SIZE);
    }
    assert_eq!(producer.stats().consumers[0].held, 4);
    assert!(producer.stats().slots <= slots.max(16));
    consumer.go_on();
    consumer.send("check");
    assert_eq!(consumer.reply(), "whole");
    assert_eq!(consumer.reply(), "received");
    consumer.send("bye");
    assert!(consumer.end());
}
