// SPDX-License-Identifier: MPL-2.0

//! The cost of a frame: no copy, no allocation, no import, and no wait of the CPU for a device.

use gst_video::VideoFormat::Nv12;

use crate::lab::{Actor, Lab, consumer, producer};
use crate::pictures::caps;
use crate::support::LOSSLESS;

/// The functions that allocate, open or copy memory, or let the CPU wait.
const COSTLY: &str = "\
    cuMemAlloc_v2 cuMemAllocPitch_v2 cuMemAllocAsync cuMemAllocHost_v2 cuMemFree_v2 cuMemFreeAsync \
    cuMemFreeHost cuMemCreate cuMemMap cuMemUnmap cuMemHostRegister_v2 \
    cuMemImportFromShareableHandle cuMemExportToShareableHandle cuIpcGetMemHandle \
    cuIpcOpenMemHandle_v2 cuIpcCloseMemHandle cuIpcOpenEventHandle cuIpcGetEventHandle cuEventCreate \
    cuEventDestroy_v2 cuStreamCreate cuStreamDestroy_v2 cuCtxSynchronize cuStreamSynchronize \
    cuEventSynchronize cuMemcpyDtoD_v2 cuMemcpyDtoDAsync_v2 cuMemcpyDtoH_v2 cuMemcpyDtoHAsync_v2 \
    cuMemcpyHtoD_v2 cuMemcpyHtoDAsync_v2 cuMemcpy2D_v2 cuMemcpy2DAsync_v2 cuMemcpyPeerAsync";

/// The number of calls of each of these functions.
fn costs(lab: &Lab, actor: &Actor) -> Vec<(&'static str, u64)> {
    let calls = lab.machine.calls(actor.pid());
    let of = |name| (name, calls.get(name).copied().unwrap_or(0));
    COSTLY.split_whitespace().map(of).collect()
}

/// The increase since then.
fn since(before: &[(&'static str, u64)], now: &[(&'static str, u64)]) -> Vec<(&'static str, u64)> {
    let more = before
        .iter()
        .zip(now)
        .map(|((name, before), (_, now))| (*name, now - before));
    let mut more: Vec<_> = more.filter(|(_, count)| *count > 0).collect();
    // On a slow machine, a context for which leases wait is queried once per second with a new event.
    let count = |of| {
        more.iter()
            .find(|(name, _)| *name == of)
            .map(|(_, count)| *count)
    };
    let made = count("cuEventCreate");
    if made == count("cuEventDestroy_v2") && made.is_some_and(|made| made < u64::from(FRAMES) / 8) {
        more.retain(|(name, _)| !name.starts_with("cuEvent"));
    }
    more
}

const EVENT: &str = "cuIpcOpenEventHandle";
const WARM: u8 = 40;
const FRAMES: u8 = 200;

/// The cost of a frame in a pipeline without xmemsink, after the first frames.
fn costs_without_us(lab: &Lab) -> Vec<(&'static str, u64)> {
    let mut other = lab.launch(&format!(
        "appsrc name=in format=time caps=\"{}\" ! cudaupload ! video/x-raw(memory:CUDAMemory) \
         ! appsink name=app sync=false max-buffers=1 enable-last-sample=false",
        caps(Nv12, 320, 240)
    ));
    let mut pass = |numbers: std::ops::Range<u8>| {
        for number in numbers {
            other.push(number);
            other.run(&format!("take {number}"), "ok");
            other.drops(number);
        }
        costs(lab, &other)
    };
    let before = pass(0..WARM);
    since(&before, &pass(WARM..FRAMES))
}

fn costs_nothing(sink: &str, way: &str) {
    let Some(lab) = Lab::new() else { return };
    let without = costs_without_us(&lab);
    let mut sender = lab.actor();
    let pipeline = producer(
        &caps(Nv12, 320, 240),
        &format!("{LOSSLESS} copy=forbid {sink}"),
    );
    sender.run(&format!("prepare {pipeline}"), "ok");
    sender.run("watch sink sink", "ok");
    sender.run("play", "ok");
    let mut receivers = [lab.consumer("", ""), lab.consumer("", "")];
    sender.until_stat("sink", "num-clients", 2);
    for receiver in &mut receivers {
        receiver.run("watch app sink", "ok");
    }
    let mut pass = |numbers: std::ops::Range<u8>| {
        for number in numbers {
            sender.push(number);
            for receiver in &mut receivers {
                receiver.run(&format!("take {number}"), "ok");
                receiver.drops(number);
            }
            // Otherwise the number of frames in flight would vary.
            sender.until_at_most("sink", "slots-held", 4);
        }
        let receivers = receivers.each_ref().map(|receiver| costs(&lab, receiver));
        (costs(&lab, &sender), receivers)
    };
    let (sent, received) = pass(0..WARM);
    let (sent_then, received_then) = pass(WARM..FRAMES);
    // The copies of cudaupload.
    assert_eq!(since(&sent, &sent_then), without);
    for (before, then) in received.iter().zip(&received_then) {
        // A slot's event is opened at its first use, and some slots are first used later.
        let mut more = since(before, then);
        more.retain(|(name, _)| *name != EVENT);
        assert_eq!(more, []);
    }

    let frames = u64::from(FRAMES);
    sender.until_stat("sink", "published", frames);
    assert_eq!(sender.stat("sink", "zero-copy"), frames);
    assert_eq!(sender.stat("sink", "copied"), 0);
    // Each slot has one memory, for all its frames.
    assert_eq!(sender.number("seen sink buffers"), frames);
    let slots = sender.number("seen sink addresses");
    assert!(
        (1..=sender.stat("sink", "slots")).contains(&slots),
        "{slots}"
    );
    assert_eq!(sender.number("seen sink memories"), slots);
    for receiver in &mut receivers {
        assert_eq!(receiver.stat("src", "zero-copy"), frames);
        assert_eq!(receiver.stat("src", "copied"), 0);
        assert_eq!(receiver.ask("stat src device"), way);
        let seen = receiver.number("seen app addresses");
        assert!((1..=slots).contains(&seen), "{seen} of {slots}");
        assert_eq!(receiver.number("seen app memories"), seen);
        assert!(lab.calls(receiver, &[EVENT]) <= slots);
    }
    lab.assert_allowed();
}

#[test]
fn frames_in_slots_by_descriptor_cost_nothing() {
    costs_nothing("", "vmm");
}

#[test]
fn frames_in_slots_by_handle_cost_nothing() {
    costs_nothing("cuda-ipc-mode=legacy", "legacy");
}

#[test]
fn the_same_process_gets_the_slot_itself() {
    let Some(lab) = Lab::new() else { return };
    let mut actor = lab.actor();
    let sink = producer(&caps(Nv12, 320, 240), &format!("{LOSSLESS} copy=forbid"));
    actor.run(&format!("prepare {sink}"), "ok");
    actor.run("watch sink sink", "ok");
    actor.run("play", "ok");
    actor.run(&format!("second {}", consumer("", "")), "ok");
    actor.push(1);
    actor.takes(1);
    let address = actor.ask("address 1");
    assert_eq!(actor.ask("seen sink address"), address);
    assert_eq!(actor.ask("stat src device"), "same process");
    lab.assert_allowed();
}
