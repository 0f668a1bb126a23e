// SPDX-License-Identifier: MPL-2.0

//! A queue before xmemsink that holds more frames than the pool has slots.

use crate::support::*;

const FRAMES: u64 = 400;
const QUEUE: &str = "queue max-size-buffers=1000 max-size-bytes=0 max-size-time=0";

fn source(frames: u64, caps: &str) -> String {
    format!("videotestsrc num-buffers={frames} ! video/x-raw,format=NV12,{caps}")
}

/// Sends all frames to a consumer that is slower than the producer. `source`: the elements before the queue.
fn every_frame_arrives(source: &str, sink: &str) {
    let pools = Pools::new();
    let producer = pools.launch(&format!(
        "{source} ! {QUEUE} \
         ! xmemsink name=sink pool=POOL delivery=lossless wait-for-connection=true pace=never {sink}"
    ));
    let consumer = pools.launch(
        "xmemsrc name=src pool=POOL on-producer-lost=eos ! identity sleep-time=500 ! fakesink",
    );
    consumer.play();
    producer.play();
    consumer.wait_eos();
    assert_eq!(producer.stat("sink", "published"), FRAMES);
    assert_eq!(consumer.stat("src", "received"), FRAMES);
    // Those in private memory.
    assert!(producer.stat("sink", "copied") > 0);
}

#[test]
fn lossless_delivery_does_not_stop() {
    for slots in [6, 8, 32] {
        let source = source(FRAMES, "width=64,height=64");
        every_frame_arrives(&source, &format!("max-slots={slots}"));
    }
}

#[test]
fn lossless_delivery_does_not_stop_at_larger_frames() {
    let small = source(FRAMES / 2, "width=64,height=64");
    let large = source(FRAMES / 2, "width=512,height=512");
    let source = format!("concat name=c {small} ! c. {large} ! c. c.");
    every_frame_arrives(&source, "max-bytes=900000");
}

#[test]
fn live_delivery_without_consumers_drops_no_frame() {
    for slots in [8, 32] {
        let pools = Pools::new();
        let source = source(FRAMES, "width=64,height=64,framerate=500/1");
        let producer = pools.launch(&format!(
            "{source} ! {QUEUE} ! xmemsink name=sink pool=POOL max-slots={slots}"
        ));
        producer.play();
        producer.wait_eos();
        assert_eq!(producer.stat("sink", "published"), FRAMES);
        assert_eq!(producer.stat("sink", "dropped"), 0);
        assert!(producer.stat("sink", "copied") > 0);
    }
}
