// SPDX-License-Identifier: MPL-2.0

//! Processes in different PID namespaces, as in containers: legacy handles do not work there, descriptors do.

use xmem_cuda_standin::Machine;

use crate::lab::{Lab, ask, count, first_round, run, until_released, until_reply};
use crate::support::assert_contains;

#[test]
fn legacy_handles_do_not_cross_pid_namespaces_and_both_sides_report_it() {
    let lab = Lab::new();
    let mut producer = lab.ready("produce legacy");
    let Some(mut consumer) = lab.in_pid_namespace("consume") else {
        return;
    };
    run(&mut producer, "publish", "published 0");
    let reply = ask(&mut consumer, "take");
    if Machine::is_real() && reply == "took 0" {
        // Some drivers accept them.
        return eprintln!("DIFFERS: they cross");
    }
    assert_contains(&reply, "for legacy handles share a PID namespace");
    until_reply(
        &mut producer,
        "consumers",
        "none: the frame's device memory cannot be used here",
    );
    run(&mut producer, "publish host", "published");
    assert!(ask(&mut consumer, "take host").contains("this frame is in host memory"));
}

#[test]
fn frames_by_descriptor_cross_pid_namespaces_also_where_events_do_not() {
    for inside in ["producer", "consumer"] {
        let lab = Lab::new();
        let start = |who, role| {
            if who == inside {
                lab.in_pid_namespace(role)
            } else {
                Some(lab.ready(role))
            }
        };
        // A consumer is ready only after it has connected to a producer.
        let Some(mut producer) = start("producer", "produce vmm 16") else {
            return;
        };
        let Some(mut consumer) = start("consumer", "consume") else {
            return;
        };
        first_round(&mut producer, &mut consumer);
        for number in 1..20 {
            run(&mut producer, "publish", &format!("published {number}"));
            run(&mut consumer, "take", &format!("took {number}"));
            // Otherwise the next frame could use another slot in separate memory.
            until_reply(&mut producer, "consumers", "0 vmm");
        }
        run(&mut consumer, "result", "0");
        assert_eq!(count(&mut consumer, "imports"), 1);
        // Closing waits for unfinished work.
        run(&mut producer, "publish late", "published");
        run(&mut consumer, "hold", "holds 6000 Some(Vmm)");
        run(&mut consumer, "ready", "false");
        run(&mut consumer, "sync", "syncs");
        run(&mut producer, "go-on", "goes on");
        assert_eq!(consumer.reply(), "synced");
        run(&mut producer, "publish", "published 21");
        run(&mut consumer, "take", "took 20");
        run(&mut consumer, "result", "0");
        until_released(&mut producer);
        lab.assert_allowed();
    }
}

#[test]
fn a_frame_that_a_killed_producer_in_another_namespace_did_not_finish_is_refused() {
    let lab = Lab::new();
    let Some(mut producer) = lab.in_pid_namespace("produce vmm 16") else {
        return;
    };
    let mut consumer = lab.ready("consume");
    first_round(&mut producer, &mut consumer);
    run(&mut producer, "publish late", "published");
    run(&mut consumer, "hold", "holds 6000 Some(Vmm)");
    run(&mut consumer, "sync", "syncs");
    producer.kill();
    assert!(consumer.reply().contains("the frame's producer is gone"));
    lab.assert_allowed();
}
