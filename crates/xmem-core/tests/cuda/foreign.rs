// SPDX-License-Identifier: MPL-2.0

//! Device memory outside of the pool: upstream's own memory by legacy handle, and memory of another pool that is forwarded. Memory
//! that ends with its producer waits for its users.

use crate::lab::{Lab, ask, count, looks, run};
use crate::support::child::Child;
use crate::support::{assert_contains, eventually};

/// Publishes a frame in upstream's memory, which the consumer takes.
#[track_caller]
fn take_borrowed(producer: &mut Child, consumer: &mut Child) {
    run(producer, "borrow", "borrowed");
    run(producer, "publish borrowed", "published");
    run(consumer, "take", "took 1000");
}

/// Waits until upstream's memory is released.
#[track_caller]
fn comes_back(producer: &mut Child) {
    eventually("it is released", || ask(producer, "released") == "true");
}

#[test]
fn foreign_memory_is_opened_once_and_released_after_the_last_close() {
    let lab = Lab::new();
    let (mut producer, mut consumer) = lab.pair("auto");
    run(&mut producer, "borrow", "borrowed");
    for number in 1000..1020 {
        run(&mut producer, "publish borrowed", "published");
        run(&mut consumer, "take", &format!("took {number}"));
        // There is only one such memory, so it is not written again before it was read.
        run(&mut consumer, "result", "0");
    }
    assert_eq!(count(&mut consumer, "imports"), 1);
    // The handles of the canary and of the memory.
    lab.assert_calls(&consumer, &["cuIpcOpenMemHandle_v2"], 2);
    run(&mut producer, "publish borrowed", "published");
    run(&mut consumer, "hold", "holds 1020 Some(Legacy)");
    run(&mut producer, "release", "released");
    // The frames have also left the history.
    run(&mut producer, "publish 3", "published");
    looks(&mut consumer);
    assert_eq!(ask(&mut producer, "released"), "false");
    run(&mut consumer, "drop", "dropped");
    // The consumer releases unused memory at its next receive call, or on request.
    comes_back(&mut producer);
    assert_eq!(
        count(&mut consumer, "closed"),
        1,
        "closed before it was released"
    );
    lab.assert_allowed();
}

/// A frame keeps only its own memory.
#[test]
fn foreign_memory_is_released_while_a_consumer_that_left_holds_another_frame() {
    let lab = Lab::new();
    let (mut producer, mut consumer) = lab.pair("auto");
    take_borrowed(&mut producer, &mut consumer);
    run(&mut producer, "publish", "published 1");
    run(&mut consumer, "hold", "holds 0 Some(Vmm)");
    run(&mut consumer, "leave", "left");
    run(&mut producer, "release", "released");
    // The frames have also left the history.
    run(&mut producer, "publish 3", "published");
    comes_back(&mut producer);
    looks(&mut consumer);
    lab.assert_allowed();
}

#[test]
fn memory_that_upstream_still_has_at_the_end_is_closed_by_consumers_before() {
    let lab = Lab::new();
    let (mut producer, mut consumer) = lab.pair("auto");
    take_borrowed(&mut producer, &mut consumer);
    run(&mut consumer, "result", "0");
    assert_eq!(count(&mut consumer, "closed"), 0);
    run(&mut producer, "close", "closed");
    assert_eq!(count(&mut consumer, "closed"), 1);
    run(&mut producer, "release", "released");
    run(&mut producer, "released", "true");
    lab.assert_allowed();
}

#[test]
fn a_producers_own_lease_does_not_take_its_slot_for_the_parts() {
    let lab = Lab::new();
    let mut producer = lab.ready("produce auto");
    run(&mut producer, "borrow", "borrowed");
    let reply = ask(&mut producer, "own-parts");
    assert_contains(&reply, "is in parts");
}

#[test]
fn memory_without_a_handle_is_refused() {
    let lab = Lab::new().with("QUIRKS", "no-legacy-ipc");
    let mut producer = lab.ready("produce auto");
    let answer = ask(&mut producer, "borrow");
    assert_contains(&answer, "cannot");
    run(&mut producer, "publish", "published 0");
}

#[test]
fn a_slot_on_a_device_is_a_part_of_a_frame() {
    for mode in ["vmm", "legacy"] {
        let lab = Lab::new();
        let (mut producer, mut consumer) = lab.pair(mode);
        run(&mut producer, "publish part", "published");
        run(&mut consumer, "take", "took 7");
        run(&mut consumer, "result", "0");
        lab.assert_allowed();
    }
}

#[test]
fn frames_are_forwarded_by_descriptor() {
    let lab = Lab::new();
    let (mut producer, mut relay, mut consumer) = lab.chain("vmm");
    let late = lab.machine.hold(Some(relay.pid()));
    for _ in 0..3 {
        assert!(ask(&mut producer, "publish").starts_with("published"));
        run(&mut relay, "pass", "passed");
        assert!(ask(&mut consumer, "take").starts_with("took"));
        run(&mut consumer, "result", "0");
    }
    lab.assert_calls(&relay, &["cuMemcpyDtoDAsync_v2", "cuMemcpyDtoHAsync_v2"], 0);
    drop(late);
    // The frame belongs to the first pool, so it stays valid when the relay is killed.
    assert!(ask(&mut producer, "publish").starts_with("published"));
    run(&mut relay, "pass", "passed");
    assert!(ask(&mut consumer, "hold").starts_with("holds"));
    relay.kill();
    run(&mut producer, "publish 100", "published");
    run(&mut producer, "finish", "finished");
    looks(&mut consumer);
    lab.assert_allowed();
}

