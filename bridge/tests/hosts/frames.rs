// SPDX-License-Identifier: MPL-2.0

//! The data that reaches the other host.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use xmem_core::key_frame::KeyFrame;
use xmem_core::{
    Attachments, FrameFlags, FrameLayout, FrameMeta, PoolEvent, Producer, SlotSpec, Sticky,
    VideoLayout, monotonic_ns,
};

use crate::support::*;

fn sticky(caps: &str) -> Sticky {
    let mut sticky = Sticky::new();
    sticky.set("caps", caps);
    sticky
}

fn layout() -> FrameLayout {
    FrameLayout {
        content_type: "video/x-raw".into(),
        producer: "camera".into(),
        video: Some(VideoLayout::new("NV12", 1920, 1080).unwrap()),
        ..FrameLayout::default()
    }
}

#[test]
fn a_frame_and_all_that_belongs_to_it() {
    let hosts = Hosts::new();
    let producer = hosts.producer("cam0");
    let caps = "video/x-raw,format=NV12,width=1920,height=1080";
    producer.set_sticky(&sticky(caps)).unwrap();
    let (_export, _import) = (hosts.export(&["cam0"]), hosts.import("b"));
    let mut consumer = hosts.consumer("b");
    eventually("the exporter joins", || producer.num_consumers() == 1);

    let layout = layout();
    let size = layout.video.unwrap().size().unwrap();
    let mut attachments = Attachments::new();
    attachments.set("roi", vec![7; 100_000]);
    attachments.set("note", "a kitten");
    let now = monotonic_ns();
    let mut meta = meta(4, size).layout(layout).flags(FrameFlags::DELTA_UNIT);
    meta.timestamp = Some(now);
    meta.decode_timestamp = Some(now - 5);
    meta.pts = Some(1);
    meta.dts = Some(2);
    meta.duration = Some(3);
    meta.buffer_offset_end = Some(5);
    meta.reserved = Some(Box::new([9; 64]));
    meta.attachments = attachments;
    let room = meta.attachments.encoded_len();
    let mut slot = producer
        .acquire(SlotSpec::new(size).attachments(room))
        .unwrap();
    slot.as_mut_slice().copy_from_slice(&content(4, size));
    slot.publish(meta.clone()).unwrap();

    let frame = receive(&mut consumer);
    assert_eq!(number(&frame), 4);
    // Both hosts are this machine, so their clocks are equal. The error of the offset is at most half a round trip.
    let times = [frame.meta().timestamp, frame.meta().decode_timestamp];
    for (time, expected) in times.into_iter().zip([now, now - 5]) {
        let error = time.unwrap() - expected;
        assert!(error.abs() < 1_000_000_000, "{error}");
    }
    let mut there = frame.meta().clone();
    there.timestamp = meta.timestamp;
    there.decode_timestamp = meta.decode_timestamp;
    assert_eq!(there, meta);
    assert_eq!(frame.sticky().text("caps"), Some(caps));
    assert_eq!(
        frame.sticky().text("xmem-bridge"),
        Some(format!("cam0@{}", hosts.address()).as_str())
    );
}

#[test]
fn events_keep_their_place_and_the_end_arrives() {
    let hosts = Hosts::new();
    let producer = hosts.producer("cam0");
    let (_export, _import) = (hosts.export(&["cam0"]), hosts.import("b"));
    let mut consumer = hosts.consumer("b");
    eventually("the exporter joins", || producer.num_consumers() == 1);
    for round in 0..3 {
        assert!(publish(&producer, round, 300_000));
        assert_eq!(number(&receive(&mut consumer)), round);
        let mut event = FrameMeta::default();
        event.attachments.set("event", content(round, 70_000));
        producer.publish_event(event.clone()).unwrap();
        let got = consumer.receive(Some(HANG)).unwrap();
        assert!(got.meta().event && got.meta().attachments == event.attachments);
    }
    producer.set_eos(true);
    eventually("the stream is over", || is_over(&mut consumer));
    producer.set_eos(false);
    assert!(publish(&producer, 9, 1000));
    consumer.pass_eos();
    assert_eq!(number(&receive(&mut consumer)), 9);
}

#[test]
fn every_frame_arrived_or_was_missed() {
    let hosts = Hosts::new();
    let producer = hosts.producer("cam0");
    let (_export, import) = (hosts.export(&["cam0"]), hosts.import("b"));
    let mut consumer = hosts.consumer("b");
    eventually("the exporter joins", || producer.num_consumers() == 1);
    // Frames are skipped if the machine is busy.
    let camera = Camera::start(&producer, 3_000_000, 1);
    let first = number(&receive(&mut consumer));
    let at = receive_until(&mut consumer, 200);
    let last = camera.stop();
    if at < last {
        receive_until(&mut consumer, last);
    }
    let stats = consumer.stats();
    let (received, missed) = import.figures();
    assert_eq!(received, stats.received + stats.missed);
    assert_eq!(received + missed, last - first + 1);
}

