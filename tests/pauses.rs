// SPDX-License-Identifier: MPL-2.0

//! A consumer's pipeline that is paused and goes on. Its running time stands still meanwhile, the producer's does not.

mod support;

use std::{
    sync::{Mutex, mpsc},
    thread,
    time::Duration,
};

use gst::prelude::*;
use support::*;

/// Frames that lossless delivery lets the producer be ahead of its consumers.
const AHEAD: u64 = 8;
const FRAME: gst::ClockTime = gst::ClockTime::from_mseconds(10);

/// The numbers and times of frames of a lossless stream whose consumer pauses three times.
fn over_pauses(live: bool) -> Vec<(u64, gst::ClockTime)> {
    let pools = Pools::new();
    let producer = pools.launch(&format!(
        "videotestsrc is-live={live} ! video/x-raw,format=GRAY8,width=16,height=16,framerate=100/1 \
         ! xmemsink name=sink pool=POOL {LOSSLESS}"
    ));
    producer.play();
    let receiver = pools.receiver("");
    let mut frames = Vec::new();
    let mut take = || {
        for _ in 0..20 {
            let sample = receiver.next().unwrap();
            let buffer = sample.buffer().unwrap();
            frames.push((buffer.offset(), buffer.pts().unwrap()));
        }
    };
    take();
    for _ in 0..3 {
        let pipeline = &receiver.pipeline.0;
        pipeline.set_state(gst::State::Paused).unwrap();
        until("the producer waits", || {
            producer.stat("sink", "published") >= receiver.stat("received") + AHEAD
        });
        receiver.pipeline.play();
        take();
    }
    frames
}

#[test]
fn a_stream_that_waited_goes_on_where_it_was() {
    let frames = over_pauses(false);
    for pair in frames.windows(2) {
        assert_eq!(pair[1].0, pair[0].0 + 1, "{frames:?}");
        let step = pair[1].1.saturating_sub(pair[0].1);
        assert!(step >= FRAME - gst::ClockTime::MSECOND, "{frames:?}");
    }
}

/// It keeps its own time, so what waited comes at once.
#[test]
fn a_live_stream_does_not_go_back() {
    let frames = over_pauses(true);
    for pair in frames.windows(2) {
        assert_eq!(pair[1].0, pair[0].0 + 1, "{frames:?}");
        assert!(pair[1].1 >= pair[0].1, "{frames:?}");
    }
}

/// GstBaseSrc of GStreamer 1.26 throws away what a source hands it in a pause.
#[test]
fn a_frame_that_was_received_as_the_pause_began_comes_after_it() {
    let pools = Pools::new();
    let receiver = pools.receiver("start-from=oldest");
    let (reached, at_caps) = mpsc::channel();
    let (go, may_go) = mpsc::channel();
    let may_go = Mutex::new(may_go);
    // The source sends caps when it has the frame, and before it hands it over.
    receiver.app.static_pad("sink").unwrap().add_probe(
        gst::PadProbeType::EVENT_DOWNSTREAM,
        move |_, info| {
            if info.event().unwrap().type_() == gst::EventType::Caps {
                reached.send(()).unwrap();
                may_go.lock().unwrap().recv().unwrap();
            }
            gst::PadProbeReturn::Ok
        },
    );
    let sender = pools.sender(&"video/x-test".parse().unwrap(), LOSSLESS);
    for number in 1..=3u8 {
        sender.push(gst::Buffer::from_slice([number]));
    }
    at_caps.recv_timeout(SOON.into()).unwrap();
    receiver.pipeline.0.set_state(gst::State::Paused).unwrap();
    go.send(()).unwrap();
    // Nothing tells that GstBaseSrc has it and waits; where it has not yet, this finds less.
    thread::sleep(Duration::from_millis(100));
    receiver.pipeline.play();
    for number in 1..=3u8 {
        let sample = receiver.next().unwrap();
        assert_eq!(bytes(sample.buffer().unwrap()), [number]);
    }
}
