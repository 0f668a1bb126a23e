// SPDX-License-Identifier: MPL-2.0

//! Pipelines with different clocks, and without a clock.

use crate::support::*;
use gst::prelude::*;
use xmem_core::Consumer;

const VIDEO: &str = "video/x-raw,format=GRAY8,width=16,height=16,framerate=50/1";

/// A clock that is one hour ahead and `ppm` too fast. As a network clock, it uses its calibration.
fn odd_clock(name: &str, kind: gst::ClockType, ppm: u64) -> gst::Clock {
    init();
    let clock: gst::Clock = gst::glib::Object::builder::<gst::SystemClock>()
        .property("name", name)
        .property("clock-type", kind)
        .build()
        .upcast();
    let internal = clock.internal_time();
    let hour = gst::ClockTime::from_seconds(3_600);
    clock.set_calibration(internal, internal + hour, 1_000_000 + ppm, 1_000_000);
    clock
}

/// The due times, on CLOCK_MONOTONIC, of frames at an element's pad.
fn due(pipeline: &Pipeline, element: &str, pad: &str, clock: Option<&gst::Clock>) -> Noted<i128> {
    let (weak, clock) = (pipeline.0.downgrade(), clock.cloned());
    let pad = pipeline.by_name(element).static_pad(pad).unwrap();
    note(&pad, gst::PadProbeType::BUFFER, move |info| {
        let pts = info.buffer()?.pts().unwrap();
        let time = weak.upgrade().unwrap().base_time().unwrap_or_default() + pts;
        // Converts the time of this clock to CLOCK_MONOTONIC.
        Some(match &clock {
            Some(clock) => i128::from(clock.unadjust_unlocked(time).nseconds()),
            None => i128::from(time.nseconds()),
        })
    })
}

/// The errors of the due times after the pool, in nanoseconds.
fn errors(producer_clock: Option<&gst::Clock>, consumer_clock: Option<&gst::Clock>) -> Vec<i128> {
    let pools = Pools::new();
    let producer = pools.launch(&format!(
        "videotestsrc is-live=true num-buffers=100 ! {VIDEO} ! xmemsink name=sink pool=POOL {LOSSLESS}"
    ));
    let receiver =
        pools.launch("xmemsrc name=src pool=POOL ! appsink name=app sync=false max-buffers=1");
    if let Some(clock) = producer_clock {
        producer.0.use_clock(Some(clock));
    }
    if let Some(clock) = consumer_clock {
        receiver.0.use_clock(Some(clock));
    }
    let sent = due(&producer, "sink", "sink", producer_clock);
    let received = due(&receiver, "src", "src", consumer_clock);
    let app = receiver.by_name("app").downcast().unwrap();
    let receiver = Receiver {
        pipeline: receiver,
        app,
    };
    receiver.pipeline.play();
    producer.play();
    assert_eq!(receiver.rest().len(), 100);
    let (sent, received) = (sent.lock().unwrap(), received.lock().unwrap());
    // The first frame may have been sent before the base time was known.
    sent.iter()
        .zip(received.iter())
        .skip(1)
        .map(|(sent, received)| received - sent)
        .collect()
}

/// Errors may be small, because clocks are read one after the other, but must not increase.
#[track_caller]
fn are_small(errors: &[i128]) {
    assert_eq!(errors.len(), 99);
    // Without correction, a drift of 500 ppm would be 1 ms in two seconds.
    let wrong: Vec<_> = errors
        .iter()
        .filter(|error| error.abs() > 500_000)
        .collect();
    assert!(wrong.is_empty(), "{wrong:?}");
}

#[test]
fn the_same_clock_is_exact() {
    assert!(errors(None, None).iter().all(|error| *error == 0));
}

#[test]
fn a_producer_may_have_a_clock_that_drifts() {
    let clock = odd_clock("fast", gst::ClockType::Monotonic, 500);
    are_small(&errors(Some(&clock), None));
}

#[test]
fn a_consumer_may_have_a_clock_that_drifts() {
    let clock = odd_clock("fast", gst::ClockType::Monotonic, 500);
    are_small(&errors(None, Some(&clock)));
}

#[test]
fn both_may() {
    let one = odd_clock("one", gst::ClockType::Monotonic, 300);
    let other = odd_clock("other", gst::ClockType::Monotonic, 0);
    are_small(&errors(Some(&one), Some(&other)));
}

/// Without a clock, frames are not paced, and running times are unrelated to those of other pipelines.
fn without_clock(producer_has_one: bool, consumer_has_one: bool) -> Vec<u64> {
    let pools = Pools::new();
    let producer = pools.launch(&format!(
        "videotestsrc num-buffers=10 ! {VIDEO} ! xmemsink name=sink pool=POOL {LOSSLESS}"
    ));
    let pipeline =
        pools.launch("xmemsrc name=src pool=POOL ! appsink name=app sync=false max-buffers=1");
    if !producer_has_one {
        producer.0.use_clock(None::<&gst::Clock>);
    }
    if !consumer_has_one {
        pipeline.0.use_clock(None::<&gst::Clock>);
    }
    let app = pipeline.by_name("app").downcast().unwrap();
    let receiver = Receiver { pipeline, app };
    receiver.pipeline.play();
    producer.play();
    let times: Vec<_> = receiver
        .rest()
        .iter()
        .map(|sample| sample.buffer().unwrap().pts().unwrap().nseconds())
        .collect();
    assert_eq!(receiver.pipeline.0.clock().is_some(), consumer_has_one);
    assert_eq!(producer.0.clock().is_some(), producer_has_one);
    times
}

#[test]
fn no_clock_is_no_obstacle() {
    for (producer, consumer) in [(false, true), (true, false), (false, false)] {
        let times = without_clock(producer, consumer);
        assert_eq!(times.len(), 10);
        for pair in times.windows(2) {
            assert_eq!(
                pair[1] - pair[0],
                20_000_000,
                "{producer} {consumer} {times:?}"
            );
        }
    }
}

#[test]
fn without_a_clock_a_restarted_pipeline_has_times_from_its_restart() {
    let pools = Pools::new();
    let producer = pools.launch(&format!(
        "videotestsrc ! {VIDEO} ! xmemsink name=sink pool=POOL"
    ));
    producer.0.use_clock(None::<&gst::Clock>);
    producer.play();
    until("a frame", || producer.stat("sink", "published") > 0);
    producer.settle(gst::State::Ready);
    let began = xmem_core::monotonic_ns();
    let mut consumer = Consumer::builder(pools.pool("p")).connect().unwrap();
    producer.play();
    let frame = consumer.receive(None).unwrap();
    let running_time = frame.meta().pts.unwrap().cast_signed();
    let origin = frame.meta().timestamp.unwrap() - running_time;
    assert!(
        origin >= began,
        "{} ns before it began",
        began.abs_diff(origin)
    );
}
