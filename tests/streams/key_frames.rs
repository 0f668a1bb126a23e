// SPDX-License-Identifier: MPL-2.0

//! Encoded streams: consumers begin with a key frame and request one.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use crate::support::{process::*, *};
use gst::prelude::*;
use gst_video::{DownstreamForceKeyUnitEvent, UpstreamForceKeyUnitEvent};
use rustix::process::Signal;

const PICTURE: &str = "video/x-raw,format=I420,width=320,height=240";

/// A producer in a separate process. It encodes only its first frame as a key frame without a request.
fn encoder(pools: &Pools, sink: &str) -> Launch {
    Launch::new(
        pools,
        "producer",
        &format!(
            "videotestsrc is-live=true pattern=smpte ! {PICTURE},framerate=50/1 \
             ! x264enc key-int-max=1000000 tune=zerolatency speed-preset=ultrafast bitrate=4000 \
             ! h264parse config-interval=-1 ! video/x-h264,stream-format=byte-stream,alignment=au \
             ! xmemsink pool=p {sink}"
        ),
    )
}

/// Records for each buffer of the source whether it is a key frame.
fn key_frames(receiver: &Receiver) -> Noted<bool> {
    let pad = receiver.src().static_pad("src").unwrap();
    note(&pad, gst::PadProbeType::BUFFER, |info| {
        Some(!info.buffer()?.flags().contains(DELTA))
    })
}

/// Notes what `look` returns for the requests at the pad of a sink.
fn requests<T: Send + 'static>(
    sink: &gst::Element,
    look: impl Fn(UpstreamForceKeyUnitEvent) -> T + Send + Sync + 'static,
) -> Noted<T> {
    let pad = sink.static_pad("sink").unwrap();
    note(&pad, gst::PadProbeType::EVENT_UPSTREAM, move |info| {
        let wish = UpstreamForceKeyUnitEvent::parse(info.event()?).ok()?;
        Some(look(wish))
    })
}

/// The average difference between the bytes of two pictures.
fn distance(one: &[u8], other: &[u8]) -> f64 {
    assert_eq!(one.len(), other.len());
    let sum: u64 = one
        .iter()
        .zip(other)
        .map(|(one, other)| u64::from(one.abs_diff(*other)))
        .sum();
    sum as f64 / one.len() as f64
}

#[test]
fn the_first_picture_of_a_late_joiner_is_right() {
    let pools = prepared();
    let _producer = encoder(&pools, "");
    until("a stream without key frames", || {
        pool_stats(&pools, "p").is_some_and(|stats| stats.published > 50)
    });
    // The noise in a corner of the pattern differs between frames and between decoders.
    let right = &reference(&format!(
        "videotestsrc num-buffers=1 pattern=smpte ! {PICTURE}"
    ))[0];
    let mut late = 0;
    until("three came amid frames that cannot be decoded", || {
        let receiver = pools.receiver_behind(
            &format!("pool={}", pool_path(&pools, "p")),
            &format!("h264parse ! avdec_h264 ! videoconvert ! {PICTURE} !"),
        );
        let first = receiver.next().unwrap();
        let apart = distance(&pixels(&first), &pixels(right));
        assert!(apart < 6.0, "a joiner is {apart} off");
        // A consumer may join just at a key frame that another consumer has requested.
        late += u32::from(receiver.stat("undecodable") > 0);
        late == 3
    });
}

#[test]
fn a_consumer_that_misses_frames_goes_on_with_a_key_frame() {
    let pools = prepared();
    let _producer = encoder(&pools, "history=2");
    let receiver = pools.receiver(&format!("pool={}", pool_path(&pools, "p")));
    let kinds = key_frames(&receiver);
    assert!(receiver.next().is_some());
    let missed = receiver.stat("missed");
    let published = || stats_of(&pool_path(&pools, "p")).published;
    let before = published();
    // The source waits with one frame, and the appsink has another.
    until("missed frames", || published() > before + 30);
    for _ in 0..10 {
        let sample = receiver.next().unwrap();
        let flags = sample.buffer().unwrap().flags();
        let is_delta = flags.contains(gst::BufferFlags::DELTA_UNIT);
        assert!(
            !(is_delta && flags.contains(gst::BufferFlags::DISCONT)),
            "it goes on with a frame that cannot be decoded"
        );
    }
    assert!(receiver.stat("missed") > missed);
    assert!(kinds.lock().unwrap()[0]);
    assert!(
        kinds
            .lock()
            .unwrap()
            .iter()
            .filter(|is_key| **is_key)
            .count()
            >= 2
    );
}

