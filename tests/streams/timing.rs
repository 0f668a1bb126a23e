// SPDX-License-Identifier: MPL-2.0

//! Timestamps across pipelines, and the time at which the sink publishes a frame.

use crate::support::*;
use gst::prelude::*;

const VIDEO: &str = "video/x-raw,format=GRAY8,width=64,height=64,framerate=100/1";
/// The latency of a sink that paces its frames. Consumers in these tests are faster.
const LATENCY: gst::ClockTime = gst::ClockTime::from_mseconds(250);

/// The times of the buffers at a pad, on the clock that both pipelines use.
fn clock_times(pipeline: &Pipeline, element: &str, pad: &str) -> Noted<i128> {
    let weak = pipeline.0.downgrade();
    let pad = pipeline.by_name(element).static_pad(pad).unwrap();
    note(&pad, gst::PadProbeType::BUFFER, move |info| {
        let pts = info.buffer()?.pts().unwrap();
        let base_time = weak.upgrade().unwrap().base_time().unwrap_or_default();
        Some(i128::from(pts.nseconds()) + i128::from(base_time.nseconds()))
    })
}

/// The difference of the timestamps after and before the pool, for a live or non-live source.
fn shift(is_live: bool, properties: &str, clock: Option<&gst::Clock>) -> i128 {
    let pools = Pools::new();
    let producer = pools.launch(&format!(
        "videotestsrc is-live={is_live} num-buffers=8 ! {VIDEO} ! xmemsink name=sink pool=POOL {LOSSLESS} {properties}"
    ));
    if let Some(clock) = clock {
        producer.0.use_clock(Some(clock));
    }
    producer.0.set_latency(Some(LATENCY));
    let receiver = pools.receiver("");
    let sent = clock_times(&producer, "sink", "sink");
    let received = clock_times(&receiver.pipeline, "src", "src");
    producer.play();
    assert_eq!(receiver.rest().len(), 8);
    producer.wait_eos();
    let (sent, received) = (sent.lock().unwrap(), received.lock().unwrap());
    // The first frame may have been sent before the base time was known.
    let shifts: Vec<_> = sent
        .iter()
        .zip(received.iter())
        .skip(1)
        .map(|(sent, received)| received - sent)
        .collect();
    assert_eq!(shifts.len(), 7);
    let spread = shifts.iter().max().unwrap() - shifts.iter().min().unwrap();
    if clock.is_none() {
        assert_eq!(spread, 0, "{shifts:?}");
    }
    shifts[0]
}

#[test]
fn live_frames_are_handed_over_at_once_with_their_time() {
    assert_eq!(shift(true, "", None), 0);
}

#[test]
fn other_frames_are_handed_over_when_they_are_due() {
    assert_eq!(shift(false, "", None), i128::from(LATENCY.nseconds()));
}

#[test]
fn pace_can_be_chosen() {
    assert_eq!(
        shift(true, "pace=always", None),
        i128::from(LATENCY.nseconds())
    );
    assert_eq!(shift(true, "pace=never", None), 0);
    assert_eq!(
        shift(false, "pace=always", None),
        i128::from(LATENCY.nseconds())
    );
    assert_eq!(shift(false, "pace=never", None), 0);
}

/// A frame in PAUSED is for preroll only. It is published when the pipeline plays.
#[test]
fn no_frame_is_handed_over_in_a_pause_or_twice() {
    for properties in ["", "pace=never", "sync=false", "delivery=lossless"] {
        let pools = Pools::new();
        let sender = pools.sender(&VIDEO.parse().unwrap(), properties);
        let receiver = pools.receiver("");
        let receiver = receiver.connected();
        let sink = sender.sink();
        for number in 0..3_u8 {
            // A sink that has played receives its next frame during the following pause.
            sender.pipeline.0.set_state(gst::State::Paused).unwrap();
            let mut buffer = gst::Buffer::from_slice([number; 64 * 64]);
            buffer.make_mut().set_pts(gst::ClockTime::ZERO);
            sender.push(buffer);
            sender.pipeline.settle(gst::State::Paused);
            assert_eq!(stat(&sink, "published"), u64::from(number), "{properties}");
            sender.pipeline.settle(gst::State::Playing);
            let sample = receiver.next().unwrap();
            assert_eq!(bytes(sample.buffer().unwrap())[0], number);
        }
        sender.finish();
        assert!(receiver.next().is_none());
        assert_eq!(stat(&sink, "published"), 3);
    }
}

