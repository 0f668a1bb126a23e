// SPDX-License-Identifier: MPL-2.0

//! Encoded frames that the sink drops, or that vanish: consumers do not decode frames that depend on them.

use std::{
    io::stdin,
    process::{Command, Stdio},
    sync::{Mutex, mpsc::channel},
    time::Duration,
};

use crate::support::*;
use gst::prelude::*;
use gst_base::prelude::*;
use xmem_core::{
    Consumer, Delivery, FrameFlags, FrameMeta, FrameParts, Parts, Producer, SlotSpec, Sticky, Wait,
};

/// So large that a slot has exactly this size.
const SIZE: usize = 300_000;
const KEY: bool = true;
const DELTA: bool = false;

fn caps() -> gst::Caps {
    "video/x-test".parse().unwrap()
}

fn frame(number: u8, is_key: bool) -> gst::Buffer {
    let mut buffer = gst::Buffer::from_slice(vec![number; SIZE]);
    let buffer_mut = buffer.get_mut().unwrap();
    buffer_mut.set_pts(gst::ClockTime::from_seconds(number.into()));
    buffer_mut.set_duration(gst::ClockTime::SECOND);
    if !is_key {
        buffer_mut.set_flags(gst::BufferFlags::DELTA_UNIT);
    }
    buffer
}

/// The number of the next frame, and whether it is marked as a discontinuity.
fn next(receiver: &Receiver) -> (u8, bool) {
    let sample = receiver.next().unwrap();
    let buffer = sample.buffer().unwrap();
    let is_discont = buffer.flags().contains(gst::BufferFlags::DISCONT);
    (bytes(buffer)[0], is_discont)
}

/// No frame was missed in the pool: the dropped frames were never published.
fn was_left_out(receiver: &Receiver, undecodable: u64) {
    assert_eq!(receiver.stat("missed"), 0);
    assert_eq!(receiver.stat("undecodable"), undecodable);
}

#[test]
fn no_slot_is_free() {
    let pools = Pools::new();
    let properties = "wait-for-connection=true history=1 max-bytes=950000";
    let sender = pools.sender(&caps(), properties);
    let receiver = pools.receiver("").connected();
    for number in 0..2 {
        sender.push(frame(number, number == 0));
        assert_eq!(next(&receiver), (number, number == 0));
    }
    sender.push(frame(2, DELTA));
    let held = receiver.next().unwrap();
    // Upstream holds the other two slots.
    let query = ask(&sender.sink(), &caps(), false);
    let allocator = query.allocation_params().next().unwrap().0.unwrap();
    let ahead: Vec<_> = (0..2).map(|_| allocator.alloc(SIZE, None)).collect();
    let dropped = || sender.pipeline.stat("sink", "dropped");
    sender.push(frame(3, DELTA));
    until("a frame without a slot", || dropped() == 1);
    sender.push(frame(4, KEY));
    until("another one", || dropped() == 2);
    drop((held, ahead));
    // The frame depends on a missing frame.
    sender.push(frame(5, DELTA));
    sender.until_published(4);
    until("it is passed over", || receiver.stat("undecodable") == 1);
    sender.push(frame(6, KEY));
    assert_eq!(next(&receiver), (6, true));
    sender.push(frame(7, DELTA));
    assert_eq!(next(&receiver), (7, false));
    was_left_out(&receiver, 1);
}

/// Pushes a frame in a segment that starts at this second.
fn push_after(sender: &Sender, start: u64, number: u8, is_key: bool) {
    let mut segment = gst::FormattedSegment::<gst::ClockTime>::new();
    segment.set_start(gst::ClockTime::from_seconds(start));
    let sample = gst::Sample::builder()
        .caps(&caps())
        .segment(&segment)
        .buffer(&frame(number, is_key))
        .build();
    sender.app.push_sample(&sample).unwrap();
}