/// A sink that the test feeds, and the requests that reach its upstream.
struct Fed {
    sender: Sender,
    requests: Noted<()>,
}

impl Fed {
    fn new(pools: &Pools, properties: &str) -> Self {
        let sender = pools.sender(&"video/x-test".parse().unwrap(), properties);
        let requests = requests(&sender.sink(), |wish| assert!(wish.all_headers));
        Self { sender, requests }
    }

    fn push(&self, number: u8, flags: gst::BufferFlags) {
        let mut buffer = gst::Buffer::from_slice([number; 100]);
        buffer.get_mut().unwrap().set_flags(flags);
        self.sender.push(buffer);
    }

    fn requests(&self) -> usize {
        self.requests.lock().unwrap().len()
    }
}

const DELTA: gst::BufferFlags = gst::BufferFlags::DELTA_UNIT;
const KEY: gst::BufferFlags = gst::BufferFlags::empty();

fn number(sample: Option<gst::Sample>) -> u8 {
    bytes(sample.unwrap().buffer().unwrap())[0]
}

#[test]
fn delta_frames_wait_for_a_key_frame() {
    let pools = Pools::new();
    let fed = Fed::new(&pools, LOSSLESS);
    let receivers = ["", "", "wait-for-keyframe=false"];
    let receivers = receivers.map(|properties| pools.receiver(properties).connected());
    for number in 1..=3 {
        fed.push(number, DELTA);
    }
    until("a request", || fed.requests() > 0);
    fed.push(4, KEY);
    fed.push(5, DELTA);
    assert_eq!(number(receivers[2].next()), 1);
    for receiver in &receivers[..2] {
        let first = receiver.next().unwrap();
        assert!(is_discont(&first));
        assert_eq!(number(Some(first)), 4);
        assert_eq!(number(receiver.next()), 5);
        assert_eq!(receiver.stat("undecodable"), 3);
    }
    assert_eq!(receivers[2].stat("undecodable"), 0);
}

#[test]
fn frames_of_intra_only_formats_are_delivered_with_any_flags() {
    for caps in [
        "video/x-raw,format=GRAY8,width=8,height=8,framerate=30/1",
        "image/png,width=8,height=8,framerate=30/1",
        "application/x-yuv4mpeg,y4mversion=2,width=8,height=8,framerate=30/1",
    ] {
        let pools = Pools::new();
        let receiver = pools.receiver("");
        let sender = pools.sender(&caps.parse().unwrap(), LOSSLESS);
        let mut buffer = gst::Buffer::from_slice([1; 64]);
        buffer.get_mut().unwrap().set_flags(DELTA);
        sender.push(buffer);
        assert_eq!(number(receiver.next()), 1, "{caps}");
    }
}

/// mpegtsmux marks no packet of it as one at which a reader can begin.
#[test]
fn sound_in_a_transport_stream_is_delivered() {
    for settings in ["", "alignment=7", "m2ts-mode=true"] {
        let pools = Pools::new();
        let consumer = pools.launch("xmemsrc name=src pool=POOL ! fakesink sync=false");
        consumer.play();
        let producer = pools.launch(&format!(
            "audiotestsrc num-buffers=50 ! avenc_aac ! mpegtsmux {settings} \
             ! xmemsink name=sink pool=POOL pace=never {LOSSLESS}"
        ));
        producer.play();
        producer.wait_eos();
        consumer.wait_eos();
        assert_eq!(consumer.stat("src", "undecodable"), 0, "{settings}");
        assert!(consumer.stat("src", "zero-copy") > 0, "{settings}");
    }
}

/// The number of warnings that name the way to avoid waiting for a key frame.
fn warnings(receiver: &Receiver) -> usize {
    let warnings = receiver.pipeline.warnings().into_iter();
    warnings
        .filter(|text| text.contains("wait-for-keyframe=false"))
        .count()
}

#[test]
fn a_stream_without_key_frames_is_reported_at_its_end() {
    let pools = Pools::new();
    let fed = Fed::new(&pools, LOSSLESS);
    let receivers = ["", "on-eos=wait", "wait-for-keyframe=false"];
    let receivers = receivers.map(|properties| pools.receiver(properties).connected());
    for number in 1..=3 {
        fed.push(number, DELTA);
    }
    fed.sender.app.end_of_stream().unwrap();
    assert_eq!(receivers[2].rest().len(), 3);
    for receiver in &receivers[..2] {
        until("a warning", || warnings(receiver) == 1);
        assert_eq!(receiver.stat("undecodable"), 3);
    }
    assert!(receivers[0].next().is_none());
}

