// SPDX-License-Identifier: MPL-2.0

//! A synchronised sink after a pool gets frames in time.

mod support;

use std::sync::atomic::{AtomicBool, Ordering};

use gst::prelude::*;
use gst_base::prelude::*;
use support::*;

const CAPS: &str = "video/x-raw,format=GRAY8,width=16,height=16,framerate=20/1";
const FRAMES: u64 = 50;
/// The allowed lateness. The producer's latency is larger, so all frames would be late if it were ignored.
const DEADLINE: gst::ClockTime = gst::ClockTime::from_mseconds(700);
const HELD_BACK: gst::ClockTime = gst::ClockTime::from_mseconds(1_500);

/// Redistributes the latency, as applications do when an element posts a latency message.
fn follow_latency(pipeline: &Pipeline) {
    let weak = pipeline.0.downgrade();
    pipeline
        .0
        .bus()
        .unwrap()
        .set_sync_handler(move |_, message| {
            if message.type_() == gst::MessageType::Latency
                && let Some(pipeline) = weak.upgrade()
            {
                pipeline.call_async(|pipeline| {
                    let _ = pipeline.recalculate_latency();
                });
            }
            gst::BusSyncReply::Pass
        });
}

/// Holds frames until the application has redistributed the latency.
fn wait_for_latency(src: &gst::Element, sink: &gst::Element) {
    let (src, weak) = (src.downgrade(), sink.downgrade());
    sink.static_pad("sink")
        .unwrap()
        .add_probe(gst::PadProbeType::BUFFER, move |_, _| {
            let (src, sink) = (src.upgrade().unwrap(), weak.upgrade().unwrap());
            let sink = sink.downcast::<gst_base::BaseSink>().unwrap();
            until("the latency is known", || sink.latency() == latency(&src));
            gst::PadProbeReturn::Ok
        });
}

fn latency(element: &gst::Element) -> gst::ClockTime {
    let mut query = gst::query::Latency::new();
    assert!(element.query(&mut query));
    let (live, min, max) = query.result();
    assert!(live);
    assert_eq!(max, None);
    min
}

/// Plays a producer, and returns the latency that the source reports.
fn nothing_is_late(producer: &str) -> gst::ClockTime {
    let pools = Pools::new();
    let producer = pools.launch(producer);
    follow_latency(&producer);
    let consumer = pools.launch(&format!(
        "xmemsrc name=src pool=POOL processing-deadline={} \
         ! fakesink name=sink async=false sync=true max-lateness=0 processing-deadline=0",
        DEADLINE.nseconds()
    ));
    follow_latency(&consumer);
    wait_for_latency(&consumer.by_name("src"), &consumer.sink());
    consumer.play();
    producer.play();
    consumer.wait_eos();
    assert_eq!(consumer.stat("src", "received"), FRAMES);
    let stats = consumer.sink().property::<gst::Structure>("stats");
    // A busy machine delays some frames. With a wrong latency, all frames would be late.
    let rendered = stats.get::<u64>("rendered").unwrap();
    assert!(rendered > FRAMES / 2, "{stats}");
    latency(&consumer.by_name("src"))
}

/// One frame of the source: its latency may be this long.
const ONE_FRAME: gst::ClockTime = gst::ClockTime::from_mseconds(50);

#[test]
fn live_frames_that_are_handed_over_at_once_are_in_time() {
    let latency = nothing_is_late(&format!(
        "videotestsrc is-live=true num-buffers={FRAMES} ! {CAPS} ! xmemsink pool=POOL {LOSSLESS}"
    ));
    assert_eq!(latency, ONE_FRAME + DEADLINE);
}

#[test]
fn live_frames_that_their_pipeline_holds_back_are_in_time() {
    let latency = nothing_is_late(&format!(
        "videotestsrc is-live=true num-buffers={FRAMES} ! {CAPS} \
         ! queue max-size-time=0 max-size-bytes=0 max-size-buffers=0 min-threshold-time={} \
         ! xmemsink pool=POOL {LOSSLESS}",
        HELD_BACK.nseconds()
    ));
    assert_eq!(latency, ONE_FRAME + HELD_BACK + DEADLINE);
}