/// As after a seek to a time between two key frames. Only the segment says which frames are shown.
#[test]
fn frames_outside_of_their_segment_arrive_and_are_not_shown() {
    for flags in ["", LOSSLESS] {
        let pools = Pools::new();
        let sender = pools.sender(&caps(), &format!("{flags} history=16"));
        sender.app.set_property("handle-segment-change", true);
        let receiver = pools.receiver("start-from=oldest").connected();
        let app = receiver.app.upcast_ref::<gst::Element>();
        let app = app.downcast_ref::<gst_base::BaseSink>().unwrap();
        app.set_drop_out_of_segment(false);
        for (start, number, is_key) in [
            (0, 0, KEY),
            (0, 1, DELTA),
            (12, 10, KEY),
            (12, 11, DELTA),
            (12, 12, DELTA),
            (12, 13, DELTA),
            (20, 20, KEY),
            (20, 21, DELTA),
        ] {
            push_after(&sender, start, number, is_key);
            let sample = receiver.next().unwrap();
            let buffer = sample.buffer().unwrap();
            assert_eq!(bytes(buffer)[0], number);
            let segment = sample.segment().unwrap();
            let segment = segment.downcast_ref::<gst::ClockTime>().unwrap();
            let pts = buffer.pts().unwrap();
            let shown = segment.clip(pts, pts + buffer.duration().unwrap());
            assert_eq!(shown.is_some(), u64::from(number) >= start, "{number}");
            if shown.is_some() {
                assert_eq!(segment.to_running_time(pts), Some(pts), "{number}");
            }
        }
        was_left_out(&receiver, 0);
        assert_eq!(sender.pipeline.stat("sink", "skipped"), 0);
    }
}

/// Each of them can be shown alone.
#[test]
fn raw_frames_outside_of_their_segment_are_counted() {
    let pools = Pools::new();
    let caps = "audio/x-raw,format=U8,rate=8000,channels=1,layout=interleaved";
    let sender = pools.sender(&caps.parse().unwrap(), "");
    sender.app.set_property("handle-segment-change", true);
    for number in [9, 10, 11] {
        let mut segment = gst::FormattedSegment::<gst::ClockTime>::new();
        segment.set_start(gst::ClockTime::from_seconds(12));
        let sample = gst::Sample::builder()
            .segment(&segment)
            .buffer(&frame(number, KEY))
            .build();
        sender.app.push_sample(&sample).unwrap();
    }
    sender.finish();
    let figures = ["published", "skipped"].map(|field| sender.pipeline.stat("sink", field));
    assert_eq!(figures, [0, 3]);
}

#[test]
fn a_frame_that_waits_when_there_is_a_flush_is_counted() {
    let pools = Pools::new();
    let sender = pools.sender(&caps(), "wait-for-connection=true");
    until("a frame that waited is thrown away", || {
        sender.push(frame(0, KEY));
        until("it has left the source", || {
            sender.app.current_level_buffers() == 0
        });
        // The frame is probably in the sink now. If not, the loop repeats.
        sender.app.send_event(gst::event::FlushStart::new());
        sender.app.send_event(gst::event::FlushStop::new(true));
        sender.pipeline.stat("sink", "skipped") > 0
    });
    assert_eq!(sender.pipeline.stat("sink", "published"), 0);
}

/// GstBaseSink reads the times of a list as those of a buffer.
#[test]
fn no_gap_is_reported_between_the_frames_of_lists() {
    for properties in ["history=16", LOSSLESS, "history=16 pace=always"] {
        let pools = Pools::new();
        let sender = pools.sender(&caps(), properties);
        let receiver = pools.receiver("start-from=oldest").connected();
        for numbers in [[0, 1], [2, 3], [4, 5]] {
            let mut list = gst::BufferList::new();
            for number in numbers {
                let mut buffer = frame(number, number == 0);
                let buffer_mut = buffer.get_mut().unwrap();
                buffer_mut.set_pts(gst::ClockTime::from_mseconds(number.into()));
                list.get_mut().unwrap().add(buffer);
            }
            sender.app.push_buffer_list(list).unwrap();
        }
        for number in 0..6 {
            assert_eq!(next(&receiver), (number, number == 0), "{properties}");
        }
        was_left_out(&receiver, 0);
        assert_eq!(sender.pipeline.stat("sink", "skipped"), 0);
    }
}

/// More frames of another pool in one than the consumer may hold.
const PARTS: u32 = 5;
const HANG: Duration = Duration::from_secs(20);

fn publish(producer: &Producer, number: u8, flags: FrameFlags) {
    let mut slot = producer.acquire(SIZE).unwrap();
    slot.as_mut_slice().fill(number);
    slot.publish(FrameMeta::new(SIZE).flags(flags)).unwrap();
}

