// SPDX-License-Identifier: MPL-2.0

//! The times, segments and flags of a consumer's buffers.

use crate::support::*;
use gst::prelude::*;
use xmem_core::{Delivery, FrameMeta, Producer, Sticky, Wait};

const CAPS: &str = "application/x-test";

const fn ms(ms: u64) -> gst::ClockTime {
    gst::ClockTime::from_mseconds(ms)
}

type Times = (Option<gst::ClockTime>, Option<gst::ClockTime>);

/// A buffer of one byte, which is its number.
fn buffer(number: u8, pts: Option<gst::ClockTime>, dts: Option<gst::ClockTime>) -> gst::Buffer {
    let mut buffer = gst::Buffer::from_slice([number]);
    {
        let buffer = buffer.make_mut();
        buffer.set_pts(pts);
        buffer.set_dts(dts);
        buffer.set_duration(ms(40));
    }
    buffer
}

fn segment(change: impl FnOnce(&mut gst::FormattedSegment<gst::ClockTime>)) -> gst::Segment {
    init();
    let mut segment = gst::FormattedSegment::new();
    change(&mut segment);
    segment.upcast()
}

/// A sender that also sends segments.
fn sender(pools: &Pools, properties: &str) -> Sender {
    let sender = pools.sender(&CAPS.parse().unwrap(), properties);
    sender.app.set_property("handle-segment-change", true);
    // Otherwise appsrc would end the stream at the end of a segment.
    sender.app.set_automatic_eos(false);
    sender
}

/// Sets the times of the buffers by their number. appsrc copies PTS to DTS, and DTS to PTS, if one is missing.
fn with_times(sender: &Sender, times: Vec<Times>) {
    sender.sink().static_pad("sink").unwrap().add_probe(
        gst::PadProbeType::BUFFER,
        move |_, info| {
            let buffer = info.buffer_mut().unwrap().make_mut();
            let (pts, dts) = times[usize::from(bytes(buffer)[0])];
            buffer.set_pts(pts);
            buffer.set_dts(dts);
            gst::PadProbeReturn::Ok
        },
    );
}

fn push(sender: &Sender, buffer: &gst::Buffer, segment: &gst::Segment) {
    let sample = gst::Sample::builder()
        .buffer(buffer)
        .segment(segment)
        .build();
    sender.app.push_sample(&sample).unwrap();
}

fn times(sample: &gst::Sample) -> Times {
    let buffer = sample.buffer().unwrap();
    (buffer.pts(), buffer.dts())
}

/// Asserts that segments are equal except for the position.
#[track_caller]
fn means_the_same(one: &gst::Segment, other: &gst::Segment) {
    let (mut one, mut other) = (one.clone(), other.clone());
    for segment in [&mut one, &mut other] {
        let start = segment.start();
        segment.set_position(start);
    }
    assert_eq!(one, other);
}

#[test]
fn passthrough_leaves_times_and_segments_as_they_are() {
    let pools = Pools::new();
    let sender = sender(&pools, LOSSLESS);
    let receiver = pools.receiver("timestamp-mode=passthrough");
    let first = segment(|segment| {
        segment.set_start(ms(1_000));
        segment.set_stop(ms(1_200));
        segment.set_base(ms(300));
        segment.set_time(ms(7));
    });
    let second = segment(|segment| {
        segment.set_rate(-2.0);
        segment.set_applied_rate(0.5);
        segment.set_start(ms(5_000));
        segment.set_stop(ms(6_000));
        segment.set_offset(ms(20));
    });
    let sent = [
        (None, None, &first),
        (Some(ms(1_000)), None, &first),
        // The last buffer ends after the segment. The stream continues.
        (Some(ms(1_190)), Some(ms(1_100)), &first),
        (Some(ms(5_900)), None, &second),
        (None, Some(ms(5_500)), &second),
        (None, None, &second),
        (Some(ms(5_000)), Some(ms(5_000)), &second),
    ];
    let times_sent = sent.iter().map(|(pts, dts, _)| (*pts, *dts));
    with_times(&sender, times_sent.collect());
    for (number, (pts, dts, segment)) in sent.iter().enumerate() {
        push(&sender, &buffer(number as u8, *pts, *dts), segment);
    }
    sender.app.end_of_stream().unwrap();
    let samples = receiver.rest();
    assert_eq!(samples.len(), sent.len());
    for (sample, (pts, dts, segment)) in samples.iter().zip(sent) {
        assert_eq!(times(sample), (pts, dts));
        assert_eq!(sample.buffer().unwrap().duration(), Some(ms(40)));
        means_the_same(sample.segment().unwrap(), segment);
    }
}

