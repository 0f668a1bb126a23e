// SPDX-License-Identifier: MPL-2.0

//! Frames are passed between processes while devices are late.

use xmem_cuda_standin::Machine;

use crate::lab::{Lab, ask, first_round, looks, run, until_reply};
use crate::support::eventually;

/// Functions that import memory of other processes.
const IMPORTS: [&str; 4] = [
    "cuMemImportFromShareableHandle",
    "cuIpcOpenMemHandle_v2",
    "cuIpcOpenEventHandle",
    "cuMemMap",
];
/// Functions that copy, or in which a CPU waits.
const WAITS_AND_COPIES: [&str; 9] = [
    "cuStreamSynchronize",
    "cuCtxSynchronize",
    "cuEventSynchronize",
    "cuMemcpyHtoD_v2",
    "cuMemcpyDtoH_v2",
    "cuMemcpyHtoDAsync_v2",
    "cuMemcpyDtoHAsync_v2",
    "cuMemcpyDtoDAsync_v2",
    "cuMemcpyPeerAsync",
];

fn consumers_wait_for_the_producers_write(mode: &str) {
    let lab = Lab::new();
    let (mut producer, mut consumer) = lab.pair(mode);

    first_round(&mut producer, &mut consumer);
    let late = lab.machine.hold(Some(producer.pid()));
    run(&mut producer, "publish", "published 1");
    // The frame is received before its bytes are written. Only the stream waits.
    run(&mut consumer, "take", "took 1");
    assert_eq!(ask(&mut consumer, "done"), "false");
    drop(late);
    run(&mut consumer, "result", "0");
    lab.assert_allowed();
}

#[test]
fn a_slot_that_a_device_still_writes_is_not_ready() {
    let lab = Lab::new();
    let mut producer = lab.ready("produce vmm 8");
    run(&mut producer, "publish 20", "published");
    run(&mut producer, "finish", "finished");
    let late = lab.machine.hold(Some(producer.pid()));
    // These frames are not taken, so their slots are reused.
    run(&mut producer, "publish 20", "published");
    run(&mut producer, "publish done", "published");
    let mut consumer = lab.ready("consume");
    run(&mut consumer, "hold", "holds 5000 Some(Vmm)");
    run(&mut consumer, "ready", "false");
    drop(late);
    run(&mut consumer, "sync", "syncs");
    assert_eq!(consumer.reply(), "synced");
    // Afterwards there is nothing to wait for.
    run(&mut producer, "finish", "finished");
    run(&mut producer, "publish done", "published");
    run(&mut consumer, "hold", "holds 5000 Some(Vmm)");
    run(&mut consumer, "ready", "true");
    lab.assert_allowed();
}

#[test]
fn consumers_wait_for_the_producers_write_by_descriptor() {
    consumers_wait_for_the_producers_write("vmm");
}

#[test]
fn consumers_wait_for_the_producers_write_by_legacy_handle() {
    consumers_wait_for_the_producers_write("legacy");
}

#[test]
fn no_slot_is_written_while_a_kernel_reads_it() {
    let lab = Lab::new();
    let (mut producer, mut consumer) = lab.begun("auto 16");

    let late = lab.machine.hold(Some(consumer.pid()));
    run(&mut producer, "publish", "published 1");
    run(&mut consumer, "take", "took 1");
    // Every other slot is used several times.
    run(&mut producer, "publish 100", "published");
    run(&mut producer, "finish", "finished");
    until_reply(&mut producer, "consumers", "1 vmm");
    drop(late);
    run(&mut consumer, "result", "0");
    eventually("the lease ends with the stream", || {
        ask(&mut producer, "consumers") == "0 vmm"
    });
    lab.assert_allowed();
}

#[test]
fn nothing_is_copied_imported_or_waited_for_after_the_first_round() {
    let lab = Lab::new();
    let (mut producer, mut consumer) = lab.pair("auto 16");
    let pids = [producer.pid(), consumer.pid()];
    let calls = || {
        let pids = pids.iter().filter(|_| !Machine::is_real());
        pids.map(|pid| {
            let calls = lab.machine.calls(*pid);
            let mut counted = calls.into_iter().collect::<Vec<_>>();
            counted.retain(|(name, _)| {
                IMPORTS.contains(&&**name) || WAITS_AND_COPIES.contains(&&**name)
            });
            counted
        })
        .collect::<Vec<_>>()
    };
    // The number of slots in use depends on the delay of the devices, and each slot is new once.
    let mut seen = Vec::new();
    let settled = (0..5).any(|_| {
        for _ in 0..100 {
            assert!(ask(&mut producer, "publish").starts_with("published"));
            assert!(ask(&mut consumer, "take").starts_with("took"));
        }
        seen.push((
            calls(),
            ask(&mut producer, "counts"),
            ask(&mut consumer, "counts"),
        ));
        matches!(&seen[..], [.., before, after] if before == after)
    });
    assert!(settled, "{seen:#?}");
    if !Machine::is_real() {
        let (counted, ..) = seen.last().unwrap();
        assert!(!counted[1].is_empty(), "the calls are counted");
        assert!(lab.calls(&consumer, &["cuStreamWaitEvent"]) >= Some(100));
    }
    run(&mut consumer, "result", "0");
    lab.assert_allowed();
}

#[test]
fn attachments_of_a_republished_frame_have_the_requested_room() {
    let lab = Lab::new();
    let (mut producer, mut consumer) = lab.pair("auto");
    run(&mut producer, "publish twice", "published");
    run(&mut consumer, "hold", "holds 0 Some(Vmm)");
    run(&mut consumer, "note", "Some(100)");
    looks(&mut consumer);
    lab.assert_allowed();
}

#[test]
fn eight_consumers_need_no_more_device_memory_than_one() {
    let lab = Lab::new();
    let mut producer = lab.ready("produce auto 128");
    let mut consumers: Vec<_> = (0..8).map(|_| lab.start("consume")).collect();
    let own: Vec<String> = consumers
        .iter_mut()
        .map(|consumer| consumer.reply())
        .collect();
    assert_eq!(own, ["ready"; 8]);
    run(&mut producer, "publish", "published 0");
    run(&mut producer, "finish", "finished");
    let before = lab.machine.used_memory(0);
    for consumer in &mut consumers {
        run(consumer, "take", "took 0");
        run(consumer, "result", "0");
    }
    assert_eq!(lab.machine.used_memory(0), before);
    assert!(before > 0);
    lab.assert_allowed();
}

#[test]
fn streams_of_frames_are_intact() {
    for mode in ["vmm", "legacy"] {
        let lab = Lab::new();
        let mut producer = lab.ready(&format!("produce {mode} 24"));
        let mut consumers: Vec<_> = (0..2).map(|_| lab.start("consume")).collect();
        for consumer in &mut consumers {
            assert_eq!(consumer.reply(), "ready");
            consumer.send("take to 399");
        }
        producer.send("publish 400");
        for consumer in &mut consumers {
            assert_eq!(consumer.reply(), "took");
            run(consumer, "result", "0");
        }
        lab.assert_allowed();
    }
}