/// Forwards one frame with parts of another pool, and publishes others of its own. It is killed meanwhile.
#[test]
fn forwarder() {
    let Ok(first) = std::env::var("XMEM_TEST_FIRST") else {
        return;
    };
    let mut consumer = Consumer::builder(first).max_held(PARTS).connect().unwrap();
    let producer = Producer::builder(std::env::var("XMEM_TEST_POOL").unwrap());
    let producer = producer.delivery(Delivery::Lossless).build().unwrap();
    let set_caps = |caps: &str| {
        let mut sticky = Sticky::new();
        sticky.set("caps", caps);
        producer.set_sticky(&sticky).unwrap();
    };
    set_caps("video/x-test");
    producer.wait_for_consumers(1, Wait::up_to(HANG)).unwrap();
    publish(&producer, 0, FrameFlags::default());
    set_caps("video/x-test,vanishes=true");
    let mut parts = Parts::new();
    for _ in 0..PARTS {
        let frame = consumer.receive(Some(HANG)).unwrap();
        let forwarded = producer.forward_wait(&frame, FrameParts::All, Wait::up_to(HANG));
        parts.append(forwarded.unwrap());
    }
    let slot = SlotSpec::new(1).attachments(parts.room());
    let mut slot = producer.acquire(slot).unwrap();
    slot.set_parts(parts);
    slot.publish(FrameMeta::default()).unwrap();
    publish(&producer, 2, FrameFlags::DELTA_UNIT);
    publish(&producer, 3, FrameFlags::default());
    // Until the test ends, if it does not kill this process before.
    let _ = stdin().read_line(&mut String::new());
}

#[test]
fn a_frame_vanishes_while_it_is_copied() {
    let pools = Pools::new();
    let first = Producer::builder(pools.pool("first")).history(PARTS);
    let first = first.max_slots(24).build().unwrap();
    let mut forwarder = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "lost_frames::forwarder", "--nocapture"])
        .env("XMEM_TEST_FIRST", pools.pool("first"))
        .env("XMEM_TEST_POOL", pools.pool("p"))
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    let receiver = pools.receiver("max-held=2").connected();
    let (reached, is_reached) = channel();
    let (go_on, goes_on) = channel();
    let goes_on = Mutex::new(goes_on);
    let pad = receiver.src().static_pad("src").unwrap();
    // The caps are sent while the frame is being taken.
    pad.add_probe(gst::PadProbeType::EVENT_DOWNSTREAM, move |_, info| {
        if let Some(gst::EventView::Caps(caps)) = info.event().map(|event| event.view())
            && caps.caps().iter().any(|it| it.has_field("vanishes"))
        {
            reached.send(()).unwrap();
            goes_on.lock().unwrap().recv().unwrap();
        }
        gst::PadProbeReturn::Ok
    });
    for _ in 0..PARTS {
        publish(&first, 1, FrameFlags::default());
    }
    assert_eq!(next(&receiver), (0, true));
    is_reached.recv().unwrap();
    until("the frames behind it", || {
        stats_of(&pools.pool("p")).published == 4
    });
    forwarder.kill().unwrap();
    forwarder.wait().unwrap();
    until("the forwarder's leases have ended", || {
        first.stats().consumers.len() == 1
    });
    for _ in 0..100 {
        publish(&first, 9, FrameFlags::default());
    }
    go_on.send(()).unwrap();
    assert_eq!(next(&receiver), (3, true));
    assert_eq!(receiver.stat("undecodable"), 1);
}

/// GstBaseSink counts them, but from 0 again after each pause, flush and segment.
#[test]
fn late_frames_are_counted_for_the_whole_run() {
    let pools = Pools::new();
    let sender = pools.sender(&caps(), "pace=always sync=true max-lateness=0 async=false");
    sender.app.set_property("handle-segment-change", true);
    let sink = sender.sink();
    let late = || stat(&sink, "late");
    // All are late, except that GstBaseSink shows one every now and then.
    let drop_one = || {
        let before = late();
        until("a late frame", || {
            push_after(&sender, 0, 0, KEY);
            late() > before
        });
    };
    let pause = || {
        sender.pipeline.settle(gst::State::Paused);
        sender.pipeline.settle(gst::State::Playing);
    };
    let segment = || push_after(&sender, 1, 0, KEY);
    let flush = || {
        let app: &gst::Element = sender.app.upcast_ref();
        assert!(app.send_event(gst::event::FlushStart::new()));
        assert!(app.send_event(gst::event::FlushStop::new(true)));
    };
    let changes: [&dyn Fn(); 3] = [&pause, &segment, &flush];
    for (number, change) in changes.into_iter().enumerate() {
        drop_one();
        let before = late();
        change();
        assert!(late() >= before, "it decreased at {number}");
        drop_one();
    }
    sender.pipeline.settle(gst::State::Ready);
    let at_the_end = late();
    sender.pipeline.0.set_state(gst::State::Paused).unwrap();
    sender.pipeline.stop();
    assert_eq!(late(), at_the_end, "after a stop");
    sender.pipeline.settle(gst::State::Ready);
    assert_eq!(late(), 0, "of the next run");
}
