// SPDX-License-Identifier: MPL-2.0

//! Frames that upstream writes directly into slots. The tests compare locations: the address in the consumer and the address to
//! which upstream wrote are the same byte of the same file.

use crate::support::*;
use gst::prelude::*;

/// Plays `upstream` into a sink with copy=forbid. Each received frame must be where upstream wrote it.
fn writes_into_slots(upstream: &str, frames: u64) {
    let pools = Pools::new();
    let producer = pools.launch(&format!(
        "{upstream} ! xmemsink name=sink pool=POOL copy=forbid delivery=lossless wait-for-connection=true sync=false"
    ));
    let seen = watch(&producer.sink());
    let receiver = pools.receiver("");
    producer.play();
    let mut received = 0;
    while let Some(sample) = receiver.next() {
        let buffer = sample.buffer().unwrap();
        let slot = slot_of(buffer).expect("a frame in a slot");
        let written = seen
            .lock()
            .unwrap()
            .get(&slot)
            .cloned()
            .expect("upstream wrote into that slot");
        assert_eq!(place(buffer), written, "frame {received} lies elsewhere");
        received += 1;
    }
    producer.wait_eos();
    assert_eq!(received, frames);
    assert_eq!(producer.stat("sink", "published"), frames);
    assert_eq!(producer.stat("sink", "zero-copy"), frames);
    assert_eq!(producer.stat("sink", "copied"), 0);
    assert_eq!(producer.stat("sink", "dropped"), 0);
    assert_eq!(producer.stat("sink", "memory-copies"), 0);
    assert_eq!(receiver.stat("zero-copy"), frames);
    assert_eq!(receiver.stat("copied"), 0);
}

const CAPS: &str = "video/x-raw,format=I420,width=320,height=240,framerate=30/1";

#[test]
fn videotestsrc() {
    writes_into_slots(&format!("videotestsrc num-buffers=40 ! {CAPS}"), 40);
}

#[test]
fn videoconvert() {
    writes_into_slots(
        &format!("videotestsrc num-buffers=40 ! {CAPS} ! videoconvert ! video/x-raw,format=RGBA"),
        40,
    );
}

/// The buffers of filesrc have no caps.
#[test]
fn filesrc() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/LICENSE");
    writes_into_slots(
        &format!("filesrc location={file} blocksize=500 num-buffers=20"),
        20,
    );
}

#[test]
fn audiotestsrc() {
    writes_into_slots(
        "audiotestsrc num-buffers=40 ! audio/x-raw,format=S16LE,channels=2",
        40,
    );
}

#[test]
fn audioconvert() {
    writes_into_slots(
        "audiotestsrc num-buffers=40 ! audio/x-raw,format=S16LE,channels=2 ! audioconvert ! audio/x-raw,format=F32LE",
        40,
    );
}

/// An H.264 file of 40 frames, in presentation order.
fn clip(pools: &Pools, width: u32, height: u32) -> String {
    encoded(pools, width, height, "tune=zerolatency")
}

fn encoded(pools: &Pools, width: u32, height: u32, encoder: &str) -> String {
    let file = pools.file("clip.mp4").to_str().unwrap().to_owned();
    pools.run(&format!(
        "videotestsrc num-buffers=40 pattern=ball \
         ! video/x-raw,format=I420,width={width},height={height},framerate=30/1 \
         ! x264enc speed-preset=ultrafast {encoder} key-int-max=10 ! h264parse ! mp4mux \
         ! filesink location={file}"
    ));
    file
}

#[test]
fn openh264dec() {
    let pools = Pools::new();
    let file = clip(&pools, 320, 240);
    writes_into_slots(
        &format!("filesrc location={file} ! qtdemux ! h264parse ! openh264dec"),
        40,
    );
}

