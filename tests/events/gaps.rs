// SPDX-License-Identifier: MPL-2.0

//! Gaps and buffers keep their order and times.

use super::*;

#[test]
fn gaps_are_delivered_at_their_time() {
    let pools = Pools::new();
    let (receiver, log) = noted(&pools, "");
    let feed = Feed::new(&pools, LOSSLESS);
    let time = gst::ClockTime::from_mseconds;
    // A stream may begin with a gap.
    feed.start("stream");
    let base_time = |pipeline: &Pipeline| pipeline.0.base_time().unwrap().nseconds();
    let (src, sink) = (receiver.src(), feed.pipeline.sink());
    until("playing", || {
        src.current_state() == gst::State::Playing && sink.base_time().is_some()
    });
    for ms in [5_000, 5_040] {
        feed.event(
            gst::event::Gap::builder(time(ms))
                .duration(time(40))
                .gap_flags(gst::GapFlags::DATA)
                .build(),
        );
    }
    until("two gaps", || log.of_type(gst::EventType::Gap).len() == 2);
    assert_eq!(
        log.names(),
        ["stream-start", "caps", "segment", "gap", "gap"]
    );
    feed.frame(1);
    assert!(receiver.next().is_some());
    // There is no additional segment of GstBaseSrc.
    assert_eq!(log.of_type(gst::EventType::Segment).len(), 1);
    let shift = base_time(&feed.pipeline) as i64 - base_time(&receiver.pipeline) as i64;
    for (event, ms) in log.of_type(gst::EventType::Gap).iter().zip([5_000, 5_040]) {
        let gst::EventView::Gap(gap) = event.view() else {
            unreachable!()
        };
        let there = gap.timestamp().nseconds() as i64;
        assert_eq!(there - shift, time(ms).nseconds() as i64);
        assert_eq!(gap.duration(), Some(time(40)));
        assert_eq!(gap.gap_flags(), gst::GapFlags::DATA);
    }
    assert_eq!(feed.pipeline.stat("sink", "events"), 2);
}

#[test]
fn a_buffer_without_bytes_stays_a_buffer() {
    let pools = Pools::new();
    let (receiver, _) = noted(&pools, "");
    let feed = Feed::new(&pools, LOSSLESS);
    feed.event(gst::event::StreamStart::new("stream"));
    feed.event(gst::event::Caps::new(
        &"text/x-raw,format=utf8".parse().unwrap(),
    ));
    feed.segment();
    let mut gap = gst::Buffer::new();
    let gap_ref = gap.get_mut().unwrap();
    gap_ref.set_flags(gst::BufferFlags::GAP | gst::BufferFlags::DROPPABLE);
    gap_ref.set_pts(gst::ClockTime::from_seconds(1));
    gap_ref.set_duration(gst::ClockTime::from_seconds(2));
    feed.pad.push(gap).unwrap();
    let sample = receiver.next().unwrap();
    let buffer = sample.buffer().unwrap();
    assert_eq!(buffer.size(), 0);
    assert!(
        buffer
            .flags()
            .contains(gst::BufferFlags::GAP | gst::BufferFlags::DROPPABLE)
    );
    assert_eq!(buffer.duration(), Some(gst::ClockTime::from_seconds(2)));
}

#[test]
fn lists_of_buffers_arrive_complete() {
    let pools = Pools::new();
    let (receiver, _) = noted(&pools, "");
    let feed = Feed::new(&pools, LOSSLESS);
    feed.start("stream");
    let list = gst::BufferList::from_iter((1..=5).map(frame));
    feed.pad.push_list(list).unwrap();
    for expected in 1..=5 {
        assert_eq!(number(&receiver.next().unwrap()), expected);
    }
}

#[test]
fn events_have_the_times_that_were_asked_for() {
    let pools = Pools::new();
    let (receiver, log) = noted(&pools, "timestamp-mode=passthrough");
    let feed = Feed::new(&pools, LOSSLESS);
    feed.start("stream");
    for (start, number) in [(10, 1), (20, 2)] {
        let start = gst::ClockTime::from_seconds(start);
        feed.segment_from(start);
        feed.event(gst::event::Gap::new(start, gst::ClockTime::SECOND));
        feed.frame_at(number, start + gst::ClockTime::SECOND);
        let sample = receiver.next().unwrap();
        assert_eq!(
            sample.buffer().unwrap().pts(),
            Some(start + gst::ClockTime::SECOND)
        );
    }
    let one = ["segment", "gap", "buffer"];
    let all = [&["stream-start", "caps"][..], &one, &one].concat();
    assert_eq!(log.names(), all);
    let gaps = log.of_type(gst::EventType::Gap);
    for (gap, start) in gaps.iter().zip([10, 20]) {
        let gst::EventView::Gap(gap) = gap.view() else {
            unreachable!()
        };
        assert_eq!(gap.timestamp(), gst::ClockTime::from_seconds(start));
    }
}
