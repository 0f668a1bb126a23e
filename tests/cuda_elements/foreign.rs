// SPDX-License-Identifier: MPL-2.0

//! Memory that upstream allocates: shared in place if possible, copied once if not, never freed while it is in use.

use gst_video::VideoFormat::{Bgra, I420, Nv12};

use crate::lab::{Actor, COPIES, Lab, consumer};
use crate::late::start_on_a_stream;
use crate::pictures::caps;
use crate::support::{LOSSLESS, assert_contains, until};

/// Makes cudaupload use its own pool.
fn own_memory(sink: &str) -> String {
    format!(
        "appsrc name=in format=time caps=\"{}\" ! cudaupload name=up ! video/x-raw(memory:CUDAMemory) \
         ! identity drop-allocation=true ! xmemsink name=sink pool=POOL sync=false {sink}",
        caps(Nv12, 320, 240)
    )
}

/// The memory with the canaries of foreign memory exists until the process ends.
const CANARIES: u64 = 2 << 20;

fn only_canaries_are_left(lab: &Lab) {
    until("all memory of frames is freed", || {
        lab.machine.used_memory(0) <= CANARIES
    });
}

/// Passes frames through. Each is released at once.
fn pass(producer: &mut Actor, consumers: &mut [Actor], numbers: std::ops::Range<u8>) {
    for number in numbers {
        producer.push(number);
        for consumer in &mut *consumers {
            consumer.passes(number);
        }
    }
}

#[test]
fn upstreams_memory_is_opened_once_and_not_copied() {
    let Some(lab) = Lab::new() else { return };
    let mut producer = lab.actor();
    let pipeline = own_memory(&format!("{LOSSLESS} copy=forbid"));
    producer.run(&format!("prepare {pipeline}"), "ok");
    producer.run("watch sink sink", "ok");
    producer.run("play", "ok");
    let mut consumers = [lab.consumer("", ""), lab.consumer("", "")];
    producer.until_stat("sink", "num-clients", 2);
    pass(&mut producer, &mut consumers, 0..160);
    // Each of upstream's memories, and a canary for each.
    let memories = producer.number("seen sink addresses");
    for consumer in &consumers {
        let opened = lab.calls(consumer, &["cuIpcOpenMemHandle_v2"]);
        assert!(
            opened <= 2 * memories && memories < 20,
            "{opened} of {memories}"
        );
    }
    assert_eq!(producer.stat("sink", "copied"), 0);
    assert_eq!(producer.stat("sink", "zero-copy"), 160);
    assert_eq!(lab.calls(&producer, &COPIES), 0);
    lab.assert_allowed();
}

#[test]
fn upstreams_memory_is_not_freed_while_a_frame_is_held() {
    let Some(lab) = Lab::new() else { return };
    let mut producer = lab.launch(&own_memory(LOSSLESS));
    let mut consumer = lab.consumer("", "");
    for number in 0..3 {
        producer.push(number);
        consumer.takes(number);
    }
    // cudaupload's pool is freed when the caps change.
    producer.run(&format!("caps {}", caps(I420, 64, 64)), "ok");
    for number in 3..40 {
        producer.push(number);
        consumer.takes(number);
        if number > 5 {
            consumer.drops(number);
        }
    }
    for number in 0..6 {
        consumer.has(number);
    }
    assert_eq!(producer.stat("sink", "copied"), 0);
    // The memory is freed when the last frame is released.
    let before = lab.machine.used_memory(0);
    for number in 0..6 {
        consumer.drops(number);
    }
    producer.push(40);
    consumer.takes(40);
    until("the memory of the first caps is freed", || {
        lab.machine.used_memory(0) <= before - 3 * 320 * 240
    });
    consumer.has(40);
    lab.assert_allowed();
}

