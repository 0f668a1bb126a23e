// SPDX-License-Identifier: MPL-2.0

//! Consumers that join, leave, are slow, or hold frames.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::support::*;
use gst::prelude::*;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

const VIDEO: &str = "video/x-raw,format=GRAY8,width=64,height=64,framerate=30/1";

fn caps() -> gst::Caps {
    VIDEO.parse().unwrap()
}

fn frame(number: u8) -> gst::Buffer {
    let mut buffer = gst::Buffer::from_mut_slice(vec![number; 64 * 64]);
    let pts = u64::from(number) * gst::ClockTime::from_mseconds(33);
    buffer.make_mut().set_pts(pts);
    buffer
        .make_mut()
        .set_duration(gst::ClockTime::from_mseconds(33));
    buffer
}

fn first_byte(sample: &gst::Sample) -> u8 {
    sample.buffer().unwrap().map_readable().unwrap()[0]
}

#[test]
fn several_consumers_get_every_frame() {
    let pools = Pools::new();
    let producer =
        pools.launch(&format!("videotestsrc num-buffers=30 ! {VIDEO} ! xmemsink name=sink pool=POOL sync=false delivery=lossless"));
    let receivers: Vec<_> = (0..3).map(|_| pools.receiver("")).collect();
    producer.0.set_state(gst::State::Ready).unwrap();
    let sink = producer.sink();
    until("three consumers", || {
        sink.property::<u32>("num-clients") == 3
    });
    producer.play();
    let right = reference(&format!("videotestsrc num-buffers=30 ! {VIDEO}"));
    for (number, right) in right.iter().enumerate() {
        for receiver in &receivers {
            assert!(
                pixels(&receiver.next().unwrap()) == pixels(right),
                "frame {number} differs"
            );
        }
    }
    producer.wait_eos();
    for receiver in &receivers {
        assert!(receiver.next().is_none());
        assert_eq!(
            (receiver.stat("zero-copy"), receiver.stat("missed")),
            (30, 0)
        );
    }
}

/// Starts `count` sources in separate pipelines, with default budgets and slots.
fn all_get_everything(count: u32) {
    // Each source and its pipeline need about eight descriptors, and 1024 are a usual limit.
    let limit = getrlimit(Resource::Nofile);
    let current = limit.maximum;
    setrlimit(Resource::Nofile, Rlimit { current, ..limit }).unwrap();
    let pools = Pools::new();
    let producer =
        pools.launch(&format!("videotestsrc num-buffers=30 ! {VIDEO} ! xmemsink name=sink pool=POOL sync=false delivery=lossless"));
    producer.0.set_state(gst::State::Ready).unwrap();
    let receiver = || {
        let receiver = pools.launch("xmemsrc name=src pool=POOL ! fakesink sync=false async=false");
        receiver.play();
        receiver
    };
    let receivers: Vec<_> = (0..count).map(|_| receiver()).collect();
    let sink = producer.sink();
    until("all consumers", || {
        sink.property::<u32>("num-clients") == count
    });
    producer.play();
    producer.wait_eos();
    for receiver in &receivers {
        receiver.wait_eos();
        assert_eq!(
            (
                receiver.stat("src", "received"),
                receiver.stat("src", "missed"),
                receiver.stat("src", "dropped")
            ),
            (30, 0, 0)
        );
    }
}

#[test]
fn sixty_four_sources_get_every_frame() {
    all_get_everything(64);
}

#[test]
fn two_hundred_sources_get_every_frame() {
    all_get_everything(200);
}