#[test]
fn a_stream_without_key_frames_is_reported_after_a_while() {
    let pools = Pools::new();
    let fed = Fed::new(&pools, LOSSLESS);
    let receiver = pools.receiver("").connected();
    until("a warning", || {
        fed.push(1, DELTA);
        warnings(&receiver) == 1
    });
    // One warning is sufficient.
    fed.push(2, DELTA);
    fed.push(3, KEY);
    assert_eq!(number(receiver.next()), 3);
    assert_eq!(warnings(&receiver), 0);
}

/// During the pause there were no frames, so there is no information about key frames.
#[test]
fn a_pause_does_not_count_as_a_wait_for_a_key_frame() {
    let pools = Pools::new();
    let fed = Fed::new(&pools, LOSSLESS);
    let receiver = pools.receiver("").connected();
    fed.push(1, DELTA);
    until("a frame is kept back", || receiver.stat("undecodable") == 1);
    let _ = receiver.pipeline.0.set_state(gst::State::Paused);
    std::thread::sleep(Duration::from_millis(2_500));
    receiver.pipeline.0.set_state(gst::State::Playing).unwrap();
    fed.push(2, DELTA);
    fed.push(3, KEY);
    assert_eq!(number(receiver.next()), 3);
    assert_eq!(warnings(&receiver), 0);
}

#[test]
fn requests_reach_the_encoder() {
    let pools = Pools::new();
    let fed = Fed::new(&pools, "");
    let receiver = pools.receiver("").connected();
    // A pipeline has no running time before its first frame.
    fed.push(1, KEY);
    assert!(receiver.next().is_some());
    let sink_pad = receiver.app.static_pad("sink").unwrap();
    let request = UpstreamForceKeyUnitEvent::builder()
        .all_headers(true)
        .build();
    assert!(sink_pad.push_event(request));
    until("the request", || fed.requests() == 1);
    // The same request time of the consumer maps to the same time of the producer.
    let later = gst::ClockTime::from_seconds(20);
    let asked = Instant::now();
    let at = receiver.src().current_running_time().unwrap() + later;
    let sink = fed.sender.sink();
    let weak = sink.downgrade();
    let times = requests(&sink, move |wish| {
        let now = weak.upgrade().unwrap().current_running_time();
        (wish.running_time, now)
    });
    let request = UpstreamForceKeyUnitEvent::builder()
        .running_time(at)
        .all_headers(true)
        .build();
    assert!(sink_pad.push_event(request));
    // The counting probe is called before this one.
    until("the request", || !times.lock().unwrap().is_empty());
    assert_eq!(fed.requests(), 2);
    let [(running_time, now)] = times.lock().unwrap()[..] else {
        panic!("two requests")
    };
    let left = running_time.unwrap() - now.unwrap();
    assert!(
        left <= later
            && left + gst::ClockTime::from_nseconds(asked.elapsed().as_nanos() as u64) >= later
    );
}

/// splitmuxsink requests the key frame of the next part when a part begins.
#[test]
fn a_request_far_ahead_reaches_the_encoder_later() {
    let pools = Pools::new();
    let fed = Fed::new(&pools, "");
    let wishes = requests(&fed.sender.sink(), |wish| wish.running_time.is_some());
    let receiver = pools.receiver("").connected();
    fed.push(1, KEY);
    assert!(receiver.next().is_some());
    let pad = receiver.app.static_pad("sink").unwrap();
    let now = receiver.src().current_running_time().unwrap();
    // The encoder gets it a minute ahead. The last one shows that a request does not replace another.
    for seconds in [63, 3_600] {
        let at = now + gst::ClockTime::from_seconds(seconds);
        let request = UpstreamForceKeyUnitEvent::builder().running_time(at);
        assert!(pad.push_event(request.all_headers(true).build()));
    }
    let request = UpstreamForceKeyUnitEvent::builder().all_headers(true);
    assert!(pad.push_event(request.build()));
    until("both requests", || wishes.lock().unwrap().len() == 2);
    assert_eq!(wishes.lock().unwrap()[..], [false, true]);
    // The stop does not wait for the third one.
    fed.sender.pipeline.stop();
}

/// No properties of the producer's elements.
const PLAIN: [&str; 2] = ["", ""];