/// Probes on the source's pad compute running times with its sticky segment.
#[test]
fn passthrough_has_the_segment_on_the_pad_of_the_source() {
    let pools = Pools::new();
    let sender = sender(&pools, LOSSLESS);
    let receiver = pools.receiver("timestamp-mode=passthrough");
    let pad = receiver.src().static_pad("src").unwrap();
    let sink_pad = receiver.app.static_pad("sink").unwrap();
    let received = note(
        &sink_pad,
        gst::PadProbeType::EVENT_DOWNSTREAM,
        |info| match info.event()?.view() {
            gst::EventView::Segment(event) => Some(event.segment().start().value()),
            _ => None,
        },
    );
    let segments = [1_000, 2_000].map(|start| {
        segment(|segment| {
            segment.set_start(ms(start));
            segment.set_base(ms(start / 10));
        })
    });
    for (number, segment) in segments.iter().enumerate() {
        for pts in [2_100, 2_200] {
            push(&sender, &buffer(number as u8, Some(ms(pts)), None), segment);
            let sample = receiver.next().unwrap();
            means_the_same(sample.segment().unwrap(), segment);
            let sticky = pad.sticky_event::<gst::event::Segment>(0).unwrap();
            means_the_same(sticky.segment(), segment);
        }
    }
    // The peer keeps the segment, so it gets no other when it is linked again.
    let peer = pad.peer().unwrap();
    pad.unlink(&peer).unwrap();
    pad.link(&peer).unwrap();
    push(&sender, &buffer(1, Some(ms(2_300)), None), &segments[1]);
    means_the_same(receiver.next().unwrap().segment().unwrap(), &segments[1]);
    // An offset of the pad is part of the running time.
    pad.set_offset(7_000_000_000);
    push(&sender, &buffer(1, Some(ms(2_400)), None), &segments[1]);
    let sample = receiver.next().unwrap();
    let running_time = |segment: &gst::Segment| {
        let segment = segment.downcast_ref::<gst::ClockTime>().unwrap();
        segment.to_running_time(ms(2_400))
    };
    assert_eq!(
        running_time(sample.segment().unwrap()),
        Some(ms(200 + 400 + 7_000))
    );
    let second = ms(1_000).nseconds() as i64;
    assert_eq!(*received.lock().unwrap(), [second, 2 * second, 2 * second]);
}

/// A late joiner also gets an event that is not an entry of the pool.
#[test]
fn passthrough_has_the_segment_before_the_first_frame_of_a_late_joiner() {
    let pools = Pools::new();
    let sender = sender(&pools, "");
    let begin = segment(|segment| segment.set_start(ms(500)));
    push(&sender, &buffer(1, Some(ms(600)), None), &begin);
    sender.until_published(1);
    let receiver = pools.receiver("timestamp-mode=passthrough start-from=oldest");
    let sample = receiver.next().unwrap();
    assert_eq!(times(&sample), (Some(ms(600)), None));
    means_the_same(sample.segment().unwrap(), &begin);
}