#[test]
fn a_new_producer_may_have_other_caps_and_sizes() {
    let hosts = Hosts::new();
    let producer = hosts.producer("cam0");
    producer.set_sticky(&sticky("video/x-raw,width=1")).unwrap();
    let (_export, _import) = (hosts.export(&["cam0"]), hosts.import("b"));
    let mut consumer = hosts.consumer("b");
    eventually("the exporter joins", || producer.num_consumers() == 1);
    assert!(publish(&producer, 1, 100_000));
    assert_eq!(
        receive(&mut consumer).sticky().text("caps"),
        Some("video/x-raw,width=1")
    );
    drop(producer);
    let producer = hosts.producer("cam0");
    producer.set_sticky(&sticky("video/x-raw,width=2")).unwrap();
    eventually("the exporter joins again", || producer.num_consumers() == 1);
    assert!(publish(&producer, 2, 900_000));
    let frame = receive(&mut consumer);
    assert_eq!(
        (number(&frame), frame.sticky().text("caps")),
        (2, Some("video/x-raw,width=2"))
    );
}

#[test]
fn nothing_is_read_without_a_consumer() {
    let hosts = Hosts::new();
    let producer = hosts.producer("cam0");
    let (_export, import) = (hosts.export(&["cam0"]), hosts.import("b"));
    import.prints("no consumers");
    assert_eq!(producer.num_consumers(), 0);
    let consumer = hosts.consumer("b");
    eventually("the exporter joins", || producer.num_consumers() == 1);
    drop(consumer);
    eventually("the exporter leaves", || producer.num_consumers() == 0);
}

/// A producer of an encoded stream, and the number of requests for key frames that it has received.
fn encoder(hosts: &Hosts) -> (Producer, Arc<Mutex<u32>>) {
    let asked = Arc::<Mutex<u32>>::default();
    let counted = asked.clone();
    let producer = Producer::builder(hosts.pool("a", "cam0")).on_event(move |event| {
        if matches!(event, PoolEvent::Request { name, data, .. } if KeyFrame::decode(&name, &data).is_some()) {
            *counted.lock().unwrap() += 1;
        }
    });
    let producer = producer.build().unwrap();
    producer.set_sticky(&sticky("video/x-h264")).unwrap();
    (producer, asked)
}

/// Publishes a frame of an encoded stream. Frames with numbers from 100 are key frames.
fn encode(producer: &Producer, number: u64) {
    let mut slot = producer.acquire(5000).unwrap();
    slot.as_mut_slice().copy_from_slice(&content(number, 5000));
    let flags = if number < 100 {
        FrameFlags::DELTA_UNIT
    } else {
        FrameFlags::default()
    };
    slot.publish(meta(number, 5000).flags(flags)).unwrap();
}

#[test]
fn an_encoded_stream_begins_with_a_key_frame_that_is_asked_for() {
    let hosts = Hosts::new();
    let (producer, asked) = encoder(&hosts);
    let _export = hosts.export(&["cam0"]);
    for host in ["b", "c"] {
        let before = *asked.lock().unwrap();
        let consumers = producer.num_consumers();
        let _import = hosts.import(host);
        let mut consumer = hosts.consumer(host);
        eventually("the exporter joins", || {
            producer.num_consumers() > consumers
        });
        let mut next = 0;
        eventually("a key frame is asked for", || {
            encode(&producer, next % 100);
            next += 1;
            *asked.lock().unwrap() > before
        });
        encode(&producer, 100);
        let first = receive(&mut consumer);
        assert_eq!(
            (number(&first), first.meta().flags),
            (100, FrameFlags::default())
        );
        for follower in 1..9 {
            encode(&producer, follower);
            assert_eq!(number(&receive(&mut consumer)), follower);
        }
    }
}

#[test]
fn an_imported_pool_may_admit_other_users() {
    use std::os::unix::fs::PermissionsExt;

    let hosts = Hosts::new();
    let source = format!("cam0@{}", hosts.address());
    let args = ["import", &source, "--trusted-network"];
    let own = hosts.bridge("b", &args);
    let shared = hosts.bridge("c", &[&args[..], &["--socket-mode", "0666"]].concat());
    for (host, import, expected) in [("b", own, 0o600), ("c", shared, 0o666)] {
        import.prints("imports");
        let socket = std::fs::metadata(hosts.pool(host, "cam0")).unwrap();
        assert_eq!(socket.permissions().mode() & 0o777, expected);
    }
}

#[test]
fn requests_reach_the_producer() {
    let hosts = Hosts::new();
    let (producer, asked) = encoder(&hosts);
    let (_export, _import) = (hosts.export(&["cam0"]), hosts.import("b"));
    let consumer = hosts.consumer("b");
    eventually("the exporter joins", || producer.num_consumers() == 1);
    eventually("the request arrives", || {
        consumer
            .request(KeyFrame::NAME, &KeyFrame::NOW.encode())
            .unwrap();
        std::thread::sleep(Duration::from_millis(20));
        *asked.lock().unwrap() > 0
    });
}