/// A frame and the frame 20 s later have the same distance in the pipelines of the producer and of the consumer.
fn assert_a_request_is_converted(
    starts_at_zero: bool,
    properties: &str,
    [appsrc, sink]: [&str; 2],
) {
    let pools = Pools::new();
    let producer = pools.launch(&format!(
        "appsrc name=app format=time caps=video/x-test {appsrc} ! xmemsink name=sink pool=POOL sync=false history=4 {sink}",
    ));
    let clock = gst::SystemClock::obtain();
    // Half of the time that the clock has run, because it can have begun a moment ago, with the machine.
    let began = clock.time() / 2;
    let pts = if starts_at_zero {
        gst::ClockTime::ZERO
    } else {
        began
    };
    producer.0.use_clock(Some(&clock));
    producer.0.set_start_time(gst::ClockTime::NONE);
    producer.0.set_base_time(clock.time() - began);
    producer.play();
    let sink = producer.sink();
    let wishes = requests(&sink, |wish| wish.running_time);
    let mut frame = gst::Buffer::from_slice([1; 100]);
    frame.get_mut().unwrap().set_pts(pts);
    let app = producer.by_name("app").downcast::<gst_app::AppSrc>();
    app.unwrap().push_buffer(frame).unwrap();
    until("a frame", || stat(&sink, "published") == 1);

    let receiver = pools.receiver(&format!("start-from=oldest {properties}"));
    let sample = receiver.next().unwrap();
    let segment = sample.segment().unwrap();
    let segment = segment.downcast_ref::<gst::ClockTime>().unwrap();
    let running_time = segment.to_running_time(sample.buffer().unwrap().pts());
    let asked = Instant::now();
    let ask = |after| {
        let request =
            UpstreamForceKeyUnitEvent::builder().running_time(running_time.unwrap() + after);
        let pad = receiver.app.static_pad("sink").unwrap();
        assert!(pad.push_event(request.build()));
    };
    // A position that is past.
    ask(gst::ClockTime::ZERO);
    until("the first request", || wishes.lock().unwrap()[..] == [None]);
    let later = began - pts + gst::ClockTime::from_seconds(20);
    ask(later);
    until("the second request", || wishes.lock().unwrap().len() == 2);
    let got = wishes.lock().unwrap()[1].unwrap();
    // The clocks are not read at the same moment.
    let error = gst::ClockTime::from_nseconds(got.nseconds().abs_diff((pts + later).nseconds()));
    let most = gst::ClockTime::from_nseconds(asked.elapsed().as_nanos() as u64);
    assert!(error <= most, "{error} of {most}");
}

#[test]
fn a_request_for_a_delayed_stream_has_the_producers_time() {
    assert_a_request_is_converted(true, "", PLAIN);
}

#[test]
fn a_request_for_a_stream_with_its_own_times_has_the_producers_time() {
    assert_a_request_is_converted(false, "timestamp-mode=passthrough", PLAIN);
}

/// The time of a frame on CLOCK_MONOTONIC includes the latency of the producer's pipeline.
#[test]
fn a_request_for_a_paced_stream_has_the_producers_time() {
    let paced = [
        "is-live=true min-latency=3000000000",
        "sync=true pace=always",
    ];
    assert_a_request_is_converted(false, "", paced);
    assert_a_request_is_converted(false, "timestamp-mode=passthrough", paced);
}

#[test]
fn a_request_for_a_stream_with_an_offset_has_the_producers_time() {
    let (later, sooner) = ("ts-offset=5000000000", "ts-offset=-5000000000");
    assert_a_request_is_converted(true, "", ["", later]);
    assert_a_request_is_converted(true, "", ["", sooner]);
    assert_a_request_is_converted(false, "timestamp-mode=passthrough", ["", sooner]);
}