/// The source waits, and the producer does not. Raw frames, and a film whose first frame is its only key frame.
#[test]
fn a_source_that_waits_gets_the_first_frames() {
    for (frames, elements) in [
        (3, "videotestsrc num-buffers=3 ! VIDEO"),
        (
            45,
            "videotestsrc num-buffers=45 ! VIDEO ! videoconvert ! x264enc key-int-max=1000 ! h264parse",
        ),
    ] {
        let pools = Pools::new();
        let receiver = pools.launch("xmemsrc name=src pool=POOL ! fakesink sync=false async=false");
        receiver.play();
        // Its attempts become rarer.
        std::thread::sleep(Duration::from_millis(300));
        let elements = elements.replace("VIDEO", VIDEO);
        let producer = pools.launch(&format!("{elements} ! xmemsink name=sink pool=POOL"));
        producer.play();
        receiver.wait_eos();
        let stats = ["received", "missed", "dropped"].map(|field| receiver.stat("src", field));
        assert_eq!(stats, [frames, 0, 0], "{elements}");
    }
}

#[test]
fn either_side_may_start_first() {
    let pools = Pools::new();
    let early = pools.receiver("");
    let sender = pools.sender(&caps(), "wait-for-connection=true");
    sender.push(frame(1));
    assert_eq!(first_byte(&early.next().unwrap()), 1);
    // A late joiner gets the caps and the frames that it requests.
    sender.push(frame(2));
    assert_eq!(first_byte(&early.next().unwrap()), 2);
    let newest = pools.receiver("start-from=newest");
    let sample = newest.next().unwrap();
    assert_eq!(
        (first_byte(&sample), sample.caps().unwrap()),
        (2, caps().as_ref())
    );
    let oldest = pools.receiver("start-from=oldest");
    assert_eq!(first_byte(&oldest.next().unwrap()), 1);
    assert_eq!(first_byte(&oldest.next().unwrap()), 2);
    let next = pools.receiver("").connected();
    sender.push(frame(3));
    for receiver in [&early, &newest, &oldest, &next] {
        assert_eq!(first_byte(&receiver.next().unwrap()), 3);
    }
    sender.finish();
    for receiver in [early, newest, oldest, next] {
        assert!(receiver.next().is_none());
    }
}

#[test]
fn caps_change_while_old_frames_are_held() {
    let pools = Pools::new();
    let receiver = pools.receiver("");
    let sender = pools.sender(&caps(), LOSSLESS);
    sender.push(frame(1));
    let old = receiver.next().unwrap();
    let other: gst::Caps = "video/x-raw,format=RGB,width=320,height=200,framerate=30/1"
        .parse()
        .unwrap();
    let info = gst_video::VideoInfo::from_caps(&other).unwrap();
    for number in 2..6 {
        let caps = if number % 2 == 0 { &other } else { &caps() };
        sender.app.set_caps(Some(caps));
        let mut buffer = if number % 2 == 0 {
            gst::Buffer::with_size(info.size()).unwrap()
        } else {
            frame(number)
        };
        if number % 2 == 0 {
            paint(&mut buffer, &info, number);
        }
        let sent = bytes(&buffer);
        sender.push(buffer);
        let sample = receiver.next().unwrap();
        assert_eq!(sample.caps(), Some(caps.as_ref()));
        assert!(bytes(sample.buffer().unwrap()) == sent);
    }
    assert_eq!(bytes(old.buffer().unwrap()), vec![1; 64 * 64]);
    sender.finish();
}

#[test]
fn held_frames_outlive_source_and_producer() {
    let pools = Pools::new();
    let receiver = pools.receiver("");
    let sender = pools.sender(&caps(), LOSSLESS);
    let mut held = Vec::new();
    for number in 1..=5 {
        sender.push(frame(number));
        held.push(receiver.next().unwrap());
    }
    drop(receiver);
    for number in 6..60 {
        sender.push(frame(number));
    }
    let stays = |held: &[gst::Sample]| {
        held.iter()
            .zip(1..)
            .all(|(sample, number)| bytes(sample.buffer().unwrap()) == vec![number; 64 * 64])
    };
    assert!(stays(&held));
    drop(sender);
    assert!(stays(&held));
    let again = pools.sender(&caps(), "");
    for number in 100..160 {
        again.push(frame(number));
    }
    again.finish();
    assert!(stays(&held));
}

