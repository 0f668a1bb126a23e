// SPDX-License-Identifier: MPL-2.0

//! Frames of live streams from before the start of the consumer's pipeline. No two frames get the same time, streams stay together,
//! and files can be recorded.

use std::{
    collections::BTreeMap,
    process::Command,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use crate::support::{process::*, *};
use gst::prelude::*;
use rustix::process::Signal;

const CAPS: &str = "video/x-raw,format=GRAY8,width=16,height=16,framerate=50/1";
const SOUND: &str = "audio/x-raw,format=S16LE,rate=8000,channels=1";
const FRAME: gst::ClockTime = gst::ClockTime::from_mseconds(20);
const DELAY: gst::ClockTime = gst::ClockTime::from_mseconds(700);
const DEADLINE: gst::ClockTime = gst::ClockTime::from_mseconds(20);

/// The times of the buffers at a pad by their offsets, on the clock that all pipelines of a test use.
type Times = Arc<Mutex<BTreeMap<u64, i128>>>;

fn times_at(pipeline: &Pipeline, element: &str, pad: &str) -> Times {
    let noted = Times::default();
    let times = noted.clone();
    let weak = pipeline.0.downgrade();
    let pad = pipeline.by_name(element).static_pad(pad).unwrap();
    pad.add_probe(gst::PadProbeType::BUFFER, move |_, info| {
        let buffer = info.buffer().unwrap();
        let base_time = weak.upgrade().unwrap().base_time().unwrap_or_default();
        let time = i128::from(buffer.pts().unwrap().nseconds()) + i128::from(base_time.nseconds());
        times.lock().unwrap().insert(buffer.offset(), time);
        gst::PadProbeReturn::Ok
    });
    noted
}

/// Elements that delay a stream and report that.
fn held_back() -> String {
    format!(
        "queue max-size-time=0 max-size-bytes=0 max-size-buffers=0 min-threshold-time={} !",
        DELAY.nseconds()
    )
}

/// Plays video and sound into two pools, each with the elements that delay it.
struct Producer {
    pipeline: Pipeline,
    video: Times,
    sound: Times,
}

impl Producer {
    fn new(pools: &Pools, video: &str, sound: &str) -> Self {
        let producer = Self::start(pools, video, sound, "");
        for sink in ["v", "a"] {
            let sink = producer.pipeline.by_name(sink);
            until("frames", || stat(&sink, "published") > 5);
        }
        producer
    }

    /// With these properties of both sinks.
    fn start(pools: &Pools, video: &str, sound: &str, sink: &str) -> Self {
        let pipeline = pools.launch(&format!(
            "videotestsrc is-live=true ! {CAPS} ! {video} xmemsink name=v pool={} {sink} \
             audiotestsrc is-live=true samplesperbuffer=160 ! {SOUND} ! {sound} xmemsink name=a pool={} {sink}",
            pools.pool("v"),
            pools.pool("a")
        ));
        let (video, sound) = (
            times_at(&pipeline, "v", "sink"),
            times_at(&pipeline, "a", "sink"),
        );
        pipeline.play();
        Self {
            pipeline,
            video,
            sound,
        }
    }
}

/// By how much each frame is later for the consumer than for the producer. Its times rise.
#[track_caller]
fn shifts(sent: &Times, received: &Times) -> Vec<i128> {
    let received = received.lock().unwrap().clone();
    let times: Vec<_> = received.values().collect();
    assert!(times.windows(2).all(|pair| pair[0] < pair[1]), "{times:?}");
    let sent = sent.lock().unwrap();
    let shifts = received.iter().map(|(offset, time)| time - sent[offset]);
    shifts.collect()
}

/// Waits until this many frames were received.
fn wait_for(received: &Times, frames: usize) {
    until("frames", || received.lock().unwrap().len() >= frames);
}

/// A consumer of both streams, and the times that they get.
fn consumer_of_both(pools: &Pools, properties: &str, sinks: [&str; 2]) -> (Pipeline, [Times; 2]) {
    let consumer = pools.launch(&format!(
        "xmemsrc name=v pool={} {properties} ! {} xmemsrc name=a pool={} {properties} ! {}",
        pools.pool("v"),
        sinks[0],
        pools.pool("a"),
        sinks[1]
    ));
    let times = ["v", "a"].map(|name| times_at(&consumer, name, "src"));
    (consumer, times)
}

/// The shift of both streams. All frames have the same, except for the first one of a stream: it may have begun before the start.
#[track_caller]
fn shift_of_both(producer: &Producer, [video, sound]: &[Times; 2]) -> i128 {
    wait_for(video, 60);
    wait_for(sound, 60);
    let video = shifts(&producer.video, video);
    let sound = shifts(&producer.sound, sound);
    assert!(
        video[1..]
            .iter()
            .chain(&sound[1..])
            .all(|it| *it == video[1]),
        "{video:?} {sound:?}"
    );
    video[1]
}

#[test]
fn streams_of_different_delays_stay_together() {
    let (none, held) = ("", held_back());
    for (video, sound) in [(none, none), (&held, none), (none, &held), (&held, &held)] {
        let pools = Pools::new();
        let producer = Producer::new(&pools, video, sound);
        for sinks in [["fakesink sync=true"; 2], ["fakesink sync=false"; 2]] {
            let (consumer, times) = consumer_of_both(&pools, "", sinks);
            consumer.play();
            let shift = shift_of_both(&producer, &times);
            let most = i128::from((DELAY + FRAME + DEADLINE).nseconds());
            assert!((0..=most).contains(&shift), "{shift}");
        }
    }
}

/// One pool has older frames than the other. The times of a stream do not jump when the other one begins.
#[test]
fn the_oldest_frames_of_two_pools_stay_together() {
    for late in [None, Some("v"), Some("a")] {
        let pools = Pools::new();
        let producer = Producer::start(
            &pools,
            "",
            "valve name=valve drop=true !",
            "history=200 async=false",
        );
        let published = |sink, frames| {
            let sink = producer.pipeline.by_name(sink);
            until("frames", || stat(&sink, "published") > frames);
        };
        published("v", 100);
        producer
            .pipeline
            .by_name("valve")
            .set_property("drop", false);
        published("a", 10);
        let (consumer, times) = consumer_of_both(
            &pools,
            "start-from=oldest",
            ["fakesink sync=false async=false"; 2],
        );
        let late = late.map(|name| consumer.by_name(name));
        if let Some(late) = &late {
            late.set_locked_state(true);
        }
        consumer.play();
        if let Some(late) = &late {
            until("the other one begins", || {
                times.iter().any(|it| it.lock().unwrap().len() > 40)
            });
            late.set_locked_state(false);
            late.sync_state_with_parent().unwrap();
        }
        let shift = shift_of_both(&producer, &times);
        // That of the pool with 100 frames, if its stream begins in time.
        let all = i128::from((90 * FRAME).nseconds());
        match late.as_ref().map(|it| it.name()).as_deref() {
            Some("v") => assert!(shift < all, "{shift}"),
            Some(_) => assert!(shift > all, "{shift}"),
            None => {}
        }
    }
}

fn latency(src: &gst::Element) -> gst::ClockTime {
    let mut query = gst::query::Latency::new();
    assert!(src.query(&mut query));
    query.result().1
}

/// The latency becomes smaller by the shift, so a frame is shown when it is due. The shift stays when the producer comes back.
#[test]
fn the_shift_is_paid_from_the_latency() {
    let pools = Pools::new();
    let start = || {
        let producer = pools.launch(&format!(
            "videotestsrc is-live=true ! {CAPS} ! {} xmemsink name=sink pool=POOL",
            held_back()
        ));
        let sent = times_at(&producer, "sink", "sink");
        producer.play();
        until("frames", || stat(&producer.sink(), "published") > 5);
        (producer, sent)
    };
    let (producer, sent) = start();
    let consumer = pools.launch("xmemsrc name=src pool=POOL ! fakesink sync=false");
    let received = times_at(&consumer, "src", "src");
    consumer.play();
    wait_for(&received, 20);
    let all = shifts(&sent, &received);
    let shift = all[0];
    assert!(all.iter().all(|it| *it == shift), "{all:?}");
    // The first frame is at the start.
    let begin = *received.lock().unwrap().values().next().unwrap();
    let base_time = consumer.0.base_time().unwrap();
    assert_eq!(begin, i128::from(base_time.nseconds()));
    assert!(shift > 0);
    let src = consumer.by_name("src");
    let expected = || {
        let shift = gst::ClockTime::from_nseconds(u64::try_from(shift).unwrap());
        FRAME + DELAY + DEADLINE - shift
    };
    assert_eq!(latency(&src), expected());

    drop(producer);
    received.lock().unwrap().clear();
    let (_producer, sent) = start();
    wait_for(&received, 20);
    let again = shifts(&sent, &received);
    assert!(again.iter().all(|it| *it == shift), "{again:?} {shift}");
    assert_eq!(latency(&src), expected());
}

/// A microphone in the pipeline has its own times, so nothing is shifted. Frames from before the start are left out.
#[test]
fn nothing_is_shifted_beside_another_live_source() {
    let pools = Pools::new();
    let producer = Producer::new(&pools, &held_back(), "");
    let consumer = pools.launch(&format!(
        "xmemsrc name=v pool={} ! fakesink sync=false audiotestsrc is-live=true ! fakesink sync=false",
        pools.pool("v")
    ));
    let received = times_at(&consumer, "v", "src");
    consumer.play();
    wait_for(&received, 20);
    let all = shifts(&producer.video, &received);
    assert!(all[1..].iter().all(|it| *it == 0), "{all:?}");
    assert_eq!(latency(&consumer.by_name("v")), FRAME + DELAY + DEADLINE);
    let stats = stats_of(&pools.pool("v"));
    assert!(stats.consumers[0].dropped > 0, "they are counted");
}

/// One picture is what the user wants, whatever its time is.
#[test]
fn the_newest_frame_is_never_left_out() {
    let pools = Pools::new();
    let sender = pools.sender(&CAPS.parse().unwrap(), "");
    let mut buffer = gst::Buffer::from_slice([1; 256]);
    buffer.make_mut().set_pts(gst::ClockTime::ZERO);
    buffer.make_mut().set_duration(gst::ClockTime::MSECOND);
    sender.push(buffer);
    sender.until_published(1);
    let begun = xmem_core::monotonic_ns();
    until("it is over", || {
        xmem_core::monotonic_ns() > begun + 200_000_000
    });
    let receiver = pools.receiver("start-from=newest");
    let pts = receiver.next().unwrap().buffer().unwrap().pts();
    assert_eq!(pts, Some(gst::ClockTime::ZERO));
}

/// What a consumer gets: the frame's number, its time and its flags.
type Frame = (u64, gst::ClockTime, gst::BufferFlags);

/// The frames of a pool whose consumer pauses three times. The times rise.
#[track_caller]
fn over_pauses(pools: &Pools, producer: &str, properties: &str) -> Vec<Frame> {
    let producer = pools.launch(&format!("{producer} ! xmemsink name=sink pool=POOL"));
    let pad = producer.sink().static_pad("sink").unwrap();
    let numbers = AtomicU64::new(0);
    pad.add_probe(gst::PadProbeType::BUFFER, move |_, info| {
        let number = numbers.fetch_add(1, Relaxed);
        info.buffer_mut().unwrap().make_mut().set_offset(number);
        gst::PadProbeReturn::Ok
    });
    producer.play();
    let consumer = pools.launch(&format!(
        "xmemsrc name=src pool=POOL {properties} ! fakesink sync=false"
    ));
    let pad = consumer.by_name("src").static_pad("src").unwrap();
    let frames = note(&pad, gst::PadProbeType::BUFFER, |info| {
        let buffer = info.buffer()?;
        Some((buffer.offset(), buffer.pts().unwrap(), buffer.flags()))
    });
    consumer.play();
    for round in 1..=3 {
        until("frames", || frames.lock().unwrap().len() >= 20 * round);
        consumer.settle(gst::State::Paused);
        let now = xmem_core::monotonic_ns();
        until("a pause", || xmem_core::monotonic_ns() > now + 300_000_000);
        consumer.settle(gst::State::Playing);
    }
    until("frames", || frames.lock().unwrap().len() >= 80);
    consumer.stop();
    let frames = std::mem::take(&mut *frames.lock().unwrap());
    let rise = frames.windows(2).all(|pair| pair[0].1 < pair[1].1);
    assert!(rise, "{properties} {frames:?}");
    frames
}

#[test]
fn times_rise_over_a_pause() {
    let pools = Pools::new();
    let delayed = format!(
        "videotestsrc is-live=true ! {CAPS} ! {}",
        held_back().trim_end_matches('!')
    );
    // The last one is played at its times, as a file is.
    for (producer, properties) in [
        (delayed.clone(), ""),
        (delayed.clone(), "start-from=newest"),
        (delayed, "timestamp-mode=arrival"),
        (format!("videotestsrc ! {CAPS}"), ""),
    ] {
        over_pauses(&pools, &producer, properties);
    }
}

/// The frames of the pause are left out, and the next ones depend on them.
#[test]
fn an_encoded_stream_goes_on_with_a_key_frame_after_a_pause() {
    let pools = Pools::new();
    for (is_live, interval, properties) in [
        (true, 1_000_000, ""),
        (true, 1_000_000, "timestamp-mode=arrival"),
        (false, 10, ""),
    ] {
        let frames = over_pauses(
            &pools,
            &format!(
                "videotestsrc is-live={is_live} ! video/x-raw,format=I420,width=64,height=64,framerate=50/1 \
                 ! x264enc tune=zerolatency key-int-max={interval}"
            ),
            properties,
        );
        let jumps = frames.windows(2).filter(|pair| pair[1].0 != pair[0].0 + 1);
        let jumps: Vec<_> = jumps.map(|pair| pair[1]).collect();
        assert!(jumps.len() >= 3, "{frames:?}");
        for (number, _, flags) in jumps {
            let is_key = !flags.contains(gst::BufferFlags::DELTA_UNIT);
            assert!(is_key, "{is_live} {number} {frames:?}");
            assert!(
                flags.contains(gst::BufferFlags::DISCONT),
                "{is_live} {number}"
            );
        }
    }
}

/// A recorder takes a film faster than it is played, so the next one begins before the end of the first.
#[test]
fn times_go_on_with_the_next_film() {
    for (mode, least) in [
        ("clock", FRAME),
        ("arrival", gst::ClockTime::from_nseconds(1)),
    ] {
        let pools = Pools::new();
        let consumer = pools.launch(&format!(
            "xmemsrc name=src pool=POOL on-eos=wait timestamp-mode={mode} ! fakesink sync=false"
        ));
        let pad = consumer.by_name("src").static_pad("src").unwrap();
        let times = note(&pad, gst::PadProbeType::BUFFER, |info| info.buffer()?.pts());
        consumer.play();
        for film in 1..=3 {
            let producer = pools.launch(&format!(
            "videotestsrc num-buffers=100 ! {CAPS} ! xmemsink name=sink pool=POOL {LOSSLESS} sync=false"
        ));
            producer.play();
            producer.wait_eos();
            until("the film", || times.lock().unwrap().len() == 100 * film);
        }
        let times = times.lock().unwrap();
        let pairs = times.windows(2).map(|pair| (pair[0], pair[1]));
        for (number, (one, next)) in pairs.enumerate() {
            assert!(one + least <= next, "{mode} {number}: {one} {next}");
        }
    }
}

/// Plays three films, one after the other, for a consumer, and then ends it.
fn play_three(pools: &Pools, source: &str, consumer: &Pipeline) {
    consumer.play();
    for film in 1..=3 {
        let producer = pools.launch(&format!(
            "{source} ! xmemsink name=sink pool=POOL {LOSSLESS}"
        ));
        producer.play();
        producer.wait_eos();
        let taken = || consumer.stat("src", "zero-copy") + consumer.stat("src", "copied");
        until("all frames", || taken() == 30 * film);
    }
    consumer.0.send_event(gst::event::Eos::new());
    consumer.wait_eos();
}

/// The rate converters of GStreamer 1.22 fill the time from the start of each segment to its first buffer.
#[test]
fn a_stream_goes_on_after_the_previous_one() {
    let video = format!("videotestsrc num-buffers=30 is-live=true ! {CAPS}");
    let encoded = video.replace("GRAY8", "I420")
        + " ! x264enc key-int-max=10 bframes=2 speed-preset=ultrafast";
    let audio = format!("audiotestsrc num-buffers=30 is-live=true samplesperbuffer=160 ! {SOUND}");
    let video_rate = "videorate ! video/x-raw,framerate=50/1";
    let decoded = format!("decodebin ! {video_rate}");
    // A decoder moves times of arrival.
    for (source, elements, modes) in [
        (&video, video_rate, &["clock", "arrival"][..]),
        (&encoded, &decoded, &["clock"]),
        (&audio, "audiorate", &["clock", "arrival"]),
    ] {
        for mode in modes {
            let pools = Pools::new();
            let consumer = pools.launch(&format!(
                "xmemsrc name=src pool=POOL on-eos=wait timestamp-mode={mode} ! {elements} ! fakesink name=out sync=false"
            ));
            let pad = consumer.by_name("out").static_pad("sink").unwrap();
            let times = note(&pad, gst::PadProbeType::BUFFER, |info| info.buffer()?.pts());
            play_three(&pools, source, &consumer);
            let times = times.lock().unwrap();
            assert!(times.len() > 80, "{elements} {mode}: {}", times.len());
            for (number, pair) in times.windows(2).enumerate() {
                let (one, next) = (pair[0], pair[1]);
                assert!(one < next, "{elements} {mode} {number}: {one} {next}");
            }
        }
    }
}

/// An encoder sends its last B frames after the first frame of the next stream. With a segment between them, mp4mux would clip them.
#[test]
fn an_encoder_goes_on_after_the_previous_stream() {
    let video =
        format!("videotestsrc num-buffers=30 is-live=true ! {CAPS}").replace("GRAY8", "I420");
    let pools = Pools::new();
    let file = pools.file("a.mp4");
    let name = file.to_str().unwrap();
    let consumer = pools.launch(&format!(
        "xmemsrc name=src pool=POOL on-eos=wait ! x264enc bframes=2 ! mp4mux ! filesink location={name}"
    ));
    play_three(&pools, &video, &consumer);
    assert_eq!(times_in(name, "v").len(), 90);
}

/// Otherwise videorate would send the first frame for all the time that the consumer has waited.
#[test]
fn the_first_stream_begins_when_its_producer_comes() {
    let raw = format!("videotestsrc num-buffers=9 is-live=true ! {CAPS}");
    // The segment of x264enc begins hours before its first frame.
    let encoded = raw.replace("GRAY8", "I420") + " ! x264enc tune=zerolatency";
    for (source, decoder) in [(raw, ""), (encoded, "decodebin !")] {
        let pools = Pools::new();
        let consumer = pools.launch(&format!(
            "xmemsrc pool=POOL ! {decoder} videorate ! video/x-raw,framerate=50/1 ! fakesink name=out sync=false"
        ));
        let pad = consumer.by_name("out").static_pad("sink").unwrap();
        let times = note(&pad, gst::PadProbeType::BUFFER, |info| info.buffer()?.pts());
        consumer.play();
        let now = || consumer.0.current_running_time().unwrap_or_default();
        until("three seconds", || now() > 3 * gst::ClockTime::SECOND);
        let producer = pools.launch(&format!(
            "{source} ! xmemsink name=sink pool=POOL {LOSSLESS}"
        ));
        producer.play();
        consumer.wait_eos();
        let first = times.lock().unwrap()[0];
        assert!(first > gst::ClockTime::SECOND, "{first}");
    }
}

/// The presentation times of a stream in a file, in seconds, sorted.
fn times_in(file: &str, stream: &str) -> Vec<f64> {
    let probe = Command::new("ffprobe")
        .args(["-v", "error", "-select_streams", stream])
        .args(["-show_entries", "packet=pts_time", "-of", "csv=p=0", file])
        .output()
        .unwrap();
    let text = String::from_utf8(probe.stdout).unwrap();
    let fields = text.split([',', '\n']).map(str::trim);
    let mut times: Vec<f64> = fields.filter_map(|time| time.parse().ok()).collect();
    times.sort_by(f64::total_cmp);
    times
}

/// Asserts that the times rise by this step. A busy machine may miss frames. The first frame may have begun before the start.
#[track_caller]
fn is_regular(file: &str, stream: &str, step: f64, least: usize) {
    let times = times_in(file, stream);
    assert!(times.len() >= least, "{file} {stream}: {times:?}");
    let steps = times.windows(2).map(|pair| pair[1] - pair[0]).skip(1);
    let irregular: Vec<_> = steps.filter(|it| (it - step).abs() > 0.002).collect();
    assert!(
        times[0] < times[1]
            && irregular.len() * 10 <= times.len()
            && irregular.iter().all(|it| *it > step / 2.0),
        "{file} {stream}: {irregular:?} in {times:?}"
    );
}

/// H.264 with B frames, AAC, and the decoded pictures, in one pool each. The consumers start later.
fn encoding_producer(pools: &Pools, properties: &str) -> Launch {
    let producer = Launch::new(
        pools,
        "producer",
        &format!(
            "videotestsrc is-live=true ! video/x-raw,format=I420,width=160,height=120,framerate=25/1 \
             ! x264enc key-int-max=25 bframes=2 rc-lookahead=10 ! h264parse ! tee name=t \
             t. ! queue ! xmemsink pool=video {properties} t. ! queue ! avdec_h264 ! xmemsink pool=raw {properties} \
             audiotestsrc is-live=true ! audio/x-raw,rate=48000,channels=2 ! audioconvert ! avenc_aac ! aacparse \
             ! xmemsink pool=sound {properties}"
        ),
    );
    for pool in ["video", "raw", "sound"] {
        until("frames", || {
            pool_stats(pools, pool).is_some_and(|stats| stats.published > 30)
        });
    }
    producer
}

#[test]
fn any_live_pool_can_be_recorded() {
    recordings("", &["video", "raw", "both"]);
}

#[test]
fn any_lossless_live_pool_can_be_recorded() {
    recordings("delivery=lossless", &["video"]);
}

fn recordings(properties: &str, kinds: &[&str]) {
    let pools = prepared();
    let _producer = encoding_producer(&pools, properties);
    let video = "xmemsrc pool=video name=src ! h264parse !";
    let raw = "xmemsrc pool=raw name=src ! videoconvert ! x264enc tune=zerolatency speed-preset=ultrafast ! h264parse !";
    let both = "xmemsrc pool=sound ! aacparse ! queue ! m. xmemsrc pool=video name=src ! h264parse ! queue ! m.";
    let file = |name: &str| pools.file(name).to_str().unwrap().to_owned();
    let mut recorders = Vec::new();
    for (number, muxer) in ["mp4mux", "qtmux", "matroskamux", "mpegtsmux", "flvmux"]
        .into_iter()
        .enumerate()
    {
        for (kind, streams) in [("video", video), ("raw", raw), ("both", both)] {
            if !kinds.contains(&kind) {
                continue;
            }
            // Two are enough for the re-encoded pictures.
            if kind == "raw" && number > 1 {
                continue;
            }
            // flvmux gives video the times of sound that came before it, also without a pool.
            if kind == "both" && muxer == "flvmux" {
                continue;
            }
            let name = format!("{muxer}-{kind}");
            let path = file(&name);
            let pipeline = if kind == "both" {
                format!("-e {muxer} name=m ! filesink location={path} {streams}")
            } else {
                format!("-e {streams} {muxer} ! filesink location={path}")
            };
            recorders.push((name.clone(), path, Launch::new(&pools, &name, &pipeline)));
        }
    }
    let path = file("split");
    let split = format!("-e {video} splitmuxsink location={path}");
    recorders.push((
        "split-video".into(),
        path,
        Launch::new(&pools, "split", &split),
    ));

    let of = |kind: &str| {
        let names = recorders.iter().map(|(name, ..)| name);
        names.filter(|name| name.ends_with(kind)).count()
    };
    for (pool, expected) in [
        ("video", of("video") + of("both")),
        ("raw", of("raw")),
        ("sound", of("both")),
    ] {
        until("frames of all", || {
            let consumers = pool_stats(&pools, pool).map_or(Vec::new(), |stats| stats.consumers);
            consumers.len() == expected && consumers.iter().all(|it| it.received > 100)
        });
    }
    for (_, _, recorder) in &recorders {
        recorder.signal(Signal::INT);
    }
    for (name, path, mut recorder) in recorders {
        recorder.succeeds();
        is_regular(&path, "v", 0.04, 40);
        if name.ends_with("both") {
            is_regular(&path, "a", 1024.0 / 48_000.0, 80);
        }
    }
}
