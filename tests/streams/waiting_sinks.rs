// SPDX-License-Identifier: MPL-2.0

//! A consumer that keeps up misses no frame: also if its sink waits for the frames' times and they come early, and if they come in
//! bursts. A jitter buffer promises a latency, and passes its packets at once as long as none is missing.

use std::net::UdpSocket;

use crate::support::{process::*, *};
use gst::prelude::*;

const VIDEO: &str =
    "videotestsrc is-live=true ! video/x-raw,format=I420,width=320,height=240,framerate=25/1";
const ENCODE: &str = "x264enc tune=zerolatency speed-preset=ultrafast key-int-max=25";

/// H.264 behind a jitter buffer with a latency in milliseconds.
fn early(latency: u32) -> String {
    format!("{VIDEO} ! {ENCODE} ! rtph264pay ! rtpjitterbuffer latency={latency} ! rtph264depay")
}

fn producer(pools: &Pools, pipeline: &str) -> Launch {
    let producer = Launch::new(pools, "producer", pipeline);
    until("the first frame", || {
        pool_stats(pools, "p").is_some_and(|stats| stats.published > 0)
    });
    producer
}

/// What the only consumer of a pool received and missed, after it received this many frames.
fn after(pools: &Pools, pool: &str, frames: u64) -> (u64, u64) {
    let mut figures = (0, 0);
    until("frames", || {
        let stats = pool_stats(pools, pool);
        if let Some(consumer) = stats.as_ref().and_then(|stats| stats.consumers.first()) {
            figures = (consumer.received, consumer.missed);
        }
        figures.0 >= frames
    });
    figures
}

/// A busy machine may not run the consumer for a time.
#[track_caller]
fn keeps_up(what: &str, received: u64, missed: u64, consumer: &Launch) {
    let log = consumer.log();
    assert!(
        missed * 2 < received,
        "{what}: {received} received, {missed} missed\n{log}"
    );
}

/// Without a history that is long enough, most frames would be missed.
#[track_caller]
fn misses_nothing(producing: &str, consuming: &str, frames: u64) {
    let pools = prepared();
    let _producer = producer(&pools, &format!("{producing} ! xmemsink pool=p"));
    let consumer = Launch::new(&pools, "consumer", &format!("xmemsrc pool=p ! {consuming}"));
    let (received, missed) = after(&pools, "p", frames);
    keeps_up("", received, missed, &consumer);
}

/// One pipeline shows the pictures of the pool `p`, and plays the sound of the pool `sound`.
#[track_caller]
fn pictures_and_sound_keep_up(pools: &Pools) {
    let consumer = Launch::new(
        pools,
        "consumer",
        "xmemsrc pool=p ! videoconvert ! fakesink sync=true xmemsrc pool=sound ! audioconvert ! fakesink sync=true",
    );
    for (pool, frames) in [("p", 75), ("sound", 300)] {
        let (received, missed) = after(pools, pool, frames);
        keeps_up(pool, received, missed, &consumer);
    }
}

#[test]
fn decoded_video_behind_a_jitter_buffer() {
    for latency in [500, 2_000] {
        let producing = format!("{} ! avdec_h264", early(latency));
        misses_nothing(&producing, "videoconvert ! fakesink sync=true", 75);
    }
}

#[test]
fn encoded_video_behind_a_jitter_buffer() {
    let producing = format!("{} ! h264parse", early(2_000));
    misses_nothing(
        &producing,
        "h264parse ! avdec_h264 ! fakesink sync=true",
        75,
    );
}

#[test]
fn sound_behind_a_jitter_buffer() {
    misses_nothing(
        "audiotestsrc is-live=true samplesperbuffer=441 ! audio/x-raw,rate=44100,channels=1 ! audioconvert \
         ! rtpL16pay max-ptime=10000000 ! rtpjitterbuffer latency=2000 ! rtpL16depay",
        "audioconvert ! fakesink sync=true",
        500,
    );
}

/// The packets of a picture come at once.
#[test]
fn bursts_of_packets() {
    let muxed = |rate| {
        format!(
            "videotestsrc is-live=true pattern=snow ! video/x-raw,format=I420,width=640,height=360,framerate=25/1 \
             ! x264enc tune=zerolatency speed-preset=ultrafast bitrate={rate} key-int-max=25 ! h264parse"
        )
    };
    let idle = "fakesink sync=false";
    misses_nothing(&format!("{} ! mpegtsmux", muxed(8_000)), idle, 10_000);
    misses_nothing(
        &format!("{} ! rtph264pay mtu=500", muxed(8_000)),
        idle,
        5_000,
    );
}

#[test]
fn very_short_pieces_of_sound() {
    let producing = "audiotestsrc is-live=true samplesperbuffer=6 ! audio/x-raw,rate=48000";
    misses_nothing(producing, "fakesink sync=true", 10_000);
}