/// The times of the frames already include the latency.
#[test]
fn live_frames_that_are_paced_are_in_time() {
    let latency = nothing_is_late(&format!(
        "videotestsrc is-live=true num-buffers={FRAMES} ! {CAPS} \
         ! queue max-size-time=0 max-size-bytes=0 max-size-buffers=0 min-threshold-time={} \
         ! xmemsink pool=POOL {LOSSLESS} pace=always",
        HELD_BACK.nseconds()
    ));
    assert_eq!(latency, DEADLINE);
}

#[test]
fn other_frames_are_in_time() {
    let latency = nothing_is_late(&format!(
        "videotestsrc num-buffers={FRAMES} ! {CAPS} ! xmemsink pool=POOL {LOSSLESS}"
    ));
    assert_eq!(latency, DEADLINE);
}

/// The source's latency in a mode, for a producer that delays frames.
fn latency_in(mode: &str, pace: &str) -> gst::ClockTime {
    let pools = Pools::new();
    let producer = pools.launch(&format!(
        "videotestsrc is-live=true num-buffers=10 ! {CAPS} ! xmemsink pool=POOL {LOSSLESS} {pace} processing-deadline=0"
    ));
    follow_latency(&producer);
    let receiver = pools.receiver(&format!("processing-deadline=0 timestamp-mode={mode}"));
    producer.play();
    // The latency becomes known during playback.
    assert_eq!(receiver.rest().len(), 10);
    latency(&receiver.src())
}

#[test]
fn the_latency_depends_on_the_timestamp_mode() {
    assert_eq!(latency_in("clock", ""), ONE_FRAME);
    assert_eq!(latency_in("clock", "pace=always"), gst::ClockTime::ZERO);
    assert_eq!(latency_in("clock", "sync=false"), ONE_FRAME);
    assert_eq!(latency_in("arrival", ""), gst::ClockTime::ZERO);
    assert_eq!(latency_in("passthrough", ""), ONE_FRAME);
    assert_eq!(latency_in("passthrough", "pace=always"), ONE_FRAME);
}

#[test]
fn a_producers_change_of_latency_is_announced() {
    let pools = Pools::new();
    let receiver = pools.receiver("processing-deadline=0");
    let wait_for_latency_message = || {
        receiver.pipeline.wait(&[gst::MessageType::Latency]);
    };
    for (rate, expected) in [(20, 50), (40, 25)] {
        let producer = pools.launch(&format!(
            "videotestsrc is-live=true ! video/x-raw,format=GRAY8,width=16,height=16,framerate={rate}/1 \
             ! xmemsink pool=POOL"
        ));
        producer.play();
        wait_for_latency_message();
        let expected = gst::ClockTime::from_mseconds(expected);
        until("the latency of this producer", || {
            // While no frames are taken, the source is blocked and does not look for the next producer.
            receiver.app.try_pull_sample(gst::ClockTime::ZERO);
            latency(&receiver.src()) == expected
        });
    }
}

/// The sink may have got the answer of before the change.
#[test]
fn a_latency_that_changes_during_the_query_is_queried_again() {
    let pools = Pools::new();
    let sender = pools.sender(&CAPS.parse().unwrap(), "");
    let sink = sender.sink();
    let push = |count| {
        sender.push(gst::Buffer::from_slice([0; 256]));
        sender.until_published(count);
    };
    push(1);
    sender.pipeline.settle(gst::State::Playing);
    let change = {
        let sink = sink.downgrade();
        move || {
            let sink = sink.upgrade().unwrap();
            sink.send_event(gst::event::Latency::new(gst::ClockTime::ZERO));
        }
    };
    change();
    let is_first = AtomicBool::new(true);
    let pad = sink.static_pad("sink").unwrap();
    // Not the answers.
    let asked = gst::PadProbeType::QUERY_UPSTREAM | gst::PadProbeType::PUSH;
    let queries = note(&pad, asked, move |info| {
        let is_latency = info.query()?.type_() == gst::QueryType::Latency;
        is_latency.then(|| {
            if is_first.swap(false, Ordering::Relaxed) {
                change();
            }
        })
    });
    for count in 2..5 {
        push(count);
    }
    assert_eq!(queries.lock().unwrap().len(), 2);
}