/// Sends five frames to a consumer with a budget of two that keeps all of them.
fn over_budget(properties: &str) -> (Vec<gst::Sample>, Receiver, Sender, Pools) {
    let pools = Pools::new();
    let receiver = pools.receiver(&format!("max-held=2 {properties}"));
    let sender = pools.sender(&caps(), LOSSLESS);
    for number in 1..=5 {
        sender.push(frame(number));
    }
    sender.app.end_of_stream().unwrap();
    let held = receiver.rest();
    sender.pipeline.wait_eos();
    (held, receiver, sender, pools)
}

#[test]
fn past_its_budget_a_consumer_copies() {
    let (held, receiver, sender, _pools) = over_budget("");
    let got: Vec<_> = held.iter().map(first_byte).collect();
    assert_eq!(got, [1, 2, 3, 4, 5]);
    assert_eq!(
        (receiver.stat("zero-copy"), receiver.stat("copied")),
        (2, 3)
    );
    assert_eq!((receiver.stat("held"), receiver.stat("budget")), (2, 2));
    assert!(slot_of(held[1].buffer().unwrap()).is_some());
    assert!(slot_of(held[2].buffer().unwrap()).is_none());
    assert_eq!(
        held[3].buffer().unwrap().duration(),
        Some(gst::ClockTime::from_mseconds(33))
    );
    assert_eq!(sender.pipeline.stat("sink", "dropped"), 0);
    drop(held);
    assert_eq!(receiver.stat("held"), 0);
}

#[test]
fn past_its_budget_a_consumer_drops_if_set_to() {
    let (held, receiver, _sender, _pools) = over_budget("over-budget=drop");
    let got: Vec<_> = held.iter().map(first_byte).collect();
    assert_eq!(got, [1, 2]);
    assert_eq!(
        (
            receiver.stat("received"),
            receiver.stat("dropped"),
            receiver.stat("copied")
        ),
        (5, 3, 0)
    );
}

/// The pool has room for no budget. The one frame that is held is past it.
#[test]
fn without_a_budget_a_consumer_drops_if_set_to() {
    let pools = Pools::new();
    let sender = pools.sender(&caps(), "max-slots=6");
    let _other = pools.receiver("");
    let receiver = pools.receiver("over-budget=drop");
    until("both are connected", || {
        sender.sink().property::<u32>("num-clients") == 2
    });
    sender.push(frame(1));
    let held = receiver.next().unwrap();
    assert_eq!(receiver.stat("budget"), 0);
    sender.push(frame(2));
    until("the frame is dropped", || receiver.stat("dropped") == 1);
    sender.finish();
    assert!(receiver.rest().is_empty());
    drop(held);
}

#[test]
fn a_slow_consumer_misses_live_frames_and_gets_a_message() {
    let pools = Pools::new();
    let sender = pools.sender(&caps(), "history=2");
    let receiver = pools.receiver("max-held=4").connected();
    sender.push(frame(1));
    assert_eq!(first_byte(&receiver.next().unwrap()), 1);
    // The appsink holds one frame, and the source waits with another.
    for number in 2..100 {
        sender.push(frame(number));
    }
    sender.finish();
    let got: Vec<_> = receiver.rest();
    assert_eq!(
        first_byte(got.last().unwrap()),
        99,
        "the newest frames are kept"
    );
    assert_eq!(got.len() as u64 + 1 + receiver.stat("missed"), 99);
    let mut expected = 2;
    for sample in &got {
        let gap = first_byte(sample) != expected;
        assert_eq!(is_discont(sample), gap);
        expected = first_byte(sample) + 1;
    }
}