/// Many requests of a consumer cause no load on the producer.
#[test]
fn a_flood_of_requests_is_limited() {
    let pools = Pools::new();
    let fed = Fed::new(&pools, "");
    let stop = Arc::new(AtomicBool::new(false));
    let begin = Instant::now();
    let floods: Vec<_> = (0..3)
        .map(|_| {
            let consumer = xmem_core::Consumer::builder(pools.pool("p"))
                .connect()
                .unwrap();
            let stop = stop.clone();
            std::thread::spawn(move || {
                let mut sent = 0usize;
                while !stop.load(Ordering::Relaxed) {
                    let at = (sent % 2) as i64 * (xmem_core::monotonic_ns() + 1_000_000_000);
                    let mut data = [1; 9];
                    data[1..].copy_from_slice(&at.to_le_bytes());
                    sent += usize::from(consumer.request("force-key-unit", &data).is_ok());
                    let _ = consumer.request("something else", &[0xff; 448]);
                    let _ = consumer.request("force-key-unit", b"nonsense");
                }
                sent
            })
        })
        .collect();
    let receiver = pools.receiver("").connected();
    for round in 0..200u32 {
        fed.push(round as u8, KEY);
        assert!(receiver.next().is_some(), "round {round}");
    }
    until("several answers", || fed.requests() >= 3);
    stop.store(true, Ordering::Relaxed);
    let sent: usize = floods.into_iter().map(|flood| flood.join().unwrap()).sum();
    let most = 2 + begin.elapsed().as_millis() as usize / 200;
    assert!(sent > most * 10, "that was no flood: {sent}");
    let got = fed.requests();
    assert!((1..=most).contains(&got), "{got} of {sent}, at most {most}");
    assert_eq!(receiver.stat("missed"), 0);
}

#[test]
fn a_force_key_unit_event_has_the_consumers_times() {
    let pools = Pools::new();
    let fed = Fed::new(&pools, "");
    let receiver = pools.receiver("").connected();
    let pad = receiver.app.static_pad("sink").unwrap();
    let seen = note(&pad, gst::PadProbeType::EVENT_DOWNSTREAM, |info| {
        DownstreamForceKeyUnitEvent::parse(info.event()?).ok()
    });
    let time = gst::ClockTime::from_seconds(1000);
    let mut frame = gst::Buffer::from_slice([1; 100]);
    frame.get_mut().unwrap().set_pts(gst::ClockTime::ZERO);
    fed.sender.push(frame);
    fed.sender.until_published(1);
    let news = DownstreamForceKeyUnitEvent::builder()
        .timestamp(time)
        .stream_time(time)
        .running_time(time)
        .all_headers(true)
        .count(7)
        .build();
    assert!(fed.sender.app.static_pad("src").unwrap().push_event(news));
    until("the news", || !seen.lock().unwrap().is_empty());
    let news = seen.lock().unwrap().pop().unwrap();
    let base_time = |pipeline: &Pipeline| pipeline.0.base_time().unwrap();
    let right = time + base_time(&fed.sender.pipeline) - base_time(&receiver.pipeline);
    assert_eq!(news.timestamp, Some(right));
    assert_eq!(news.running_time, Some(right));
    assert_eq!((news.all_headers, news.count), (true, 7));
    // The request is for the next possible frame.
    let soon = DownstreamForceKeyUnitEvent::builder().count(8).build();
    assert!(fed.sender.app.static_pad("src").unwrap().push_event(soon));
    until("news without a time", || !seen.lock().unwrap().is_empty());
    let soon = seen.lock().unwrap().pop().unwrap();
    assert_eq!(
        (soon.timestamp, soon.running_time, soon.count),
        (None, None, 8)
    );
}

#[test]
fn a_killed_encoder_is_followed_by_the_next() {
    let pools = prepared();
    let mut first = encoder(&pools, "");
    let receiver = pools.receiver(&format!("pool={}", pool_path(&pools, "p")));
    let kinds = key_frames(&receiver);
    assert!(receiver.next().is_some());
    first.signal(Signal::KILL);
    first.wait();
    let _second = encoder(&pools, "");
    until("the next producer", || {
        receiver
            .app
            .try_pull_sample(gst::ClockTime::from_mseconds(10));
        receiver.stat("reconnects") == 1
    });
    for _ in 0..5 {
        assert!(receiver.next().is_some());
    }
    let kinds = kinds.lock().unwrap();
    assert!(kinds[0] && kinds.iter().filter(|is_key| **is_key).count() >= 2);
}

/// asfdemux marks no audio frame as a key frame.
#[test]
fn audio_needs_no_key_frame() {
    let pools = Pools::new();
    let receiver = pools.receiver("");
    let sender = pools.sender(&"audio/x-wma".parse().unwrap(), LOSSLESS);
    let push = |number: u8| {
        let mut buffer = gst::Buffer::from_slice([number]);
        let flags = gst::BufferFlags::DELTA_UNIT;
        buffer.get_mut().unwrap().set_flags(flags);
        sender.push(buffer);
    };
    let next = |receiver: &Receiver| bytes(receiver.next().unwrap().buffer().unwrap());
    push(1);
    assert_eq!(next(&receiver), [1]);
    let late = pools.receiver("").connected();
    push(2);
    assert_eq!(next(&receiver), [2]);
    assert_eq!(next(&late), [2]);
}
