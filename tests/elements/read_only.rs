// SPDX-License-Identifier: MPL-2.0

//! Elements cannot change a published frame.

use crate::support::*;
use gst::prelude::*;

const VIDEO: &str = "video/x-raw,format=I420,width=320,height=240,framerate=30/1";

/// An in-place filter behind xmemsrc works on a copy.
fn filter_behind_source(filter: &str) {
    let pools = Pools::new();
    let producer =
        pools.launch(&format!("videotestsrc num-buffers=10 ! {VIDEO} ! xmemsink name=sink pool=POOL sync=false delivery=lossless"));
    let plain = pools.receiver("");
    let filtered = pools.receiver_behind("", &format!("{filter} !"));
    producer.0.set_state(gst::State::Ready).unwrap();
    let sink = producer.sink();
    until("two consumers", || sink.property::<u32>("num-clients") == 2);
    producer.play();
    for (number, right) in reference(&format!("videotestsrc num-buffers=10 ! {VIDEO}"))
        .iter()
        .enumerate()
    {
        let other = filtered.next().unwrap();
        let sample = plain.next().unwrap();
        assert!(
            pixels(&sample) == pixels(right),
            "frame {number} was changed"
        );
        assert!(pixels(&other) != pixels(right), "the filter did nothing");
    }
    producer.wait_eos();
}

#[test]
fn videobalance_behind_the_source() {
    filter_behind_source("videobalance brightness=-0.5");
}

#[test]
fn textoverlay_behind_the_source() {
    filter_behind_source("textoverlay text=changed valignment=center");
}

/// After a tee in the producer's own pipeline, a filter that writes in place after the sink has published.
#[test]
fn videobalance_behind_a_tee() {
    let pools = Pools::new();
    let info = gst_video::VideoInfo::builder(gst_video::VideoFormat::I420, 320, 240)
        .build()
        .unwrap();
    let caps = info.to_caps().unwrap();
    let receiver = pools.receiver("");
    // The sink's branch comes first: the filter gets each buffer after the sink.
    let pipeline = pools.launch(&format!(
        "appsrc name=app format=time ! tee name=t \
         t. ! xmemsink name=sink pool=POOL sync=false copy=forbid {LOSSLESS} \
         t. ! queue ! videobalance brightness=-0.5 ! appsink name=filtered sync=false async=false"
    ));
    let app = pipeline
        .by_name("app")
        .downcast::<gst_app::AppSrc>()
        .unwrap();
    let filtered = pipeline
        .by_name("filtered")
        .downcast::<gst_app::AppSink>()
        .unwrap();
    app.set_caps(Some(&caps));
    pipeline.play();
    // A tee drops the sink's allocation proposal, so the test takes buffers from the pool directly.
    let pool = offered_pool(&pipeline.sink(), &caps);
    pool.set_active(true).unwrap();
    for number in 0..5 {
        let mut buffer = pool.acquire_buffer(None).unwrap();
        paint(&mut buffer, &info, number);
        let sent = bytes(&buffer);
        app.push_buffer(buffer).unwrap();
        let other = filtered.try_pull_sample(SOON).unwrap();
        let sample = receiver.next().unwrap();
        assert!(
            bytes(sample.buffer().unwrap()) == sent,
            "frame {number} was changed"
        );
        assert!(
            bytes(other.buffer().unwrap()) != sent,
            "the filter did nothing"
        );
    }
    assert_eq!(pipeline.stat("sink", "zero-copy"), 5);
    assert!(
        pipeline.stat("sink", "memory-copies") > 0,
        "the filter's copies are counted"
    );
}

#[test]
fn a_published_frame_cannot_be_mapped_for_writing() {
    let pools = Pools::new();
    let caps: gst::Caps = VIDEO.parse().unwrap();
    let receiver = pools.receiver("");
    let sender = pools.sender(&caps, LOSSLESS);
    let pool = offered_pool(&sender.sink(), &caps);
    pool.set_active(true).unwrap();
    let mut buffer = pool.acquire_buffer(None).unwrap();
    buffer.make_mut().map_writable().unwrap().fill(7);
    let kept = buffer.clone();
    let part = buffer
        .copy_region(gst::BufferCopyFlags::MEMORY, 10..20)
        .unwrap();
    sender.push(buffer);
    let sample = receiver.next().unwrap();
    let received = sample.buffer().unwrap();

    for buffer in [kept.as_ref(), received] {
        assert!(is_read_only(buffer));
        // Mapping a copy of the buffer for writing copies the memory.
        let mut own = buffer.copy();
        own.make_mut().map_writable().unwrap().fill(9);
        assert!(slot_of(&own).is_none());
        assert!(slot_of(buffer).is_some());
    }
    let mut own = part.copy();
    own.make_mut().map_writable().unwrap().fill(9);
    assert!(bytes(received).iter().all(|byte| *byte == 7));
    assert!(bytes(&kept).iter().all(|byte| *byte == 7));
    assert_eq!(bytes(&part), [7; 10]);
    assert_eq!(receiver.stat("memory-copies"), 1);
}

/// Publishes the same memory repeatedly with different timestamps.
fn repeats(elements: &str, slots: usize) {
    let pools = Pools::new();
    let producer = pools.launch(&format!(
        "{elements} ! xmemsink name=sink pool=POOL sync=false {LOSSLESS}"
    ));
    let receiver = pools.receiver("");
    producer.play();
    let mut last = None;
    let mut seen = std::collections::HashSet::new();
    let right = reference(elements);
    assert!(right.len() > slots);
    for (number, right) in right.iter().enumerate() {
        let sample = receiver
            .next()
            .unwrap_or_else(|| panic!("frame {number} is missing"));
        assert!(pixels(&sample) == pixels(right), "frame {number} differs");
        let pts = sample.buffer().unwrap().pts().unwrap();
        assert!(
            last < Some(pts),
            "frame {number} comes after its predecessor"
        );
        last = Some(pts);
        seen.insert(slot_of(sample.buffer().unwrap()).unwrap());
    }
    assert!(receiver.next().is_none());
    producer.wait_eos();
    assert_eq!(producer.stat("sink", "published"), right.len() as u64);
    assert_eq!(seen.len(), slots, "the same memory is the same slot");
}

#[test]
fn imagefreeze() {
    repeats(
        &format!("videotestsrc num-buffers=1 ! {VIDEO} ! imagefreeze num-buffers=6"),
        1,
    );
}

#[test]
fn videorate() {
    repeats(
        &format!("videotestsrc num-buffers=3 ! {VIDEO} ! videorate ! video/x-raw,framerate=90/1"),
        3,
    );
}