/// The wait is that of the whole pipeline.
#[test]
fn sound_that_comes_at_once_beside_video_behind_a_jitter_buffer() {
    let pools = prepared();
    let _producer = producer(
        &pools,
        &format!(
            "{} ! avdec_h264 ! xmemsink pool=p \
             audiotestsrc is-live=true samplesperbuffer=441 ! audio/x-raw,rate=44100 ! xmemsink pool=sound",
            early(2_000)
        ),
    );
    pictures_and_sound_keep_up(&pools);
}

/// FFmpeg sends the pictures and sound of a transport stream 0.7 s before their times, and the demuxer has a latency of 0.7 s.
#[test]
fn a_transport_stream_that_is_sent_ahead_of_its_times() {
    let pools = prepared();
    let port = UdpSocket::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .port();
    let mut ffmpeg = command(&pools, "ffmpeg");
    let sent = format!(
        "-v fatal -re -f lavfi -i testsrc2=s=320x240:r=25 -re -f lavfi -i sine=r=48000 -c:v libx264 -tune zerolatency -g 25 \
         -pix_fmt yuv420p -c:a aac -f mpegts udp://127.0.0.1:{port}?pkt_size=1316"
    );
    let _sender = Launch::start(&pools, "ffmpeg", ffmpeg.args(sent.split_whitespace()));
    let _producer = producer(
        &pools,
        &format!(
            "udpsrc port={port} ! tsdemux name=d d. ! queue ! h264parse ! avdec_h264 ! xmemsink pool=p \
             d. ! queue ! aacparse ! avdec_aac ! audioconvert ! xmemsink pool=sound"
        ),
    );
    pictures_and_sound_keep_up(&pools);
}

/// A sink that waits longer than the pool keeps frames would miss nearly all.
#[test]
fn a_pool_that_is_too_small_for_the_wait() {
    let latencies = ["Upstream's latency is 2040 ms", "for 660 ms"];
    for (setting, warnings) in [("history=20", &latencies[..]), ("", &[])] {
        let pools = prepared();
        let pool = pool_path(&pools, "p");
        let producer = pools.launch(&format!(
            "{} ! avdec_h264 ! xmemsink pool={pool} {setting}",
            early(2_000)
        ));
        producer.play();
        until("a pool", || pool_stats(&pools, "p").is_some());
        let consumer = Launch::new(&pools, "consumer", "xmemsrc pool=p ! fakesink sync=true");
        // A jitter buffer holds its first packets, and publishes them in one burst.
        let (received, missed) = after(&pools, "p", 75);
        let (later, more) = after(&pools, "p", received + 75);
        let (received, missed) = (later - received, more - missed);
        keeps_up(setting, received, missed, &consumer);
        let posted = producer.warnings();
        let text = posted.join("\n");
        assert_eq!(posted.is_empty(), warnings.is_empty(), "{text}");
        assert!(posted.len() < 2, "{text}");
        assert!(warnings.iter().all(|part| text.contains(part)), "{text}");
    }
}

/// The memory of the frames that waited is used again, or returned.
#[test]
fn the_memory_is_free_again_after_the_consumer_has_left() {
    let pools = prepared();
    let _producer = producer(
        &pools,
        &format!("{} ! avdec_h264 ! xmemsink pool=p", early(2_000)),
    );
    let consumer = Launch::new(&pools, "consumer", "xmemsrc pool=p ! fakesink sync=true");
    let held = || pool_stats(&pools, "p").map_or(0, |stats| stats.slots_held);
    until("frames wait", || held() > 30);
    drop(consumer);
    until("only the newest frames are kept", || held() < 20);
}

/// A consumer that does not wait gets each frame at once, beside one that waits.
#[test]
fn a_slow_consumer_does_not_lag_by_the_wait_of_another() {
    let pools = prepared();
    let _producer = producer(
        &pools,
        &format!("{} ! avdec_h264 ! xmemsink pool=p", early(2_000)),
    );
    let _waits = Launch::new(&pools, "waits", "xmemsrc pool=p ! fakesink sync=true");
    let receiver = pools.receiver(&format!("pool={}", pool_path(&pools, "p")));
    // As applications do when a source's latency changes. The answer of a sink that does not wait is zero.
    receiver.next().unwrap();
    receiver.pipeline.0.recalculate_latency().unwrap();
    let held = || pool_stats(&pools, "p").map_or(0, |stats| stats.slots_held);
    until("frames wait", || held() > 30);
    let published = || pool_stats(&pools, "p").map_or(0, |stats| stats.published);
    // From here on this consumer is blocked, and the pool keeps 50 frames for the other one.
    let (before, missed) = (published(), receiver.stat("missed"));
    until("frames are published", || published() >= before + 100);
    for _ in 0..4 {
        receiver.next().unwrap();
    }
    let missed = receiver.stat("missed") - missed;
    assert!(missed > 60, "{missed}");
}
