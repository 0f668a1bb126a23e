// SPDX-License-Identifier: MPL-2.0

//! Killed processes, and their remaining frames.

use xmem_cuda_standin::{Hold, Machine};

use crate::lab::{Lab, ask, first_round, looks, run, until_reply};
use crate::support::child::Child;
use crate::support::eventually;

#[test]
fn frames_of_a_killed_producer_stay_readable() {
    let lab = Lab::new();
    let (mut producer, mut consumer) = lab.pair("vmm");
    run(&mut producer, "publish", "published 0");
    run(&mut consumer, "hold", "holds 0 Some(Vmm)");
    run(&mut producer, "publish", "published 1");
    run(&mut consumer, "hold", "holds 1 Some(Vmm)");
    run(&mut producer, "finish", "finished");
    producer.kill();
    assert!(!lab.memory_is_free() || Machine::is_real());
    for _ in 0..2 {
        run(&mut consumer, "look", "looks");
        run(&mut consumer, "drop", "dropped");
    }
    run(&mut consumer, "result", "0");
    consumer.kill();
    eventually("the memory goes with the last that has it", || {
        lab.memory_is_free()
    });
    lab.assert_allowed();
}

#[test]
fn a_frame_that_a_killed_producer_did_not_finish_is_refused_and_nothing_hangs() {
    let lab = Lab::new();
    let (mut producer, mut consumer) = lab.begun("vmm");
    let _late = unfinished(&lab, &mut producer, &mut consumer);
    producer.kill();
    eventually("the consumer sees that its producer is gone", || {
        let answer = ask(&mut consumer, "look");
        assert!(
            answer == "looks" || answer.contains("the frame's producer is gone"),
            "{answer}"
        );
        answer != "looks"
    });
    run(&mut consumer, "drop", "dropped");
}

/// The consumer holds frame 1, which the producer's device does not finish while the returned value exists.
#[track_caller]
fn unfinished(lab: &Lab, producer: &mut Child, consumer: &mut Child) -> Hold {
    let late = lab.machine.hold(Some(producer.pid()));
    run(producer, "publish", "published 1");
    run(consumer, "hold", "holds 1 Some(Vmm)");
    late
}

const GONE: &str = "the frame's producer is gone and may not have finished it: drop the frame";

#[test]
fn after_leave_an_unfinished_frame_of_a_killed_producer_is_refused() {
    let lab = Lab::new();
    let (mut producer, mut consumer) = lab.begun("vmm");
    let _late = unfinished(&lab, &mut producer, &mut consumer);
    run(&mut consumer, "leave", "left");
    producer.kill();
    run(&mut consumer, "look", GONE);
    run(&mut consumer, "drop", "dropped");
    lab.assert_allowed();
}

#[test]
fn frames_that_were_left_are_waited_for_while_their_producer_lives() {
    let lab = Lab::new();
    let (mut producer, mut consumer) = lab.begun("vmm");
    let late = unfinished(&lab, &mut producer, &mut consumer);
    run(&mut consumer, "leave", "left");
    // The producer has detected the death.
    run(&mut producer, "publish", "published 2");
    run(&mut consumer, "look", "looks");
    drop(late);
    run(&mut consumer, "result", "0");
    lab.assert_allowed();
}

#[test]
fn a_forwarded_unfinished_frame_of_a_killed_producer_is_refused() {
    let lab = Lab::new();
    let (mut producer, mut relay, mut consumer) = lab.chain("vmm");
    run(&mut producer, "publish", "published 0");
    run(&mut relay, "pass", "passed");
    run(&mut consumer, "take", "took 0");
    run(&mut consumer, "result", "0");
    let _late = lab.machine.hold(Some(producer.pid()));
    run(&mut producer, "publish", "published 1");
    run(&mut relay, "pass", "passed");
    run(&mut consumer, "hold", "holds 1 Some(Vmm)");
    producer.kill();
    run(&mut consumer, "look", GONE);
    run(&mut consumer, "drop", "dropped");
    lab.assert_allowed();
}

#[test]
fn a_wait_for_a_hung_producer_delays_no_other_pool_and_ends_with_it() {
    let lab = Lab::new();
    let second = format!("{}-2", lab.pool());
    let mut producer = lab.ready("produce vmm");
    let mut other = lab.ready_at("produce vmm", &second);
    run(&mut other, "publish", "published 0");
    let mut consumer = lab.ready("consume");
    first_round(&mut producer, &mut consumer);
    let _late = unfinished(&lab, &mut producer, &mut consumer);
    let waits = ["cuEventQuery", "cuStreamWaitEvent"];
    let before = lab.calls(&consumer, &waits);
    run(&mut consumer, "sync", "syncs");
    eventually("it waits", || {
        before.is_none() || lab.calls(&consumer, &waits) > before
    });
    run(&mut consumer, &format!("other {second}"), "took other 0");
    producer.kill();
    assert_eq!(consumer.reply(), GONE);
    lab.assert_allowed();
}

#[test]
fn leases_of_a_killed_consumer_are_released() {
    for how in ["hold", "take", "word"] {
        let lab = Lab::new();
        let (mut producer, mut consumer) = lab.begun("auto");
        let late = lab.machine.hold(Some(consumer.pid()));
        run(&mut producer, "publish", "published 1");
        assert!(!ask(&mut consumer, how).contains("cannot"), "{how}");
        until_reply(&mut producer, "consumers", "1 vmm");
        consumer.kill();
        drop(late);
        eventually("its leases go with it", || {
            ask(&mut producer, "consumers").is_empty()
        });
        // All slots can be used.
        run(&mut producer, "publish 100", "published");
        lab.assert_allowed();
    }
}

#[test]
fn a_producer_that_ends_well_leaves_frames_that_need_no_event() {
    let lab = Lab::new();
    let (mut producer, mut consumer) = lab.pair("vmm");
    run(&mut producer, "publish", "published 0");
    run(&mut consumer, "hold", "holds 0 Some(Vmm)");
    // The device is late, and closing waits for it.
    run(&mut producer, "close", "closed");
    producer.kill();
    looks(&mut consumer);
    lab.assert_allowed();
}

#[test]
fn a_pool_with_a_hung_device_can_be_closed() {
    let lab = Lab::new();
    let mut producer = lab.ready("produce vmm 64 hasty");
    run(&mut producer, "publish", "published 0");
    run(&mut producer, "finish", "finished");
    let late = lab.machine.hold(Some(producer.pid()));
    run(&mut producer, "publish", "published 1");
    producer.send("close");
    assert!(
        producer
            .reply()
            .contains("still writing frames that were published, after release-timeout")
    );
    assert_eq!(producer.reply(), "closed");
    drop(late);
}

#[test]
fn a_forked_child_is_refused() {
    let lab = Lab::new();
    let (mut producer, mut consumer) = lab.pair("auto");
    run(&mut producer, "publish", "published 0");
    run(&mut consumer, "fork", "0");
    run(&mut consumer, "result", "0");
    run(&mut producer, "publish", "published 1");
    run(&mut consumer, "take", "took 1");
    run(&mut consumer, "result", "0");
    lab.assert_allowed();
}
