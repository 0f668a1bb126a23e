// SPDX-License-Identifier: MPL-2.0

//! Encoded frames that the sink drops: consumers do not decode frames that depend on them.

mod support;

use gst::prelude::*;
use support::*;

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
    until("it is published", || {
        sender.pipeline.stat("sink", "published") == 4
    });
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

/// As after a seek to a time between two key frames: a decoder in the same pipeline gets all frames.
#[test]
fn frames_lie_before_their_segment() {
    for flags in ["", LOSSLESS] {
        let pools = Pools::new();
        let sender = pools.sender(&caps(), &format!("{flags} history=16"));
        sender.app.set_property("handle-segment-change", true);
        let receiver = pools.receiver("start-from=oldest").connected();
        let push = |start, number, is_key| push_after(&sender, start, number, is_key);
        push(0, 0, KEY);
        push(0, 1, DELTA);
        assert_eq!(next(&receiver), (0, true));
        assert_eq!(next(&receiver), (1, false));
        push(12, 10, KEY);
        push(12, 11, DELTA);
        push(12, 12, DELTA);
        push(12, 13, DELTA);
        push(12, 14, KEY);
        push(12, 15, DELTA);
        assert_eq!(next(&receiver), (14, true));
        assert_eq!(next(&receiver), (15, false));
        was_left_out(&receiver, 2);
        assert_eq!(sender.pipeline.stat("sink", "skipped"), 2);
        // A stream that begins with a key frame has no gap.
        push(20, 20, KEY);
        push(20, 21, DELTA);
        assert_eq!(next(&receiver).0, 20);
        assert_eq!(next(&receiver), (21, false));
        was_left_out(&receiver, 2);
    }
}

#[test]
fn the_last_ones_are_counted_too() {
    let pools = Pools::new();
    let sender = pools.sender(&caps(), "");
    sender.app.set_property("handle-segment-change", true);
    for number in [9, 10, 11] {
        push_after(&sender, 12, number, KEY);
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
