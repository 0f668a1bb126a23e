// SPDX-License-Identifier: MPL-2.0

//! Drivers, devices and processes that do not support CUDA: error messages, and the behaviour of the rest of the pool.

use crate::lab::{Lab, ask, looks, run, until_released, until_reply};
use crate::support::child::Child;
use crate::support::{Place, assert_contains, eventually};

/// Asserts that frames in host memory still arrive.
#[track_caller]
fn host_frames_go_on(producer: &mut Child, consumer: &mut Child) {
    run(producer, "publish host", "published");
    run(
        consumer,
        "take host",
        "this frame is in host memory: read it there",
    );
}

#[test]
fn without_a_driver_all_else_works() {
    let place = Place::new();
    // An installed driver must not be found.
    let mut command = std::process::Command::new(std::env::current_exe().unwrap());
    command.env("CUDA_VISIBLE_DEVICES", "");
    let mut child = Child::from(command, "without-driver", &place.pool());
    let reply = child.reply();
    assert_contains(&reply, "there is no usable CUDA driver");
    assert!(child.ends());
}

#[test]
fn a_consumer_without_a_driver_holds_frames_and_gets_a_read_error() {
    let lab = Lab::new();
    lab.machine.only_here("a machine without a driver");
    let mut producer = lab.ready("produce auto");
    // Without the machine's variables.
    let mut consumer = Child::start("only-hold", &lab.pool()).ready();
    run(&mut producer, "publish", "published 0");
    let reply = consumer.reply();
    assert_contains(&reply, "there is no usable CUDA driver");
    assert_contains(&reply, "libcuda.so.1");
    until_reply(
        &mut producer,
        "consumers",
        "1 none: there is no usable CUDA driver",
    );
    run(&mut consumer, "drop", "dropped");
    until_released(&mut producer);
}

#[test]
fn a_driver_that_cannot_share_by_descriptor_shares_by_handle() {
    for lab in [
        Lab::new().without_symbols(&["cuMemCreate"]),
        Lab::new().without_symbols(&["cuMemExportToShareableHandle"]),
        Lab::new().with("QUIRKS", "no-vmm"),
        Lab::new().with("QUIRKS", "no-posix-fd"),
    ] {
        let (mut producer, mut consumer) = lab.pair("auto");
        run(&mut producer, "publish", "published 0");
        run(&mut consumer, "device", "");
        run(&mut consumer, "hold", "holds 0 Some(Legacy)");
        looks(&mut consumer);
        run(&mut consumer, "device", "legacy");
        until_reply(&mut producer, "consumers", "1 legacy");
        lab.assert_allowed();
    }
    let lab = Lab::new().without_symbols(&["cuMemCreate"]);
    let (mut producer, mut consumer) = lab.pair("vmm");
    let reply = ask(&mut producer, "publish");
    assert_eq!(
        reply,
        "the CUDA driver is too old, because it has no cuMemCreate: update it"
    );
    host_frames_go_on(&mut producer, &mut consumer);
}

#[test]
fn a_missing_driver_function_is_named_and_the_frame_released() {
    let lab = Lab::new().without_symbols(&["cuLaunchHostFunc"]);
    let (mut producer, mut consumer) = lab.pair("auto");
    run(&mut producer, "publish", "published 0");
    let reply = ask(&mut consumer, "take");
    assert_eq!(
        reply,
        "the CUDA driver is too old, because it has no cuLaunchHostFunc: update it"
    );
    host_frames_go_on(&mut producer, &mut consumer);

    let lab = Lab::new().without_symbols(&["cuEventCreate"]);
    // Without events, frames are published when the device has finished them.
    lab.begun("auto");
}

#[test]
fn without_interprocess_events_frames_are_published_when_they_are_done() {
    for quirk in ["no-ipc-events", "out-of-ipc-events"] {
        let lab = Lab::new().with("QUIRKS", quirk);
        frames_go(&lab, lab.pair("auto"));
    }
}

#[test]
fn frames_reach_a_consumer_that_cannot_open_events() {
    for quirk in ["no-ipc-events", "out-of-ipc-events"] {
        let lab = Lab::new();
        let producer = lab.ready("produce vmm 16");
        let consumer = lab.ready_with("consume", "XMEM_STANDIN_QUIRKS", quirk);
        frames_go(&lab, (producer, consumer));
    }
}

/// Asserts that five frames arrive unchanged and without forbidden calls.
fn frames_go(lab: &Lab, (mut producer, mut consumer): (Child, Child)) {
    for number in 0..5 {
        run(&mut producer, "publish", &format!("published {number}"));
        run(&mut consumer, "take", &format!("took {number}"));
    }
    run(&mut consumer, "result", "0");
    lab.assert_allowed();
}

#[test]
fn devices_are_identified_by_uuid() {
    let lab = Lab::new();
    lab.machine.only_here("two devices");
    let mut producer = lab.ready("produce auto");
    // The same device has another ordinal in that process.
    let mut other = lab.ready_with("consume 1", "CUDA_VISIBLE_DEVICES", "1,0");
    // The device is not visible in that process.
    let mut blind = lab.ready_with("only-hold", "CUDA_VISIBLE_DEVICES", "1");
    run(&mut producer, "publish", "published 0");
    run(&mut other, "take", "took 0");
    run(&mut other, "result", "0");
    let reply = blind.reply();
    assert_contains(&reply, "which this process cannot see");
    assert_contains(&reply, "GPU-");
    until_reply(
        &mut producer,
        "consumers",
        "none: the frame is on device GPU-",
    );
    lab.assert_allowed();
}