#[test]
fn passthrough_is_for_streams_without_times_too() {
    let pools = Pools::new();
    let file = pools.file("in");
    std::fs::write(&file, [7; 10_000]).unwrap();
    let producer = pools.launch(&format!(
        "filesrc blocksize=4096 location={} ! xmemsink name=sink pool=POOL {LOSSLESS}",
        file.display()
    ));
    let receiver = pools.receiver("timestamp-mode=passthrough");
    producer.play();
    let samples = receiver.rest();
    assert_eq!(samples.len(), 3);
    for (number, sample) in samples.iter().enumerate() {
        assert_eq!(sample.segment().unwrap().format(), gst::Format::Bytes);
        assert_eq!(sample.buffer().unwrap().offset(), number as u64 * 4_096);
    }
}

/// At its end a muxer goes back to complete its header, with the segment of the beginning.
#[test]
fn passthrough_writes_files_as_they_are() {
    for film in [
        "audiotestsrc num-buffers=10 ! wavenc",
        "videotestsrc num-buffers=10 ! video/x-raw,format=I420,width=32,height=32 ! avimux",
    ] {
        let pools = Pools::new();
        let file = |name| pools.file(name).to_str().unwrap().to_owned();
        pools.run(&format!("{film} ! filesink location={}", file("direct")));
        let producer = pools.launch(&format!("{film} ! xmemsink pool=POOL {LOSSLESS}"));
        let consumer = pools.launch(&format!(
            "xmemsrc pool=POOL timestamp-mode=passthrough ! filesink location={}",
            file("shared")
        ));
        producer.play();
        consumer.play();
        consumer.wait_eos();
        producer.wait_eos();
        let read = |name| std::fs::read(file(name)).unwrap();
        assert!(read("shared") == read("direct"), "{film}");
    }
}

/// The times in such streams are meaningful only to the producer.
#[test]
fn streams_without_a_running_time_have_no_times() {
    let pools = Pools::new();
    let producer = pools.launch(&format!(
        "appsrc name=app format=default ! xmemsink name=sink pool=POOL {LOSSLESS}"
    ));
    let receiver = pools.receiver("");
    producer.play();
    let app = producer
        .by_name("app")
        .downcast::<gst_app::AppSrc>()
        .unwrap();
    app.push_buffer(buffer(0, Some(ms(3)), None)).unwrap();
    app.end_of_stream().unwrap();
    let samples = receiver.rest();
    assert_eq!(samples[0].segment().unwrap().format(), gst::Format::Time);
    assert_eq!(times(&samples[0]), (None, None));
}

#[test]
fn arrival_mode_uses_the_time_of_publication() {
    let pools = Pools::new();
    let sender = pools.sender(&CAPS.parse().unwrap(), LOSSLESS);
    let receiver = pools.receiver("timestamp-mode=arrival");
    let running_time = || receiver.pipeline.0.current_running_time().unwrap();
    let mut last = gst::ClockTime::ZERO;
    // Only the order of decoding and presentation matters, not the times.
    for (pts, dts, ahead) in [
        (None, None, None),
        (Some(ms(90_000)), None, None),
        (Some(ms(80_080)), Some(ms(80_000)), Some(ms(80))),
        (Some(ms(3)), None, None),
    ] {
        let sent = running_time();
        sender.push(buffer(0, pts, dts));
        let sample = receiver.next().unwrap();
        let (pts, dts) = times(&sample);
        let arrival = pts.unwrap() - ahead.unwrap_or_default();
        assert!(
            sent <= arrival && arrival <= running_time(),
            "{sent} {arrival}"
        );
        assert!(last <= arrival);
        last = arrival;
        assert_eq!(dts, ahead.map(|_| arrival));
        assert_eq!(sample.segment().unwrap().format(), gst::Format::Time);
    }
    // Downstream may wait for any time: the appsink holds one frame, and the source waits with another.
    let sink = sender.sink();
    (0..4).for_each(|number| sender.push(buffer(number, None, None)));
    until("all are there", || stat(&sink, "published") == 8);
    let published = running_time();
    until("time passes", || running_time() > published);
    for _ in 0..4 {
        let sample = receiver.next().unwrap();
        assert!(times(&sample).0.unwrap() <= published, "{sample:?}");
    }
}