/// A source that reports no latency. Without a measurement all frames would be late. It is measured for each stream of a pool.
#[test]
fn a_latency_that_upstream_does_not_report_is_measured() {
    let pools = Pools::new();
    let producer = pools.launch(&format!(
        "appsrc name=app is-live=true format=time min-latency=0 caps={CAPS} ! xmemsink name=sink pool=POOL"
    ));
    let app = producer
        .by_name("app")
        .downcast::<gst_app::AppSrc>()
        .unwrap();
    let receiver = pools.receiver("processing-deadline=0");
    for (round, late) in [0, 500, 0].into_iter().enumerate() {
        let late = gst::ClockTime::from_mseconds(late);
        producer.settle(gst::State::Ready);
        producer.play();
        let push = || {
            let now = producer.0.current_running_time().unwrap_or_default();
            let mut buffer = gst::Buffer::from_slice([0; 256]);
            // The first frames have times before the start of the producer.
            let pts = now.saturating_sub(late);
            buffer.make_mut().set_pts(pts);
            if !pts.is_zero() {
                app.push_buffer(buffer).unwrap();
            }
        };
        let src = receiver.src();
        let mut frames = 0;
        until("the delay is measured", || {
            push();
            frames += u64::from(receiver.app.try_pull_sample(gst::ClockTime::ZERO).is_some());
            let reported = latency(&src);
            if late.is_zero() {
                // It is a multiple of 20 ms. At first that of the stream before applies.
                let is_zero = reported < late + gst::ClockTime::from_mseconds(20);
                assert!(is_zero || round > 0, "{reported}");
                is_zero && producer.0.current_running_time() > Some(gst::ClockTime::from_seconds(3))
            } else {
                reported >= late
            }
        });
        assert!(frames > 0);
    }
}

/// The sink waits for that frame, and then shows the others as before.
#[test]
fn a_frame_with_a_time_far_ahead_does_not_change_the_latency() {
    let pools = Pools::new();
    let producer = pools.launch(&format!(
        "appsrc name=app is-live=true format=time min-latency=100000000 caps={CAPS} ! xmemsink name=sink pool=POOL"
    ));
    let app = producer
        .by_name("app")
        .downcast::<gst_app::AppSrc>()
        .unwrap();
    let receiver = pools.receiver("processing-deadline=0");
    producer.play();
    let push = |ahead: gst::ClockTime| {
        let now = producer.0.current_running_time().unwrap_or_default();
        let mut buffer = gst::Buffer::from_slice([0; 256]);
        buffer.make_mut().set_pts(now + ahead);
        app.push_buffer(buffer).unwrap();
    };
    let pulled = || receiver.app.try_pull_sample(gst::ClockTime::ZERO);
    // The first ones may come before the consumer.
    until("a frame", || {
        push(gst::ClockTime::ZERO);
        pulled().is_some()
    });
    let before = latency(&receiver.src());
    assert!(before >= gst::ClockTime::from_mseconds(100), "{before}");
    // The pool keeps 900 frames, of 20 in a second.
    push(gst::ClockTime::from_seconds(60));
    let is_far = |sample: gst::Sample| {
        sample.buffer().unwrap().pts() > Some(gst::ClockTime::from_seconds(50))
    };
    until("the frame far ahead", || pulled().is_some_and(is_far));
    push(gst::ClockTime::ZERO);
    until("the next frame", || pulled().is_some());
    // A busy machine may have delayed frames, which makes it greater.
    let after = latency(&receiver.src());
    assert!(after >= before, "{after}");
}

/// GStreamer warns if upstream has no buffers for the time that a sink takes.
#[test]
fn upstream_without_buffers_needs_no_queue() {
    let pools = Pools::new();
    let producer = pools.launch(&format!(
        "appsrc name=app is-live=true do-timestamp=true format=time min-latency=0 max-latency=0 caps={CAPS} \
         ! xmemsink name=sink pool=POOL"
    ));
    let app = producer
        .by_name("app")
        .downcast::<gst_app::AppSrc>()
        .unwrap();
    producer.play();
    app.push_buffer(gst::Buffer::from_slice([0; 256])).unwrap();
    until("it is published", || {
        producer.stat("sink", "published") == 1
    });
    assert_eq!(producer.warnings(), [""; 0]);
}