/// A process that holds no frame keeps the memory open until it gets the message to close it.
#[test]
fn upstreams_memory_is_not_freed_while_a_process_has_it_open() {
    let Some(lab) = Lab::new() else { return };
    let mut producer = lab.actor();
    let pipeline = own_memory("wait-for-connection=true");
    producer.run(&format!("prepare {pipeline}"), "ok");
    producer.run("watch sink sink", "ok");
    producer.run("play", "ok");
    let mut stopped =
        lab.launch("xmemsrc name=src pool=POOL ! fakesink sync=false enable-last-sample=false");
    for number in 0..20 {
        producer.push(number);
        stopped.until_stat("src", "received", u64::from(number) + 1);
    }
    let memories = producer.number("seen sink addresses");
    until("it holds nothing", || stopped.stat("src", "held") == 0);
    stopped.0.stop();
    producer.run(&format!("caps {}", caps(I420, 64, 64)), "ok");
    for number in 20..80 {
        producer.push(number);
        producer.until_stat("sink", "published", u64::from(number) + 1);
    }
    // All frames of the first caps are released, and cudaupload's pool is freed, except for memory that another process has open.
    let freed = lab.calls(&producer, &["cuMemFree_v2"]);
    stopped.0.go_on();
    until("the first memories are freed", || {
        lab.calls(&producer, &["cuMemFree_v2"]) >= freed + memories
    });
    lab.assert_allowed();
}

#[test]
fn upstreams_memory_is_not_freed_under_a_stopped_process() {
    let Some(lab) = Lab::new() else { return };
    let mut producer = lab.launch(&own_memory("release-timeout=300000000"));
    let mut stopped = lab.consumer("start-from=oldest", "");
    producer.push(1);
    stopped.takes(1);
    stopped.0.stop();
    producer.run(&format!("caps {}", caps(I420, 64, 64)), "ok");
    let mut other = lab.consumer("", "").connected();
    for number in 2..60 {
        producer.push(number);
    }
    producer.until_stat("sink", "published", 59);
    other.run("take 59", "ok");
    // The sink and all of upstream's pools end.
    producer.run("stop", "ok");
    producer.run("forget", "ok");
    stopped.0.go_on();
    stopped.has(1);
    stopped.drops(1);
    lab.assert_allowed();
}

#[test]
fn frames_stay_intact_when_upstream_stops() {
    let Some(lab) = Lab::new() else { return };
    let mut producer = lab.launch(&own_memory("release-timeout=200000000"));
    let mut consumer = lab.consumer("start-from=oldest", "");
    for number in 0..4 {
        producer.push(number);
        consumer.takes(number);
    }
    producer.run("stop", "ok");
    producer.run("forget", "ok");
    for number in 0..4 {
        consumer.has(number);
        consumer.drops(number);
    }
    lab.assert_allowed();
}

#[test]
fn all_memory_is_freed_when_consumers_release_in_time() {
    let Some(lab) = Lab::new() else { return };
    let mut producer = lab.launch(&own_memory("release-timeout=60000000000"));
    let mut consumer = lab.consumer("start-from=oldest", "");
    for number in 0..4 {
        producer.push(number);
        consumer.takes(number);
    }
    // The stop waits for the frames.
    producer.0.send("stop");
    for number in 0..4 {
        consumer.has(number);
        consumer.drops(number);
    }
    // An appsink keeps a reference to its last frame until it is stopped.
    consumer.run("stop", "ok");
    assert_eq!(producer.0.reply(), "ok");
    producer.run("forget", "ok");
    only_canaries_are_left(&lab);
    lab.assert_allowed();
}

#[test]
fn a_sink_that_is_restarted_shares_the_same_memory_again() {
    let Some(lab) = Lab::new() else { return };
    let mut producer = lab.launch(&own_memory("copy=forbid release-timeout=50000000"));
    let mut consumer = lab.consumer("start-from=oldest", "");
    for number in 0..20 {
        if number > 0 {
            // Only the sink stops. Upstream keeps its pool and its memories.
            producer.run("state sink null", "ok");
            producer.run("state sink playing", "ok");
        }
        producer.push(number);
        consumer.takes(number);
        if number % 3 > 0 {
            consumer.drops(number);
        }
    }
    for number in (0..20).filter(|number| number % 3 == 0) {
        consumer.has(number);
    }
    assert_eq!(consumer.stat("src", "copied"), 0);
    lab.assert_allowed();
}