#[test]
fn arrival_mode_keeps_the_spacing_from_the_oldest_frame_on() {
    let pools = Pools::new();
    let sender = pools.sender(&CAPS.parse().unwrap(), "history=4");
    for number in 1..=4 {
        sender.push(buffer(0, None, None));
        sender.until_published(number);
    }
    let receiver = pools.receiver("timestamp-mode=arrival start-from=oldest");
    let received = [(); 4].map(|()| times(&receiver.next().unwrap()).0.unwrap());
    assert_eq!(received[0], gst::ClockTime::ZERO);
    assert!(
        received.is_sorted_by(|one, next| one < next),
        "{received:?}"
    );
}

/// The times of these buffers after the pool, from the first one.
fn through_the_pool(
    properties: &str,
    pad_offset: i64,
    sent: &[(Times, gst::Segment)],
) -> (Vec<Times>, Vec<gst::ClockTime>) {
    let pools = Pools::new();
    let receiver = pools.receiver("");
    let sender = sender(&pools, &format!("{LOSSLESS} {properties}"));
    with_times(&sender, sent.iter().map(|(times, _)| *times).collect());
    sender
        .sink()
        .static_pad("sink")
        .unwrap()
        .set_offset(pad_offset);
    for (number, ((pts, dts), segment)) in sent.iter().enumerate() {
        push(&sender, &buffer(number as u8, *pts, *dts), segment);
    }
    sender.app.end_of_stream().unwrap();
    let samples = receiver.rest();
    // The running time in the consumer's pipeline that corresponds to 0 in the producer's.
    let base_time = |pipeline: &Pipeline| pipeline.0.base_time().unwrap();
    let begin = base_time(&sender.pipeline) - base_time(&receiver.pipeline);
    let times = samples.iter().map(|sample| {
        let (pts, dts) = times(sample);
        (pts.map(|pts| pts - begin), dts.map(|dts| dts - begin))
    });
    let durations = samples
        .iter()
        .map(|sample| sample.buffer().unwrap().duration().unwrap());
    (times.collect(), durations.collect())
}

fn plain() -> gst::Segment {
    segment(|_| {})
}

#[test]
fn times_that_are_missing_stay_missing() {
    let all: [Times; 4] = [
        (None, None),
        (Some(ms(50)), None),
        (None, Some(ms(60))),
        (Some(ms(120)), Some(ms(80))),
    ];
    let sent = all.map(|times| (times, plain()));
    assert_eq!(through_the_pool("", 0, &sent).0, all);
}

#[test]
fn running_times_follow_the_segment() {
    let fast = segment(|segment| {
        segment.set_rate(2.0);
        segment.set_start(ms(1_000));
        segment.set_base(ms(500));
    });
    let sent = [
        ((Some(ms(1_000)), None), fast.clone()),
        ((Some(ms(1_040)), None), fast),
        // In reverse playback, a frame is shown from its end to its beginning.
        (
            (Some(ms(1_960)), None),
            segment(|segment| {
                segment.set_rate(-1.0);
                segment.set_stop(ms(2_000));
                segment.set_base(ms(700));
            }),
        ),
    ];
    let (times, durations) = through_the_pool("", 0, &sent);
    assert_eq!(
        times,
        [
            (Some(ms(500)), None),
            (Some(ms(520)), None),
            (Some(ms(700)), None)
        ]
    );
    assert_eq!(durations, [ms(20), ms(20), ms(40)]);
}

#[test]
fn offsets_of_pads_and_of_the_sink_apply() {
    let sent = [((Some(ms(3_000)), Some(ms(2_900))), plain())];
    let second = i64::try_from(ms(1_000).nseconds()).unwrap();
    let times = through_the_pool("", -second, &sent).0;
    assert_eq!(times, [(Some(ms(2_000)), Some(ms(1_900)))]);
    let times = through_the_pool("ts-offset=-500000000", second, &sent).0;
    assert_eq!(times, [(Some(ms(3_500)), Some(ms(3_400)))]);
}

