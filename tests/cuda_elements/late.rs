// SPDX-License-Identifier: MPL-2.0

//! Devices that are late: only processes that need the bytes wait for them.

use gst_video::VideoFormat::{self, Nv12};

use crate::lab::{Actor, COPIES, Lab, consumer};
use crate::pictures::caps;
use crate::support::{LOSSLESS, assert_contains, until};

/// A source of CUDA memory with a stream: GStreamer's own pool (`stream`), or the one that the sink offers.
fn on_a_stream(lab: &Lab, kind: &str, sink: &str) -> Actor {
    let mut producer = lab.actor();
    start_on_a_stream(&mut producer, Nv12, kind, sink);
    producer
}

pub fn start_on_a_stream(producer: &mut Actor, format: VideoFormat, kind: &str, sink: &str) {
    let caps = caps(format, 320, 240).replace("video/x-raw", "video/x-raw(memory:CUDAMemory)");
    producer.run(
        &format!(
            "launch appsrc name=in format=time caps=\"{caps}\" ! xmemsink name=sink pool=POOL sync=false {sink}"
        ),
        "ok",
    );
    producer.run(&format!("pool {kind}"), "ok");
}

/// A frame is passed on before the device has written it. Every reader waits for the device.
fn handed_on_before_it_is_written(kind: &str) {
    let Some(lab) = Lab::new() else { return };
    let mut producer = on_a_stream(&lab, kind, &format!("{LOSSLESS} copy=forbid"));
    let mut consumers = lab.consumers();
    producer.until_stat("sink", "num-clients", 3);
    // Imports all memory before anything is delayed.
    for number in 0..8 {
        producer.run(&format!("paint {number}"), "ok");
        producer.run("push-painted", "ok");
        for consumer in &mut consumers {
            consumer.passes(number);
        }
    }
    let mut pass = |producer: &mut Actor, number: u8| {
        producer.run(&format!("paint {number}"), "ok");
        let held = lab.machine.hold(Some(producer.pid()));
        producer.run("push-painted", "ok");
        producer.until_stat("sink", "published", u64::from(number) + 1);
        // Receiving a frame does not wait on the CPU.
        consumers[0].run(&format!("take {number}"), "ok");
        let waits = ["cuStreamSynchronize"];
        let before = lab.calls(&consumers[0], &waits);
        consumers[0].0.send(&format!("check {number}"));
        consumers[1].0.send(&format!("take {number}"));
        consumers[2].0.send(&format!("take {number}"));
        until("the first one reads", || {
            lab.calls(&consumers[0], &waits) > before
        });
        // A process that does not wait would have read the frame before another process has started.
        drop(lab.actor());
        drop(held);
        assert_eq!(consumers[0].0.reply(), "same");
        for consumer in &mut consumers[1..] {
            assert_eq!(consumer.0.reply(), "ok");
            consumer.has(number);
        }
        for consumer in &mut consumers {
            consumer.drops(number);
        }
    };
    for number in 8..20 {
        pass(&mut producer, number);
    }
    assert_eq!(producer.stat("sink", "copied"), 0);
    lab.assert_allowed();
}

#[test]
fn frames_in_slots_are_handed_on_before_they_are_written() {
    handed_on_before_it_is_written("offered");
}

#[test]
fn frames_in_upstreams_memory_are_handed_on_before_they_are_written() {
    handed_on_before_it_is_written("stream");
}

/// Pushes a frame that the device is to write, and waits until it is published and a slot is free.
fn push(producer: &mut Actor, number: u8) {
    producer.run(&format!("paint {number}"), "ok");
    producer.run("push-painted", "ok");
    producer.until_stat("sink", "published", u64::from(number) + 1);
    // Of 16 slots.
    producer.until_at_most("sink", "slots-held", 11);
}

/// The CPU waits for the device while the pipeline is paused.
#[test]
fn a_frame_with_a_wait_during_a_pause_is_counted() {
    // An appsink keeps a reference to its last frame, which is a copy or in its slot.
    for (waits, kept) in [("download=true", 0), ("cuda-wait=cpu", 1)] {
        let Some(lab) = Lab::new() else { return };
        let mut producer = on_a_stream(&lab, "stream", LOSSLESS);
        let mut consumer = lab.consumer(waits, "");
        producer.until_stat("sink", "num-clients", 1);
        push(&mut producer, 0);
        consumer.passes(0);
        producer.until_stat("sink", "clients-hold", kept);
        producer.run("paint 1", "ok");
        let held = lab.machine.hold(Some(producer.pid()));
        producer.run("push-painted", "ok");
        // The slot is held before its memory is imported. A pause during the import only postpones the frame.
        consumer.until_stat("src", "received", 2);
        consumer.run("state src paused", "ok");
        consumer.until_stat("src", "dropped", 1);
        drop(held);
        consumer.run("state src playing", "ok");
        push(&mut producer, 2);
        consumer.takes(2);
        assert_eq!(consumer.stat("src", "dropped"), 1, "{waits}");
        lab.assert_allowed();
    }
}

/// The stream that reads a frame late.
#[derive(PartialEq)]
enum Reader {
    /// The memory's stream, which is stopped.
    Its,
    /// A separate stream, as in GStreamer's converters. It is not stopped but has other work queued.
    Another,
}

