// SPDX-License-Identifier: MPL-2.0

//! A consumer's pipeline is paused and resumed. Its running time stops during the pause, the producer's does not.

mod support;

use std::{
    sync::{Mutex, mpsc},
    thread,
    time::Duration,
};

use gst::prelude::*;
use support::*;

/// The number of frames that a lossless producer may be ahead of its consumers.
const AHEAD: u64 = 8;
const FRAME: gst::ClockTime = gst::ClockTime::from_mseconds(10);

/// The numbers and times of frames in a lossless stream whose consumer pauses three times.
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
    for live in [false, true] {
        let frames = over_pauses(live);
        for pair in frames.windows(2) {
            assert_eq!(pair[1].0, pair[0].0 + 1, "{frames:?}");
            // The first frame may precede the pipeline's start; then its time is 0.
            if pair[0].1.is_zero() {
                continue;
            }
            let step = pair[1].1.saturating_sub(pair[0].1);
            assert!(step >= FRAME - gst::ClockTime::MSECOND, "{frames:?}");
        }
    }
}

/// Since GStreamer 1.24 a pause interrupts the source while it waits for a frame.
#[test]
fn a_pause_that_is_over_at_once_does_not_stop_the_stream() {
    let pools = Pools::new();
    let sender = pools.sender(&"video/x-some".parse().unwrap(), LOSSLESS);
    let receiver = pools.receiver("");
    for number in 0..100u8 {
        receiver.pipeline.0.set_state(gst::State::Paused).unwrap();
        if number % 2 == 0 {
            sender.push(gst::Buffer::from_slice([number]));
        }
        receiver.pipeline.play();
        if number % 2 == 1 {
            sender.push(gst::Buffer::from_slice([number]));
        }
        let sample = receiver.next().unwrap();
        assert_eq!(bytes(sample.buffer().unwrap()), [number]);
    }
}

/// An interruption by a flush or an end is not treated as a pause.
#[test]
fn flushes_and_an_end_beside_pauses() {
    let pools = Pools::new();
    let sender = pools.sender(&"video/x-some".parse().unwrap(), LOSSLESS);
    let receiver = pools.receiver("");
    // For flushes from outside; see `flush` in states.rs.
    receiver.app.set_property("async", false);
    sender.push(gst::Buffer::from_slice([0u8]));
    assert!(receiver.next().is_some());
    let (pipeline, src) = (&receiver.pipeline.0, receiver.src());
    thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..50 {
                assert!(src.send_event(gst::event::FlushStart::new()));
                assert!(src.send_event(gst::event::FlushStop::new(false)));
            }
        });
        for _ in 0..50 {
            pipeline.set_state(gst::State::Paused).unwrap();
            receiver.pipeline.play();
        }
    });
    sender.push(gst::Buffer::from_slice([1u8]));
    let sample = receiver.next().unwrap();
    assert_eq!(bytes(sample.buffer().unwrap()), [1]);
    pipeline.set_state(gst::State::Paused).unwrap();
    assert!(src.send_event(gst::event::Eos::new()));
    receiver.pipeline.play();
    assert!(receiver.rest().is_empty());
}

/// A source that has received frame 1: it sends the caps first and blocks before it pushes the frame. Frames 2 and 3 follow.
struct InHand {
    receiver: Receiver,
    sender: Sender,
    go: mpsc::Sender<()>,
}

impl InHand {
    fn new(pools: &Pools) -> Self {
        let sender = pools.sender(&"video/x-first".parse().unwrap(), LOSSLESS);
        let receiver = pools.receiver("");
        // For flushes from outside; see `flush` in states.rs.
        receiver.app.set_property("async", false);
        receiver.app.set_property("enable-last-sample", false);
        sender.push(gst::Buffer::from_slice([0u8]));
        assert!(receiver.next().is_some());
        let (reached, at_caps) = mpsc::channel();
        let (go, may_go) = mpsc::channel();
        let may_go = Mutex::new(may_go);
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
        sender
            .app
            .set_caps(Some(&"video/x-second".parse().unwrap()));
        for number in 1..=3u8 {
            sender.push(gst::Buffer::from_slice([number]));
        }
        at_caps.recv_timeout(SOON.into()).unwrap();
        Self {
            receiver,
            sender,
            go,
        }
    }

    /// Pauses the pipeline, and lets the source continue, so that it detects the pause.
    fn pause(&self) {
        let pipeline = &self.receiver.pipeline.0;
        pipeline.set_state(gst::State::Paused).unwrap();
        self.go.send(()).unwrap();
        settle();
    }

    /// At most the previous frame is held, to which the appsink refers. Since 1.28, a flush makes it drop that, too.
    fn holds_no_more(&self) {
        until("it is given back", || self.receiver.stat("held") <= 1);
    }
}