#[test]
fn running_times_before_the_start_keep_their_spacing() {
    come_from_before_the_start(3_600_000_000_000);
}

/// CLOCK_MONOTONIC starts at 0 when the host starts.
#[test]
fn running_times_before_the_start_of_the_host_keep_their_spacing() {
    come_from_before_the_start(xmem_core::monotonic_ns() + 3_600_000_000_000);
}

/// The pad's offset moves the times before the producer's start, which is after the consumer's.
fn come_from_before_the_start(by: i64) {
    let pools = Pools::new();
    let sender = pools.sender(&CAPS.parse().unwrap(), LOSSLESS);
    let receiver = pools.receiver("");
    sender.sink().static_pad("sink").unwrap().set_offset(-by);
    for number in 0..3 {
        sender.push(buffer(number, Some(ms(40 * u64::from(number))), None));
    }
    sender.app.end_of_stream().unwrap();
    let times: Vec<_> = receiver.rest().iter().map(times).collect();
    assert_eq!(times, [0, 40, 80].map(|time| (Some(ms(time)), None)));
}

/// A live sender whose running times are all one hour before the start of any consumer.
fn an_hour_ago(pools: &Pools, properties: &str) -> Sender {
    let pipeline = pools.launch(&format!(
        "appsrc name=app format=time is-live=true ! xmemsink name=sink pool=POOL {properties}"
    ));
    let app = pipeline.by_name("app").downcast().unwrap();
    let sender = Sender { pipeline, app };
    sender.app.set_caps(Some(&CAPS.parse().unwrap()));
    let hour = i64::try_from(ms(3_600_000).nseconds()).unwrap();
    sender.sink().static_pad("sink").unwrap().set_offset(-hour);
    sender.pipeline.play();
    sender
}

/// In a lossless pool they waited for the consumer, and a recorder needs the original times.
#[test]
fn live_frames_that_were_held_up_keep_their_spacing() {
    let pools = Pools::new();
    let sender = an_hour_ago(&pools, LOSSLESS);
    let receiver = pools.receiver("");
    let sent = [0, 40, 80, 120];
    for time in sent {
        sender.push(buffer(0, Some(ms(time)), None));
    }
    sender.app.end_of_stream().unwrap();
    let times: Vec<_> = receiver.rest().iter().map(times).collect();
    assert_eq!(times, sent.map(|time| (Some(ms(time)), None)));
}

/// A sink that is late by all frames of the pool would otherwise miss frames permanently.
#[test]
fn a_live_stream_that_lags_catches_up_where_frames_are_missing() {
    for (start, delivery) in [("oldest", "history=8"), ("next", LOSSLESS)] {
        let pools = Pools::new();
        let sender = an_hour_ago(&pools, delivery);
        let times_sent = [0, 40, 80, 160, 200, 1_800_000, 1_800_040];
        let push = || {
            for time in times_sent {
                sender.push(buffer(0, Some(ms(time)), None));
            }
        };
        if start == "oldest" {
            push();
            sender.until_published(7);
        }
        let receiver = pools.receiver(&format!("start-from={start}"));
        if start == "next" {
            push();
        }
        sender.app.end_of_stream().unwrap();
        let times: Vec<_> = receiver.rest().iter().map(times).collect();
        let expected = [0, 40, 80, 120, 160, 200, 240];
        assert_eq!(times, expected.map(|time| (Some(ms(time)), None)));
    }
}