#[test]
fn handles_that_cannot_be_opened_are_reported_on_both_sides() {
    for (mode, quirk) in [("legacy", "no-legacy-ipc"), ("vmm", "no-vmm")] {
        let lab = Lab::new();
        let mut producer = lab.ready(&format!("produce {mode}"));
        // As with different PID namespaces: one process can export, the other cannot open.
        let mut consumer = lab.ready_with("consume", "XMEM_STANDIN_QUIRKS", quirk);
        run(&mut producer, "publish", "published 0");
        let reply = ask(&mut consumer, "take");
        assert_contains(&reply, "the frame's device memory cannot be used here");
        let why = "none: the frame's device memory cannot be used here";
        until_reply(&mut producer, "consumers", why);
        until_reply(&mut consumer, "device", why);
        host_frames_go_on(&mut producer, &mut consumer);
    }
}

#[test]
fn drivers_that_cannot_protect_frames_from_consumers_share_them_all_the_same() {
    let lab = Lab::new().with("QUIRKS", "no-vmm-read-only");
    let _pair = lab.begun("vmm");
    lab.assert_allowed();
}

#[test]
fn out_of_device_memory_is_an_error_and_the_pool_goes_on() {
    // Memory for one region, and for the processes themselves.
    let lab = Lab::new().with("MEMORY", 8 << 20);
    let (mut producer, mut consumer) = lab.pair("auto 64");
    run(&mut producer, "publish", "published 0");
    let mut last = String::new();
    for _ in 0..64 {
        last = ask(&mut producer, "keep");
        if last != "kept" {
            break;
        }
    }
    assert_contains(&last, "the device has no room for");
    host_frames_go_on_from_newest(&mut producer, &mut consumer);
    // The kept frames are released, so memory is free again.
    run(&mut producer, "forget", "forgot");
    assert!(ask(&mut producer, "publish").starts_with("published"));
    lab.assert_allowed();
}

/// As `host_frames_go_on`, for a consumer that has missed frames.
#[track_caller]
fn host_frames_go_on_from_newest(producer: &mut Child, consumer: &mut Child) {
    run(producer, "publish host", "published");
    run(consumer, "skip to host", "skipped");
}

#[test]
fn a_context_in_error_releases_its_leases() {
    let lab = Lab::new();
    let (mut producer, mut consumer) = lab.begun("auto");
    let late = lab.machine.hold(Some(consumer.pid()));
    run(&mut consumer, "trap", "trapped");
    run(&mut producer, "publish", "published 1");
    run(&mut consumer, "take", "took 1");
    run(&mut producer, "publish", "published 2");
    run(&mut consumer, "word", "has a word");
    assert!(ask(&mut producer, "consumers").starts_with('2'));
    drop(late);
    // No host function or other work runs in it.
    until_released(&mut producer);
    run(&mut producer, "publish", "published 3");
    let reply = ask(&mut consumer, "take");
    assert_contains(&reply, "is in error");
    assert_contains(&reply, "start the process again");
    host_frames_go_on(&mut producer, &mut consumer);
    // It ends without hanging.
    run(&mut consumer, "leave", "left");
    assert!(consumer.end());
    run(&mut producer, "publish 50", "published");
    lab.assert_allowed();
}

#[test]
fn a_context_in_error_ends_no_lease_of_another_context() {
    let lab = Lab::new();
    let (mut producer, mut consumer) = lab.pair("auto");
    run(&mut producer, "publish", "published 0");
    run(&mut consumer, "elsewhere", "elsewhere");
    let late = lab.machine.hold(Some(consumer.pid()));
    run(&mut consumer, "trap", "trapped");
    run(&mut producer, "publish", "published 1");
    run(&mut consumer, "hold", "holds 1 Some(Vmm)");
    drop(late);
    eventually("its context is in error", || {
        let reply = ask(&mut consumer, "wait");
        reply.contains("is in error")
    });
    run(&mut consumer, "drop", "dropped");
    assert!(ask(&mut producer, "consumers").starts_with('1'));
    run(&mut consumer, "go-on", "goes on");
    until_released(&mut producer);
    lab.assert_allowed();
}

#[test]
fn a_failed_context_is_noticed_without_a_further_call() {
    for place in ["", "elsewhere"] {
        let lab = Lab::new();
        let (mut producer, mut consumer) = lab.begun(&format!("auto 16 {place}"));
        let late = lab.machine.hold(Some(producer.pid()));
        run(&mut producer, "trap", "trapped");
        run(&mut producer, "publish", "published 1");
        run(&mut consumer, "hold", "holds 1 Some(Vmm)");
        run(&mut consumer, "sync", "syncs");
        drop(late);
        assert!(consumer.reply().contains("could not finish"));
        run(&mut producer, "close", "closed");
        assert!(producer.end());
        lab.assert_allowed();
    }
}

#[test]
fn a_producer_with_a_context_in_error_reports_it_and_ends() {
    let lab = Lab::new();
    let (mut producer, mut consumer) = lab.begun("auto");
    let late = lab.machine.hold(Some(producer.pid()));
    run(&mut producer, "trap", "trapped");
    run(&mut producer, "publish", "published 1");
    run(&mut consumer, "hold", "holds 1 Some(Vmm)");
    drop(late);
    eventually("it reports it", || {
        ask(&mut producer, "publish plain").contains("is in error")
    });
    // Its work never completes.
    run(
        &mut consumer,
        "look",
        "a kernel of the frame's producer failed, so it could not finish the frame: drop the frame",
    );
    run(&mut consumer, "sync", "syncs");
    assert!(consumer.reply().contains("could not finish"));
    // Its host memory still works.
    run(&mut producer, "publish host", "published");
    run(&mut producer, "close", "closed");
    assert!(producer.end());
}