#[test]
fn a_slow_consumer_gets_the_newest_if_set_to() {
    let pools = Pools::new();
    let sender = pools.sender(&caps(), "history=32");
    let receiver = pools.receiver("newest-only=true").connected();
    sender.push(frame(1));
    assert_eq!(first_byte(&receiver.next().unwrap()), 1);
    // The appsink holds one frame, and the source waits with another.
    for number in 2..20 {
        sender.push(frame(number));
    }
    sender.finish();
    sender.until_published(19);
    let got: Vec<_> = receiver.rest().iter().map(first_byte).collect();
    assert_eq!(got.last(), Some(&19));
    assert!(got.len() <= 3 && got.is_sorted(), "{got:?}");
    assert_eq!(got.len() as u64 + 1 + receiver.stat("missed"), 19);
}

/// The frames between two are neither missed nor a gap, so nothing is reported.
#[test]
fn a_rate_limit_leaves_frames_out() {
    let pools = Pools::new();
    let live = "videotestsrc is-live=true num-buffers=60 ! video/x-raw,width=64,height=64,framerate=60/1 ! \
        xmemsink name=sink pool=POOL wait-for-connection=true history=60";
    let producer = pools.launch(live);
    let receiver = pools.receiver("max-rate=5/1");
    producer.play();
    let got = receiver.rest();
    let (received, skipped) = (receiver.stat("received"), receiver.stat("skipped"));
    assert_eq!(received, got.len() as u64);
    assert_eq!((received + skipped, receiver.stat("missed")), (60, 0));
    let times: Vec<_> = got
        .iter()
        .map(|it| it.buffer().unwrap().pts().unwrap())
        .collect();
    // The frames are published a little earlier or later than at their times.
    let apart = times.windows(2).map(|pair| pair[1] - pair[0]);
    assert!(
        apart.min() > Some(gst::ClockTime::from_mseconds(100)),
        "{times:?}"
    );
    assert!(!got.iter().skip(1).any(is_discont));
    assert_eq!(receiver.pipeline.warnings(), [""; 0]);
}

#[test]
fn a_rate_limit_is_refused_for_encoded_streams() {
    let pools = Pools::new();
    let caps = "video/x-h264,stream-format=byte-stream,alignment=au";
    let sender = pools.sender(&caps.parse().unwrap(), "");
    let receiver = pools
        .receiver("max-rate=5/1 wait-for-keyframe=false")
        .connected();
    sender.push(gst::Buffer::from_slice([0, 0, 0, 1, 9, 16]));
    receiver.fails_with(gst::StreamError::Format, "set max-rate=0/1");
}

#[test]
fn a_late_joiner_gets_tags() {
    let pools = Pools::new();
    let sender = pools.sender(&caps(), "");
    let mut tags = gst::TagList::new();
    tags.make_mut()
        .add::<gst::tags::Title>(&"a title, with \"quotes\"", gst::TagMergeMode::Replace);
    sender.push(frame(1));
    sender.until_published(1);
    assert!(
        sender
            .sink()
            .static_pad("sink")
            .unwrap()
            .peer()
            .unwrap()
            .push_event(gst::event::Tag::new(tags))
    );
    sender.push(frame(2));
    sender.until_published(2);
    let receiver = pools.receiver("start-from=newest");
    let sample = receiver.next().unwrap();
    assert_eq!(first_byte(&sample), 2);
    let event = receiver
        .app
        .static_pad("sink")
        .unwrap()
        .sticky_event::<gst::event::Tag>(0)
        .unwrap();
    assert_eq!(
        event.tag().get::<gst::tags::Title>().unwrap().get(),
        "a title, with \"quotes\""
    );
}

#[test]
fn a_new_producer_takes_over() {
    let pools = Pools::new();
    let receiver = pools.receiver("");
    for round in 1..=3 {
        let sender = pools.sender(&caps(), LOSSLESS);
        sender.push(frame(round));
        let sample = receiver.next().unwrap();
        assert_eq!(first_byte(&sample), round);
        assert!(is_discont(&sample));
        assert_eq!(receiver.stat("reconnects"), u64::from(round) - 1);
    }
    assert_eq!(receiver.stat("received"), 3);
}