#[test]
fn frames_outside_of_their_segment_are_not_published() {
    let pools = Pools::new();
    let sender = sender(&pools, LOSSLESS);
    let receiver = pools.receiver("");
    let begin = segment(|segment| segment.set_start(ms(1_000)));
    push(&sender, &buffer(0, Some(ms(900)), None), &begin);
    push(&sender, &buffer(1, Some(ms(1_000)), None), &begin);
    sender.app.end_of_stream().unwrap();
    let samples = receiver.rest();
    assert_eq!(samples.len(), 1);
    assert_eq!(bytes(samples[0].buffer().unwrap()), [1]);
}

#[test]
fn flags_with_a_meaning_elsewhere_arrive() {
    let pools = Pools::new();
    let sender = pools.sender(&CAPS.parse().unwrap(), LOSSLESS);
    let receiver = pools.receiver("");
    use gst::BufferFlags as Flags;
    let each = [
        Flags::DISCONT,
        Flags::RESYNC,
        Flags::CORRUPTED,
        Flags::MARKER,
        Flags::HEADER,
        Flags::GAP,
        Flags::DROPPABLE,
        Flags::DELTA_UNIT,
        Flags::SYNC_AFTER,
        Flags::NON_DROPPABLE,
        Flags::LIVE,
        Flags::DECODE_ONLY,
    ];
    // The first frame is always a discontinuity.
    sender.push(buffer(0, None, None));
    for flags in each {
        let mut buffer = buffer(0, None, None);
        buffer.make_mut().set_flags(flags | Flags::TAG_MEMORY);
        sender.push(buffer);
    }
    sender.app.end_of_stream().unwrap();
    let flags: Vec<_> = receiver
        .rest()
        .iter()
        .map(|sample| sample.buffer().unwrap().flags())
        .collect();
    assert_eq!(flags[0], Flags::DISCONT);
    assert_eq!(flags[1..], each);
}

/// The consumer has two slots, and the appsink keeps the newest pulled frame. Frames that arrive while both are held are dropped,
/// and the next one is marked.
#[test]
fn a_gap_is_marked() {
    let pools = Pools::new();
    let sender = sender(&pools, LOSSLESS);
    let receiver = pools.receiver("max-held=2 over-budget=drop");
    receiver.app.set_property("enable-last-sample", false);
    let next = |number| {
        let sample = receiver.next().unwrap();
        let buffer = sample.buffer().unwrap();
        assert_eq!(bytes(buffer), [number]);
        let discont = buffer.flags().contains(gst::BufferFlags::DISCONT);
        (sample, discont)
    };
    let push = |number| sender.push(buffer(number, None, None));
    push(0);
    let (held, discont) = next(0);
    assert!(discont);
    push(1);
    assert!(!next(1).1);
    push(2);
    until("a frame is dropped", || receiver.stat("dropped") == 1);
    drop(held);
    push(3);
    assert!(next(3).1);
    push(4);
    assert!(!next(4).1);
}

#[test]
fn passthrough_has_no_segment_of_a_producer_that_is_gone() {
    let pools = Pools::new();
    let first = sender(&pools, LOSSLESS);
    let receiver = pools.receiver("timestamp-mode=passthrough");
    let late = segment(|segment| segment.set_start(ms(1_000)));
    push(&first, &buffer(0, Some(ms(1_000)), None), &late);
    means_the_same(receiver.next().unwrap().segment().unwrap(), &late);
    first.pipeline.stop();
    // A producer without GStreamer sets no segments.
    let builder = Producer::builder(pools.pool("p")).delivery(Delivery::Lossless);
    let second = builder.build().unwrap();
    let mut sticky = Sticky::new();
    sticky.set("caps", CAPS);
    second.set_sticky(&sticky).unwrap();
    second.wait_for_consumers(1, Wait::FOREVER).unwrap();
    let meta = FrameMeta::new(1).pts(0);
    second.acquire(1).unwrap().publish(meta).unwrap();
    let sample = receiver.next().unwrap();
    assert_eq!(times(&sample), (Some(ms(0)), None));
    means_the_same(sample.segment().unwrap(), &segment(|_| {}));
}