/// A lease ends in the order of the consumer's streams: a slot is not written before a queued kernel has read it.
fn not_written_before_it_is_read(kind: &str, sink: &str, reader: &Reader) {
    let Some(lab) = Lab::new() else { return };
    // Otherwise the pool keeps frames that were not taken in all of its slots, until it needs them.
    let sink = format!("max-slots=16 history=4 {sink} copy=forbid");
    let mut producer = on_a_stream(&lab, kind, &sink);
    let mut consumer = lab.consumer("max-held=4", "").connected();
    push(&mut producer, 0);
    consumer.run("take 0", "ok");
    push(&mut producer, 1);
    // An appsink keeps a reference to its last frame.
    consumer.run("take 1", "ok");
    let held = (*reader == Reader::Its).then(|| lab.machine.hold(Some(consumer.pid())));
    let copy = match reader {
        Reader::Its => "copy-late",
        Reader::Another => "copy-late-elsewhere",
    };
    consumer.run(&format!("{copy} 0"), "ok");
    for number in 2..80 {
        push(&mut producer, number);
    }
    drop(held);
    consumer.run("check-late 0", "same");
    consumer.has(1);
    lab.assert_allowed();
}

/// A copy of a frame past the budget is freed after a queued kernel has read it, also if the driver frees at once.
#[test]
fn a_private_copy_is_not_freed_before_it_is_read() {
    for (copy, is_held) in [("copy-late", true), ("copy-late-elsewhere", false)] {
        let Some(lab) = Lab::new() else { return };
        let lab = lab.with("QUIRKS", "free-does-not-wait");
        let mut producer = on_a_stream(&lab, "stream", "");
        let mut consumer = lab.consumer("max-held=1", "").connected();
        for number in 0..3 {
            push(&mut producer, number);
            consumer.run(&format!("take {number}"), "ok");
        }
        consumer.until_stat("src", "copied", 2);
        let held = is_held.then(|| lab.machine.hold(Some(consumer.pid())));
        consumer.run(&format!("{copy} 1"), "ok");
        // A process that does not wait would have freed it before another process has started.
        drop(lab.actor());
        drop(held);
        consumer.run("check-late 1", "same");
        consumer.has(0);
        lab.assert_allowed();
    }
}

#[test]
fn a_slot_is_not_written_before_another_stream_has_read_it() {
    not_written_before_it_is_read("offered", "", &Reader::Another);
}

#[test]
fn a_slot_is_not_written_before_it_is_read() {
    not_written_before_it_is_read("offered", "", &Reader::Its);
}

#[test]
fn a_slot_by_handle_is_not_written_before_it_is_read() {
    not_written_before_it_is_read("offered", "cuda-ipc-mode=legacy", &Reader::Its);
}

#[test]
fn upstreams_memory_is_not_written_before_it_is_read() {
    // Upstream writes its memories again. Their number is not limited, and each takes a slot.
    not_written_before_it_is_read("stream", "max-slots=100", &Reader::Its);
}

/// The process in the middle copies, because it must not pass on memory that ends with its producer. Its stream is late.
#[test]
fn a_copy_is_made_before_its_source_is_written_again() {
    let Some(lab) = Lab::new() else { return };
    let other = lab.file("q.sock").display().to_string();
    let sink = "cuda-ipc-mode=legacy max-slots=16 history=4";
    let mut producer = on_a_stream(&lab, "offered", sink);
    let mut middle = lab.launch(&format!(
        "xmemsrc name=src pool=POOL max-held=4 ! xmemsink name=sink pool={other} sync=false"
    ));
    let mut last = lab.launch(&consumer("start-from=oldest", "").replace("POOL", &other));
    until("connected", || middle.stat("src", "budget") > 0);
    for number in 0..8 {
        push(&mut producer, number);
        last.passes(number);
    }
    // With its budget used up, the process in the middle would wait for its stream.
    producer.until_stat("sink", "clients-hold", 0);
    assert_eq!(middle.stat("sink", "copied"), 8);
    let held = lab.machine.hold(Some(middle.pid()));
    push(&mut producer, 8);
    middle.until_stat("sink", "published", 9);
    last.run("take 8", "ok");
    (9..80).for_each(|number| push(&mut producer, number));
    drop(held);
    last.has(8);
    lab.assert_allowed();
}

#[test]
fn stream_ordered_memory_is_copied_once() {
    let Some(lab) = Lab::new() else { return };
    let mut producer = on_a_stream(&lab, "ordered", LOSSLESS);
    let mut consumer = lab.consumer("", "");
    for number in 0..50 {
        producer.run(&format!("paint {number}"), "ok");
        producer.run("push-painted", "ok");
        consumer.passes(number);
    }
    assert!(lab.calls(&producer, &["cuMemAllocAsync", "cuMemAllocFromPoolAsync"]) > 0);
    assert_eq!(producer.stat("sink", "copied"), 50);
    assert_eq!(producer.stat("sink", "zero-copy"), 0);
    assert_eq!(lab.calls(&producer, &COPIES), 50);
    drop(producer);
    let mut refusing = on_a_stream(&lab, "ordered", "copy=forbid");
    refusing.run("paint 1", "ok");
    refusing.run("push-painted", "ok");
    let error = refusing.ask("error");
    assert_contains(&error, "copy=forbid");
    assert_contains(&error, "stream-ordered");
    lab.assert_allowed();
}