#[test]
fn two_sinks_behind_a_tee_share_one_memory() {
    let Some(lab) = Lab::new() else { return };
    let other = lab.file("q.sock").display().to_string();
    let mut producer = lab.launch(&format!(
        "appsrc name=in format=time caps=\"{}\" ! cudaupload ! video/x-raw(memory:CUDAMemory) ! tee name=t \
         t. ! queue ! xmemsink name=sink pool=POOL sync=false {LOSSLESS} copy=forbid \
         t. ! queue ! xmemsink name=other pool={other} sync=false {LOSSLESS} copy=forbid",
        caps(Nv12, 1280, 720)
    ));
    let mut consumers = [
        lab.consumer("", ""),
        lab.launch(&consumer("", "").replace("POOL", &other)),
        // Both elements in one process.
        lab.launch(&format!(
            "xmemsrc pool=POOL ! appsink name=app sync=false max-buffers=1 enable-last-sample=false xmemsrc pool={other} ! fakesink sync=false"
        )),
    ];
    producer.until_stat("sink", "num-clients", 2);
    producer.until_stat("other", "num-clients", 2);
    pass(&mut producer, &mut consumers, 0..60);
    for sink in ["sink", "other"] {
        assert_eq!(producer.stat(sink, "copied"), 0);
        assert_eq!(producer.stat(sink, "zero-copy"), 60);
    }
    // The caps change, and the memory is freed when both have released it.
    producer.run(&format!("caps {}", caps(I420, 64, 64)), "ok");
    pass(&mut producer, &mut consumers, 60..120);
    // Less than the size of one of the first memories.
    let left = 1 << 20;
    until("the first memory is freed", || {
        lab.machine.used_memory(0) <= CANARIES + left
    });
    lab.assert_allowed();
}

/// One copy on the device for each frame, or with copy=forbid an error with the reason.
fn copied_once(
    pipeline: impl Fn(&str) -> String,
    own_context: bool,
    variables: &[(&str, &str)],
    why: &str,
) {
    let Some(lab) = Lab::new() else { return };
    let start = |pipeline: &str| {
        let mut producer = lab.actor_with(variables);
        producer.run(&format!("prepare {pipeline}"), "ok");
        if own_context {
            producer.run("own-context", "ok");
        }
        producer.run("play", "ok");
        producer
    };
    let mut producer = start(&pipeline(LOSSLESS));
    let mut consumers = [lab.consumer("", ""), lab.consumer("", "")];
    producer.until_stat("sink", "num-clients", 2);
    pass(&mut producer, &mut consumers, 0..50);
    assert_eq!(producer.stat("sink", "copied"), 50);
    assert_eq!(lab.calls(&producer, &COPIES), 50);
    assert_eq!(producer.stat("sink", "zero-copy"), 0);
    drop(producer);
    let mut refusing = start(&pipeline("copy=forbid"));
    refusing.push(1);
    let error = refusing.ask("error");
    assert_contains(&error, "copy=forbid");
    assert_contains(&error, why);
    lab.assert_allowed();
}

/// An element has cropped the first row.
#[test]
fn memory_that_does_not_begin_with_its_first_byte_is_copied_once() {
    for kind in ["offered", "stream"] {
        let Some(lab) = Lab::new() else { return };
        let mut producer = lab.actor();
        start_on_a_stream(&mut producer, Bgra, kind, LOSSLESS);
        let mut consumer = lab.consumer("", "");
        producer.until_stat("sink", "num-clients", 1);
        producer.run("paint 1", "ok");
        producer.run("cut-painted", "ok");
        producer.run("push-painted", "ok");
        consumer.run("take 1", "ok");
        let difference = consumer.ask("check 1");
        let last_row = 4 * 320 * 239;
        assert!(
            difference.contains(&format!("the first is Some({last_row})")),
            "{kind}: {difference}"
        );
        assert_eq!(producer.stat("sink", "copied"), 1, "{kind}");
        lab.assert_allowed();
    }
}

#[test]
fn memory_of_another_context_is_copied_once() {
    copied_once(
        |sink| crate::lab::producer(&caps(Nv12, 320, 240), sink),
        true,
        &[],
        "context",
    );
    copied_once(own_memory, true, &[], "context");
}
