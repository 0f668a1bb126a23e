// SPDX-License-Identifier: MPL-2.0

//! Streams and memory of contexts that the program created, as GStreamer does, besides the primary context.

use crate::lab::{Lab, ask, first_round, looks, run, until_released};
use crate::support::assert_contains;

#[test]
fn frames_that_are_written_in_another_context_are_waited_for() {
    for (producing, consuming) in [
        ("produce vmm 16 elsewhere", "consume"),
        ("produce legacy 16 elsewhere", "consume elsewhere"),
        ("produce vmm 16", "consume elsewhere"),
    ] {
        let lab = Lab::new();
        let mut producer = lab.ready(producing);
        let mut consumer = lab.ready(consuming);
        first_round(&mut producer, &mut consumer);
        let before = ask(&mut producer, "counts");
        let late = lab.machine.hold(Some(producer.pid()));
        run(&mut producer, "publish", "published 1");
        run(&mut consumer, "take", "took 1");
        run(&mut consumer, "done", "false");
        drop(late);
        run(&mut consumer, "result", "0");
        for number in 2..40 {
            run(&mut producer, "publish", &format!("published {number}"));
            run(&mut consumer, "take", &format!("took {number}"));
        }
        run(&mut consumer, "result", "0");
        // The CPU did not wait, and nothing was copied.
        run(&mut producer, "counts", &before);
        lab.assert_allowed();
    }
}

#[test]
fn a_stream_waits_for_another_one_and_the_cpu_does_not() {
    for producing in ["produce vmm 16", "produce vmm 16 elsewhere"] {
        let lab = Lab::new();
        let mut producer = lab.ready(producing);
        let mut consumer = lab.ready("consume");
        first_round(&mut producer, &mut consumer);
        run(&mut producer, "publish behind", "false");
        run(&mut consumer, "hold", "holds 6000 Some(Vmm)");
        run(&mut producer, "go-on", "goes on");
        run(&mut producer, "wait-for-mark", "is there");
        looks(&mut consumer);
        lab.assert_allowed();
    }
}

#[test]
fn a_blocked_stream_of_another_context_delays_no_other() {
    let lab = Lab::new();
    let (mut producer, mut consumer) = lab.begun("vmm 16 elsewhere");
    run(&mut producer, "publish late", "published");
    run(&mut consumer, "hold", "holds 6000 Some(Vmm)");
    for number in 2..10 {
        run(&mut producer, "publish", &format!("published {number}"));
        run(&mut consumer, "take", &format!("took {}", number - 1));
    }
    run(&mut consumer, "result", "0");
    run(&mut producer, "go-on", "goes on");
    looks(&mut consumer);
    lab.assert_allowed();
}

/// The logger is called without a lock on a region.
#[test]
fn the_logger_of_a_failed_context_may_use_the_pool() {
    let lab = Lab::new();
    let mut producer = lab.ready("produce vmm");
    let reply = ask(&mut producer, "publish from-logger");
    assert_contains(&reply, "is in error");
}

#[test]
fn leases_in_a_failed_context_are_released() {
    let lab = Lab::new();
    let mut producer = lab.ready("produce vmm 16");
    let mut consumer = lab.ready("consume elsewhere");
    first_round(&mut producer, &mut consumer);
    let late = lab.machine.hold(Some(consumer.pid()));
    run(&mut consumer, "trap", "trapped");
    run(&mut producer, "publish", "published 1");
    run(&mut consumer, "take", "took 1");
    assert!(ask(&mut producer, "consumers").starts_with('1'));
    drop(late);
    // The failed context makes no further calls.
    until_released(&mut producer);
    // The failure ends all CUDA work of its process, also in the primary context.
    run(&mut producer, "publish copied all", "published");
    let reply = ask(&mut consumer, "download all");
    assert_contains(&reply, "start the process again");
    lab.assert_allowed();
}

#[test]
fn a_programs_device_memory_is_copied_in_stream_order() {
    for (producing, consuming) in [
        ("produce vmm 16", "consume"),
        ("produce vmm 16 elsewhere", "consume elsewhere"),
        ("produce legacy 16 elsewhere", "consume"),
    ] {
        let lab = Lab::new();
        let mut producer = lab.ready(producing);
        let mut consumer = lab.ready(consuming);
        first_round(&mut producer, &mut consumer);
        let before = ask(&mut producer, "counts");
        for how in ["all", "rows"] {
            let late = lab.machine.hold(Some(producer.pid()));
            run(&mut producer, &format!("publish copied {how}"), "published");
            drop(late);
            run(&mut consumer, &format!("download {how}"), "true");
        }
        assert_eq!(
            ask(&mut producer, "counts"),
            before.replace("copies: 0", "copies: 2"),
            "no CPU waited"
        );
        run(&mut producer, "publish copied all", "published");
        run(&mut consumer, "download some", "true");
        let counts = ask(&mut consumer, "counts");
        assert_contains(&counts, "host_syncs: 3, copies: 3");
        lab.assert_allowed();
    }
}

#[test]
fn a_bad_copy_is_refused_before_the_driver_call() {
    let lab = Lab::new();
    let (mut producer, mut consumer) = lab.pair("vmm 16");
    let outside = "the copy reaches beyond the end of the frame, the slot or the given memory: check the offset and the size";
    run(&mut producer, "publish copied too-much", outside);
    for how in ["host", "pinned"] {
        let reply = ask(&mut producer, &format!("publish copied {how}"));
        assert_contains(&reply, "it is not device memory");
    }
    for how in ["too-much", "rows-too-far"] {
        run(&mut producer, "publish copied all", "published");
        run(&mut consumer, &format!("download {how}"), outside);
    }
    run(&mut producer, "publish copied all", "published");
    run(&mut consumer, "download all", "true");
    lab.assert_allowed();
}