/// The first owner frees its memory while a consumer of the second pool has the frame and its memory open.
fn copied(mode: &str, publish: &str) {
    let lab = Lab::new();
    let (mut producer, mut relay, mut consumer) = lab.chain(mode);
    if publish == "publish borrowed" {
        run(&mut producer, "borrow", "borrowed");
    }
    assert!(ask(&mut producer, publish).starts_with("published"));
    run(&mut relay, "pass", "copied");
    assert!(ask(&mut consumer, "hold").starts_with("holds"));
    if publish == "publish borrowed" {
        run(&mut producer, "release", "released");
        run(&mut producer, "publish 3", "published");
        relay.kill();
        comes_back(&mut producer);
    } else {
        relay.kill();
        run(&mut producer, "close", "closed");
        eventually("it is freed", || count(&mut producer, "freed") > 0);
    }
    looks(&mut consumer);
    lab.assert_allowed();
}

#[test]
fn frames_in_memory_that_dies_with_its_producer_are_copied() {
    copied("legacy", "publish");
}

#[test]
fn frames_in_foreign_memory_are_copied() {
    copied("auto", "publish borrowed");
}

#[test]
fn a_producer_of_legacy_memory_waits_at_its_end_for_consumers() {
    let lab = Lab::new();
    let (mut producer, mut consumer) = lab.begun("legacy");
    run(&mut producer, "close", "closed");
    // It was opened, and is closed before it is freed.
    eventually("it is freed", || count(&mut producer, "freed") > 0);
    assert_eq!(count(&mut consumer, "imports"), 1);
    assert_eq!(count(&mut consumer, "closed"), 1);
    lab.assert_allowed();
}

#[track_caller]
fn stopped_with_nothing_held(producer: &mut Child, consumer: &mut Child) {
    eventually("it holds nothing", || {
        ask(producer, "consumers") == "0 legacy"
    });
    consumer.stop();
}

/// Closes the producer's pool, which reports that this consumer still uses its memory.
#[track_caller]
fn closes_in_vain(producer: &mut Child, consumer: &Child) {
    producer.send("close");
    let reply = producer.reply();
    let who = format!("process {}", consumer.pid());
    assert_contains(&reply, "release-timeout");
    assert_contains(&reply, &who);
    assert_eq!(producer.reply(), "closed");
}

#[test]
fn legacy_memory_that_a_stopped_consumer_has_open_is_not_freed() {
    let lab = Lab::new();
    let (mut producer, mut consumer) = lab.begun("legacy 64 hasty");
    stopped_with_nothing_held(&mut producer, &mut consumer);
    closes_in_vain(&mut producer, &consumer);
    assert_eq!(count(&mut producer, "freed"), 0);
    consumer.go_on();
}

#[test]
fn a_producer_of_legacy_memory_times_out_and_names_the_consumer() {
    let lab = Lab::new();
    let (mut producer, mut consumer) = lab.pair("legacy 64 hasty");
    run(&mut producer, "publish", "published 0");
    run(&mut consumer, "hold", "holds 0 Some(Legacy)");
    consumer.stop();
    closes_in_vain(&mut producer, &consumer);
    // Memory that a live process holds is not freed.
    assert_eq!(count(&mut producer, "freed"), 0);
    consumer.go_on();
    looks(&mut consumer);
    lab.assert_allowed();
}

#[test]
fn legacy_memory_that_is_open_but_not_held_is_not_freed() {
    let lab = Lab::new();
    let (mut producer, mut consumer) = lab.pair("legacy 64 hasty");
    // The producer has a lease of its own, so the region is not removed.
    run(&mut producer, "keep", "kept");
    run(&mut consumer, "take", "took 0");
    run(&mut consumer, "result", "0");
    stopped_with_nothing_held(&mut producer, &mut consumer);
    closes_in_vain(&mut producer, &consumer);
    run(&mut producer, "forget", "forgot");
    assert_eq!(count(&mut producer, "freed"), 0);
    consumer.go_on();
}

#[test]
fn upstreams_release_hook_runs_when_the_pool_is_gone() {
    let lab = Lab::new();
    let (mut producer, mut consumer) = lab.pair("auto 64 hasty");
    take_borrowed(&mut producer, &mut consumer);
    run(&mut consumer, "result", "0");
    stopped_with_nothing_held(&mut producer, &mut consumer);
    run(&mut producer, "release", "released");
    run(&mut producer, "publish", "published 1");
    assert_eq!(ask(&mut producer, "released"), "false");
    producer.send("close");
    assert!(producer.reply().contains("release-timeout"));
    assert_eq!(producer.reply(), "closed");
    consumer.kill();
    run(&mut producer, "released", "true");
}

#[test]
fn foreign_memory_that_was_never_opened_is_released_at_once() {
    let lab = Lab::new();
    let (mut producer, mut consumer) = lab.pair("auto");
    run(&mut producer, "borrow", "borrowed");
    run(&mut producer, "publish borrowed", "published");
    eventually("it is there", || ask(&mut consumer, "take now") == "took");
    run(&mut producer, "release", "released");
    // The frames have also left the history.
    run(&mut producer, "publish 3", "published");
    comes_back(&mut producer);
    assert_eq!(count(&mut consumer, "imports"), 0);
    lab.assert_allowed();
}

/// A consumer in the same process opens no memory that would have to be closed.
#[test]
fn a_consumer_in_the_producers_process_is_not_waited_for_either() {
    let lab = Lab::new();
    assert_eq!(lab.start("alone").reply(), "gone");
    lab.assert_allowed();
}