/// GstBaseSrc's wait is not observable. If it has not begun, the tests cover less.
fn settle() {
    thread::sleep(Duration::from_millis(300));
}

/// GStreamer 1.26's GstBaseSrc drops a frame that a source returns during a pause.
#[test]
fn a_frame_received_as_the_pause_began_is_delivered_after_it() {
    let pools = Pools::new();
    let held = InHand::new(&pools);
    held.pause();
    held.receiver.pipeline.play();
    for number in 1..=3u8 {
        let sample = held.receiver.next().unwrap();
        assert_eq!(bytes(sample.buffer().unwrap()), [number]);
    }
}

#[test]
fn a_frame_from_before_a_flush_in_a_pause_does_not_come_after_it() {
    let pools = Pools::new();
    let held = InHand::new(&pools);
    held.pause();
    let src = held.receiver.src();
    assert!(src.send_event(gst::event::FlushStart::new()));
    assert!(src.send_event(gst::event::FlushStop::new(false)));
    held.holds_no_more();
    held.receiver.pipeline.play();
    for number in 2..=3u8 {
        let sample = held.receiver.next().unwrap();
        let buffer = sample.buffer().unwrap();
        assert_eq!(bytes(buffer), [number]);
        let discont = buffer.flags().contains(gst::BufferFlags::DISCONT);
        assert_eq!(discont, number == 2, "{buffer:?}");
    }
}

#[test]
fn a_source_that_an_application_ends_keeps_no_frame() {
    let pools = Pools::new();
    let held = InHand::new(&pools);
    let eos = gst::event::Eos::new();
    let seqnum = eos.seqnum();
    let pad = held.receiver.app.static_pad("sink").unwrap();
    let came = note(&pad, gst::PadProbeType::EVENT_DOWNSTREAM, |info| {
        let event = info.event()?;
        (event.type_() == gst::EventType::Eos).then(|| event.seqnum())
    });
    // Downstream blocks the streaming thread. The application does not wait for it.
    assert!(held.receiver.src().send_event(eos));
    held.go.send(()).unwrap();
    assert!(held.receiver.rest().is_empty());
    assert_eq!(*came.lock().unwrap(), [seqnum]);
    held.holds_no_more();
    let sink = held.sender.sink();
    until("it has left", || sink.property::<u32>("num-clients") == 0);
}

/// A sink that is paused while it waits for a frame's time keeps the frame and blocks the streaming thread.
#[test]
fn an_end_in_a_pause_comes_after_it() {
    let pools = Pools::new();
    let sender = pools.sender(&"video/x-first".parse().unwrap(), LOSSLESS);
    let receiver =
        pools.launch("xmemsrc name=src pool=POOL ! fakesink sync=true ts-offset=2000000000");
    receiver.play();
    let mut frame = gst::Buffer::from_slice([0u8]);
    frame.get_mut().unwrap().set_pts(gst::ClockTime::ZERO);
    sender.push(frame);
    until("a frame", || receiver.stat("src", "received") == 1);
    settle();
    receiver.0.set_state(gst::State::Paused).unwrap();
    settle();
    assert!(receiver.0.send_event(gst::event::Eos::new()));
    receiver.play();
    receiver.wait_eos();
}

#[test]
fn a_source_does_not_report_what_it_missed_in_a_pause() {
    for mode in ["clock", "arrival", "passthrough"] {
        let pools = Pools::new();
        let sender = pools.sender(&"video/x-any".parse().unwrap(), "history=1");
        let receiver = pools
            .receiver(&format!("timestamp-mode={mode}"))
            .connected();
        let sink = sender.sink();
        let push = |frames: u64| {
            let published = || stat(&sink, "published");
            let end = published() + frames;
            (0..frames).for_each(|_| sender.push(gst::Buffer::from_slice([0u8])));
            until("they are published", || published() == end);
        };
        let seen = || receiver.stat("received") + receiver.stat("missed");
        push(1);
        receiver.next().unwrap();
        receiver.pipeline.0.set_state(gst::State::Paused).unwrap();
        push(20);
        receiver.pipeline.play();
        until("it has seen them", || seen() == 21);
        assert!(receiver.stat("missed") > 10, "{mode}");
        // By the time of their arrival, all of them are from before the end of the pause, and left out.
        push(1);
        receiver.next().unwrap();
        let warnings = receiver.pipeline.warnings();
        assert!(warnings.is_empty(), "{mode}: {warnings:?}");

        // The first gap may contain the end of the pause.
        for all in [42, 62] {
            // The appsink holds one frame, and the source waits with another.
            push(20);
            while seen() < all {
                receiver.next().unwrap();
            }
        }
        let mut warnings = Vec::new();
        // The figures change first.
        until("a warning", || {
            warnings.extend(receiver.pipeline.warnings());
            !warnings.is_empty()
        });
        assert_eq!(warnings.len(), 1, "{mode}: {warnings:?}");
    }
}