/// The consumer connects as soon as the pool exists, but some frames may be published before.
#[test]
fn no_frame_of_a_new_producer_is_missed() {
    let pools = Pools::new();
    let receiver = pools.receiver("");
    for round in 0..5 {
        let properties = ["wait-for-connection=true", ""][usize::from(round > 0)];
        let sender = pools.sender(&caps(), &format!("history=8 {properties}"));
        for number in 0..3 {
            sender.push(frame(round * 10 + number));
        }
        for number in 0..3 {
            assert_eq!(first_byte(&receiver.next().unwrap()), round * 10 + number);
        }
    }
    assert_eq!(
        (receiver.stat("received"), receiver.stat("missed")),
        (15, 0)
    );
}

#[test]
fn a_lost_producer_ends_the_stream_if_set_to() {
    let pools = Pools::new();
    let receiver = pools.receiver("on-producer-lost=eos");
    let sender = pools.sender(&caps(), LOSSLESS);
    sender.push(frame(1));
    assert_eq!(first_byte(&receiver.next().unwrap()), 1);
    drop(sender);
    assert!(receiver.next().is_none());
    receiver.pipeline.wait_eos();
}

#[test]
fn a_lost_producer_is_an_error_if_set_to() {
    let pools = Pools::new();
    let receiver = pools.receiver("on-producer-lost=error");
    let sender = pools.sender(&caps(), LOSSLESS);
    sender.push(frame(1));
    assert_eq!(first_byte(&receiver.next().unwrap()), 1);
    drop(sender);
    receiver.fails_with(gst::ResourceError::Read, &pools.pool("p"));
}

#[test]
fn the_stream_goes_on_after_its_end() {
    let pools = Pools::new();
    let receiver = pools.receiver("");
    let sender = pools.sender(&caps(), LOSSLESS);
    sender.push(frame(1));
    sender.finish();
    assert_eq!(first_byte(&receiver.next().unwrap()), 1);
    assert!(receiver.next().is_none());
    // A flush permits data flow after an end of stream.
    let pad = sender.sink().static_pad("sink").unwrap();
    assert!(pad.send_event(gst::event::FlushStart::new()));
    assert!(pad.send_event(gst::event::FlushStop::new(true)));
    let late = pools.receiver("").connected();
    let segment = gst::FormattedSegment::<gst::ClockTime>::new();
    assert!(pad.send_event(gst::event::Segment::new(&segment)));
    assert_eq!(pad.chain(frame(2)), Ok(gst::FlowSuccess::Ok));
    assert_eq!(first_byte(&late.next().unwrap()), 2);
}

#[test]
fn signals_report_consumers_that_join_and_leave() {
    let pools = Pools::new();
    let sender = pools.sender(&caps(), "");
    let sink = sender.sink();
    let signals = Arc::new(Mutex::new(Vec::new()));
    for signal in ["client-connected", "client-disconnected"] {
        let signals = signals.clone();
        sink.connect(signal, false, move |values| {
            signals
                .lock()
                .unwrap()
                .push((signal, values[1].get::<gst::Structure>().unwrap()));
            None
        });
    }
    let counts = Arc::new(Mutex::new(Vec::new()));
    let noted = counts.clone();
    sink.connect_notify(Some("num-clients"), move |sink, _| {
        noted
            .lock()
            .unwrap()
            .push(sink.property::<u32>("num-clients"));
    });
    let receiver = pools.receiver("client-name=viewer max-held=3").connected();
    until("one client", || counts.lock().unwrap().len() == 1);
    let stats = sink.property::<gst::Structure>("stats");
    let clients = stats.get::<gst::Array>("clients").unwrap();
    let client = clients.as_slice()[0].get::<gst::Structure>().unwrap();
    assert_eq!(client.get::<String>("name").unwrap(), "viewer");
    assert_eq!(client.get::<u32>("pid").unwrap(), std::process::id());
    assert_eq!(client.get::<u32>("budget").unwrap(), 3);
    for field in ["received", "missed", "copied", "oldest-held-age", "latency"] {
        client.get::<u64>(field).unwrap();
    }
    client.get::<u32>("uid").unwrap();
    client.get::<u32>("held").unwrap();
    drop(receiver);
    until("no client", || counts.lock().unwrap().len() == 2);
    assert_eq!(*counts.lock().unwrap(), [1, 0]);
    let signals = signals.lock().unwrap();
    assert_eq!(signals[0].0, "client-connected");
    assert_eq!(signals[1].0, "client-disconnected");
    assert_eq!(signals[1].1.get::<String>("reason").unwrap(), "left");
    assert_eq!(
        signals[0].1.get::<u64>("id").unwrap(),
        signals[1].1.get::<u64>("id").unwrap()
    );
}