/// avdec_h264 keeps its frames mapped for writing, and GStreamer would copy each of them. Returns the number of copies, and checks
/// the pixels.
fn avdec_copies(width: u32, height: u32, encoder: &str) -> (u64, u64) {
    let pools = Pools::new();
    let decode = format!(
        "filesrc location={} ! qtdemux ! h264parse ! {}",
        encoded(&pools, width, height, encoder),
        avdec(width)
    );
    let right = reference(&decode);
    let producer = pools.launch(&format!(
        "{decode} ! xmemsink name=sink pool=POOL delivery=lossless wait-for-connection=true sync=false"
    ));
    let seen = watch(&producer.sink());
    let receiver = pools.receiver("");
    producer.play();
    let mut elsewhere = 0;
    let mut frames = 0;
    while let Some(sample) = receiver.next() {
        assert!(
            pixels(&sample) == pixels(&right[frames]),
            "frame {frames} differs"
        );
        let buffer = sample.buffer().unwrap();
        let here = place(buffer);
        let seen = seen.lock().unwrap();
        // A frame whose metas had not enough space in its slot has another slot that refers to it.
        let is_there = match seen.get(&slot_of(buffer).unwrap()) {
            Some(there) => *there == here,
            None => frames == 0 && seen.values().any(|there| *there == here),
        };
        elsewhere += u64::from(!is_there);
        frames += 1;
    }
    assert_eq!(frames, right.len());
    let (copied, memory_copies) = (
        producer.stat("sink", "copied"),
        producer.stat("sink", "memory-copies"),
    );
    assert_eq!(
        copied, elsewhere,
        "the count of copies agrees with where the frames lie"
    );
    assert_eq!(receiver.stat("copied"), 0);
    (copied, memory_copies)
}

#[test]
fn avdec_at_720p_copies_only_its_first_frames() {
    let (copied, memory_copies) = avdec_copies(1280, 720, "tune=zerolatency");
    assert!(copied <= 6, "{copied} of 40 frames were copied into slots");
    assert_eq!(memory_copies, 0);
}

#[test]
fn avdec_at_1080p_copies_only_its_first_frames() {
    let (copied, memory_copies) = avdec_copies(1920, 1080, "tune=zerolatency");
    assert!(copied <= 6, "{copied} of 40 frames were copied into slots");
    assert_eq!(memory_copies, 0);
}

/// The decoder releases unreferenced frames before the sink has processed them, and keeps the others longer.
#[test]
fn avdec_with_b_frames_copies_only_its_first_frames() {
    let (copied, memory_copies) = avdec_copies(1280, 720, "bframes=2 b-adapt=false");
    assert!(copied <= 6, "{copied} of 40 frames were copied into slots");
    assert_eq!(memory_copies, 0);
}

/// At these sizes avdec copies each frame into the pool by itself, and sends an ALLOCATION query for almost every frame: the
/// decoded width differs from the displayed one, and it treats that as a change of its buffers.
fn asks_for_nearly_every_frame(width: u32, height: u32) {
    let pools = Pools::new();
    let file = clip(&pools, width, height);
    let decoder = avdec(width);
    let producer = pools.launch(&format!(
        "filesrc location={file} ! qtdemux ! h264parse ! {decoder} \
         ! xmemsink name=sink pool=POOL delivery=lossless wait-for-connection=true sync=false"
    ));
    let pad = producer.sink().static_pad("sink").unwrap();
    let queries = note(&pad, gst::PadProbeType::QUERY_DOWNSTREAM, |info| {
        is_allocation(info).then_some(())
    });
    let receiver = pools.receiver("");
    producer.play();
    assert_eq!(receiver.rest().len(), 40);
    let queries = queries.lock().unwrap().len();
    eprintln!(
        "{queries} queries, {}",
        producer.sink().property::<gst::Structure>("stats")
    );
    // Independent of the number of queries, the pool has the slots that the frames in flight need: 9 for the consumer (its budget,
    // and one that is being copied), 8 for its delay, and up to 4 on the way into the sink. These are 21, and slots are allocated
    // in regions of 4, 2, 3, 4, 6 and 8. One more region is from before the first frame's metas were known, and one has that
    // frame's small slot.
    let (slots, regions) = (
        producer.stat("sink", "slots"),
        producer.stat("sink", "regions"),
    );
    assert!(slots <= 27 + 8, "{slots} slots");
    assert!(regions <= 6 + 2, "{regions} regions");
}

#[test]
fn avdec_at_1366x768_asks_often_at_no_cost() {
    asks_for_nearly_every_frame(1366, 768);
}

#[test]
fn avdec_at_854x480_asks_often_at_no_cost() {
    asks_for_nearly_every_frame(854, 480);
}