#[test]
fn frames_that_max_lateness_drops_are_counted() {
    let pools = Pools::new();
    let sender = pools.sender(&VIDEO.parse().unwrap(), "sync=true max-lateness=0");
    let sink = sender.sink();
    let push = || {
        let mut buffer = gst::Buffer::from_slice([0; 64 * 64]);
        let buffer_ref = buffer.make_mut();
        buffer_ref.set_pts(gst::ClockTime::ZERO);
        buffer_ref.set_duration(gst::ClockTime::MSECOND);
        sender.push(buffer);
    };
    push();
    sender.pipeline.settle(gst::State::Playing);
    until("time passes", || {
        sender.pipeline.0.current_running_time() > Some(gst::ClockTime::from_mseconds(100))
    });
    (1..5).for_each(|_| push());
    sender.finish();
    assert!(stat(&sink, "late") > 0);
    assert_eq!(stat(&sink, "published") + stat(&sink, "late"), 5);
}

#[test]
fn sync_false_wins() {
    assert_eq!(shift(true, "pace=always sync=false", None), 0);
    assert_eq!(shift(false, "pace=always sync=false", None), 0);
}

/// The producer's pipeline uses the wall clock, the consumer's the monotonic clock.
#[test]
fn pipelines_may_have_different_clocks() {
    init();
    let wall = gst::glib::Object::builder::<gst::SystemClock>()
        .property("name", "wall")
        .property("clock-type", gst::ClockType::Realtime)
        .build();
    let wall = wall.upcast::<gst::Clock>();
    let monotonic = gst::SystemClock::obtain();
    let ahead = i128::from(wall.time().nseconds()) - i128::from(monotonic.time().nseconds());
    let shift = shift(true, "", Some(&wall));
    // The clocks are read at slightly different times. A wrong clock would differ by decades.
    let hour = 3_600_000_000_000;
    assert!((shift + ahead).abs() < hour, "{shift} {ahead}");
}

#[test]
fn the_source_is_live_and_has_its_deadline_as_latency() {
    let pools = Pools::new();
    let pipeline =
        pools.launch("xmemsrc name=src pool=POOL processing-deadline=7000000 ! fakesink");
    pipeline.0.set_state(gst::State::Paused).unwrap();
    let mut query = gst::query::Latency::new();
    assert!(pipeline.by_name("src").query(&mut query));
    assert_eq!(
        query.result(),
        (true, gst::ClockTime::from_mseconds(7), None)
    );
}

#[test]
fn a_stream_without_timestamps_stays_without() {
    let pools = Pools::new();
    let file = pools.file("in");
    let content: Vec<u8> = (0..100_000u32).map(|n| (n % 253) as u8).collect();
    std::fs::write(&file, &content).unwrap();
    let producer = pools.launch(&format!(
        "filesrc location={} ! xmemsink name=sink pool=POOL {LOSSLESS}",
        file.display()
    ));
    let receiver = pools.receiver("max-held=64");
    producer.play();
    let samples = receiver.rest();
    producer.wait_eos();
    let received: Vec<u8> = samples
        .iter()
        .flat_map(|sample| bytes(sample.buffer().unwrap()))
        .collect();
    assert!(received == content);
    assert!(
        samples
            .iter()
            .all(|sample| sample.buffer().unwrap().pts().is_none())
    );
    assert!(samples.iter().all(|sample| sample.caps().is_none()));
}

#[test]
fn a_frame_from_before_the_pipeline_has_running_time_zero() {
    let pools = Pools::new();
    let sender = pools.sender(&VIDEO.parse().unwrap(), "");
    let mut buffer = gst::Buffer::from_slice([1; 64 * 64]);
    buffer.make_mut().set_pts(gst::ClockTime::ZERO);
    sender.push(buffer);
    sender.until_published(1);
    let receiver = pools.receiver("start-from=oldest");
    assert_eq!(
        receiver.next().unwrap().buffer().unwrap().pts(),
        Some(gst::ClockTime::ZERO)
    );
}

#[test]
fn a_stream_that_began_before_its_consumer_keeps_its_spacing() {
    let pools = Pools::new();
    let producer = pools.launch(&format!(
        "videotestsrc is-live=true ! {VIDEO} ! xmemsink name=sink pool=POOL history=200 max-slots=256"
    ));
    producer.play();
    // The frames that are published now are older than the consumer's time 0.
    until("frames", || stat(&producer.sink(), "published") >= 20);
    let receiver = pools.receiver("start-from=oldest");
    let times: Vec<_> = (0..10)
        .map(|_| receiver.next().unwrap().buffer().unwrap().pts().unwrap())
        .collect();
    for pair in times.windows(2) {
        // The interval is 10 ms. A busy machine may skip frames.
        let step = pair[1].saturating_sub(pair[0]);
        assert!(step >= gst::ClockTime::from_mseconds(9), "{times:?}");
    }
    assert!(times[0] < gst::ClockTime::from_mseconds(1), "{times:?}");
}