/// A sink that waits in lossless delivery stops waiting at a pause or a stop.
#[test]
fn a_sink_that_waits_can_be_paused_and_stopped() {
    let pools = Pools::new();
    let sender = pools.sender(&caps(), LOSSLESS);
    sender.push(frame(1));
    for state in [gst::State::Playing, gst::State::Paused, gst::State::Playing] {
        sender.pipeline.settle(state);
    }
    let receiver = pools.receiver("");
    assert_eq!(first_byte(&receiver.next().unwrap()), 1);
    drop(receiver);
    for number in 2..10 {
        sender.push(frame(number));
    }
    sender.pipeline.stop();
}

/// At the end of a lossless stream, the sink waits until all consumers have taken all frames. A stop ends this wait.
#[test]
fn a_sink_that_drains_can_be_stopped() {
    let pools = Pools::new();
    let sender = pools.sender(&caps(), "delivery=lossless");
    let receiver = pools.receiver("").connected();
    for number in 1..=4 {
        sender.push(frame(number));
    }
    sender.app.end_of_stream().unwrap();
    sender.until_published(4);
    // A pause does not lose the remaining frames.
    for state in [gst::State::Playing, gst::State::Paused, gst::State::Playing] {
        sender.pipeline.settle(state);
    }
    assert_eq!(first_byte(&receiver.next().unwrap()), 1);
    sender.pipeline.stop();
}

#[test]
fn a_flush_ends_a_wait() {
    let pools = Pools::new();
    let sink = gst::ElementFactory::make("xmemsink")
        .property("pool", pools.pool("p"))
        .property("wait-for-connection", true)
        .build()
        .unwrap();
    let pipeline = Pipeline(gst::Pipeline::new());
    pipeline.0.add(&sink).unwrap();
    pipeline.play();
    let pad = sink.static_pad("sink").unwrap();
    let begin = {
        let pad = pad.clone();
        move || {
            let segment = gst::FormattedSegment::<gst::ClockTime>::new();
            pad.send_event(gst::event::StreamStart::new("stream"));
            pad.send_event(gst::event::Caps::new(&caps()));
            pad.send_event(gst::event::Segment::new(&segment));
        }
    };
    begin();
    let waiting = std::thread::spawn({
        let pad = pad.clone();
        move || pad.chain(frame(1))
    });
    // The sink probably waits now. If it does not, the flush precedes the buffer and drops it.
    std::thread::sleep(std::time::Duration::from_millis(20));
    assert!(pad.send_event(gst::event::FlushStart::new()));
    assert_eq!(waiting.join().unwrap(), Err(gst::FlowError::Flushing));
    assert!(pad.send_event(gst::event::FlushStop::new(true)));
    begin();
    let receiver = pools.receiver("");
    assert_eq!(pad.chain(frame(2)), Ok(gst::FlowSuccess::Ok));
    assert_eq!(first_byte(&receiver.next().unwrap()), 2);
}

#[test]
fn posix_shm_works_as_well() {
    let pools = Pools::new();
    let receiver = pools.receiver("");
    let sender = pools.sender(&caps(), &format!("backing=posix-shm {LOSSLESS}"));
    for number in 1..=20 {
        sender.push(frame(number));
        assert_eq!(first_byte(&receiver.next().unwrap()), number);
    }
    sender.finish();
}
