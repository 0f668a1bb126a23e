// SPDX-License-Identifier: MPL-2.0

//! `gst-launch-1.0` processes that load the plugin as a library.

use std::{
    fs,
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

use crate::support::{process::*, *};
use rustix::process::Signal;

/// Creates an H.264 file.
fn clip(pools: &Pools, width: u32, height: u32, frames: u32) -> String {
    let file = pools.file("clip.mp4").to_str().unwrap().to_owned();
    pools.run(&format!(
        "videotestsrc num-buffers={frames} pattern=ball \
         ! video/x-raw,format=I420,width={width},height={height},framerate=30/1 \
         ! x264enc speed-preset=veryfast bframes=2 key-int-max=20 ! h264parse ! mp4mux ! filesink location={file}"
    ));
    file
}

/// Files of one frame each, in order, with all bytes of the frame.
fn frames(dir: &Path) -> Vec<Vec<u8>> {
    let mut files: Vec<_> = fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    files.sort();
    files.iter().map(|file| fs::read(file).unwrap()).collect()
}

fn write_frames(pools: &Pools, name: &str) -> (PathBuf, String) {
    let dir = pools.file(name);
    fs::create_dir(&dir).unwrap();
    // videoconvert removes the padding on both sides.
    let sink = format!(
        "videoconvert ! video/x-raw,format=RGB ! multifilesink next-file=buffer location={}/%05d.raw",
        dir.display()
    );
    (dir, sink)
}

/// Frames that are decoded in one process and used in another equal those of one process.
fn decoded_frames_arrive(width: u32, height: u32) {
    let pools = prepared();
    let decode = format!(
        "filesrc location={} ! qtdemux ! h264parse ! {}",
        clip(&pools, width, height, 50),
        avdec(width)
    );
    let (right, into_right) = write_frames(&pools, "right");
    Launch::new(&pools, "one", &format!("{decode} ! {into_right}")).succeeds();

    let (received, into_received) = write_frames(&pools, "received");
    let mut producer = Launch::new(
        &pools,
        "producer",
        &format!(
            "{decode} ! xmemsink pool=p delivery=lossless wait-for-connection=true sync=false"
        ),
    );
    let mut consumer = Launch::new(
        &pools,
        "consumer",
        &format!("xmemsrc pool=p on-producer-lost=eos ! {into_received}"),
    );
    producer.succeeds();
    consumer.succeeds();
    let (right, received) = (frames(&right), frames(&received));
    assert_eq!(right.len(), 50);
    assert_eq!(received.len(), right.len(), "{}", consumer.log());
    for (number, (right, received)) in right.iter().zip(&received).enumerate() {
        assert!(right == received, "frame {number} differs");
    }
    assert_contains(&consumer.log(), "Got EOS");
}

#[test]
fn decoded_720p_arrives_bit_exact() {
    decoded_frames_arrive(1280, 720);
}

#[test]
fn decoded_odd_size_arrives_bit_exact() {
    decoded_frames_arrive(854, 480);
}

const LIVE: &str =
    "videotestsrc is-live=true ! video/x-raw,format=I420,width=320,height=240,framerate=100/1";

#[test]
fn the_consumer_survives_a_killed_producer() {
    let pools = prepared();
    let producer = || Launch::new(&pools, "producer", &format!("{LIVE} ! xmemsink pool=p"));
    let receiver = {
        let mut first = producer();
        let pool = pool_path(&pools, "p");
        let receiver = pools.receiver(&format!("pool={pool}"));
        let held: Vec<_> = (0..3).map(|_| receiver.next().unwrap()).collect();
        let copies: Vec<_> = held
            .iter()
            .map(|sample| bytes(sample.buffer().unwrap()))
            .collect();
        first.signal(Signal::KILL);
        first.wait();
        let second = producer();
        until("a new producer", || {
            // Two frames of the first producer may still be queued.
            receiver.next().unwrap();
            receiver.stat("reconnects") == 1
        });
        for _ in 0..20 {
            assert!(receiver.next().is_some());
        }
        for (sample, copy) in held.iter().zip(&copies) {
            assert!(
                bytes(sample.buffer().unwrap()) == *copy,
                "a held frame has changed"
            );
        }
        drop(second);
        receiver
    };
    assert!(receiver.stat("received") >= 23);
}

#[test]
fn slots_of_a_killed_consumer_return_to_the_producer() {
    let pools = prepared();
    let _producer = Launch::new(
        &pools,
        "producer",
        &format!("{LIVE} ! xmemsink pool=p history=4"),
    );
    // The queue fills and holds the whole budget.
    let consumer = Launch::new(
        &pools,
        "consumer",
        "xmemsrc pool=p max-held=6 over-budget=drop ! queue max-size-buffers=0 ! identity sleep-time=1000000000 \
         ! fakesink sync=false",
    );
    until("a consumer with its whole budget", || {
        pool_stats(&pools, "p")
            .is_some_and(|stats| stats.consumers.iter().any(|consumer| consumer.held == 6))
    });
    consumer.signal(Signal::KILL);
    until("no consumer", || {
        pool_stats(&pools, "p")
            .is_some_and(|stats| stats.consumers.is_empty() && stats.slots_held < 6)
    });
}

#[test]
fn a_stopped_consumer_delays_no_other_process() {
    let pools = prepared();
    let _producer = Launch::new(&pools, "producer", &format!("{LIVE} ! xmemsink pool=p"));
    let stopped = Launch::new(&pools, "stopped", "xmemsrc pool=p ! fakesink sync=false");
    until("a consumer", || {
        pool_stats(&pools, "p")
            .is_some_and(|stats| stats.consumers.iter().any(|consumer| consumer.received > 0))
    });
    stopped.signal(Signal::STOP);
    let pool = pool_path(&pools, "p");
    let receiver = pools.receiver(&format!("pool={pool}"));
    for _ in 0..100 {
        assert!(receiver.next().is_some());
    }
    let stats = stats_of(&pool);
    assert_eq!(stats.dropped, 0);
    assert!(stats.slots < 40, "{} slots", stats.slots);
    stopped.signal(Signal::CONT);
}

/// Waits for 150 frames. Fewer than `missed` may be missed meanwhile.
fn until_most_are_received(pools: &Pools, name: &str, missed: u64) {
    until("frames", || {
        pool_stats(pools, name).is_some_and(|stats| {
            let consumers = &stats.consumers;
            assert!(
                consumers.iter().all(|it| it.missed < missed),
                "{consumers:?}"
            );
            consumers.iter().any(|it| it.received > 150)
        })
    });
}

/// The source delays a film by as much as its first frame is late, so that all frames are shown. In a pool without room for so many
/// frames, it has to reduce the delay, because otherwise it would miss most frames until the end.
#[test]
fn a_film_that_the_pool_cannot_keep_for_so_long_is_delayed_less() {
    let pools = prepared();
    let _producer = Launch::new(
        &pools,
        "producer",
        "videotestsrc ! video/x-raw,format=I420,width=64,height=48,framerate=25/1 \
         ! xmemsink pool=p max-slots=12 wait-for-connection=true",
    );
    until("a producer", || pool_stats(&pools, "p").is_some());
    // So late is the first frame.
    thread::sleep(Duration::from_secs(3));
    let _consumer = Launch::new(&pools, "consumer", "xmemsrc pool=p ! fakesink sync=true");
    until_most_are_received(&pools, "p", 150);
}

/// The sound of a film is delayed as much as the pictures, and leaves out as much when the pictures catch up.
#[test]
fn a_film_with_sound_is_delayed_less_in_both_pools() {
    let pools = prepared();
    let _producer = Launch::new(
        &pools,
        "producer",
        "videotestsrc ! video/x-raw,format=I420,width=64,height=48,framerate=25/1 ! queue \
         ! xmemsink pool=v max-slots=12 wait-for-connection=true \
         audiotestsrc samplesperbuffer=1024 ! audio/x-raw,rate=48000 ! queue \
         ! xmemsink pool=a wait-for-connection=true",
    );
    until("a producer", || pool_stats(&pools, "v").is_some());
    // So late are the first frames.
    thread::sleep(Duration::from_secs(3));
    let consumer = Launch::new(
        &pools,
        "consumer",
        "-v xmemsrc pool=v ! fakesink sync=true \
         xmemsrc pool=a ! fakesink sync=true silent=false name=sound",
    );
    until_most_are_received(&pools, "v", 200);
    let log = consumer.log();
    let sound = log
        .lines()
        .filter(|line| line.contains("sound: last-message"));
    let times: Vec<_> = sound
        .filter_map(|line| line.split("pts: ").nth(1))
        .collect();
    assert!(times.len() > 100, "{} buffers of sound", times.len());
    // Texts of one length.
    assert!(times.is_sorted(), "{times:?}");
}

/// A film whose producer was behind is published faster than it is shown. When the producer ends, consumers have seen little of it.
#[test]
fn a_film_is_shown_to_its_end_after_its_producer_has_ended() {
    const FRAMES: u64 = 75;
    let pools = prepared();
    let mut producer = Launch::new(
        &pools,
        "producer",
        &format!(
            "videotestsrc num-buffers={FRAMES} ! video/x-raw,format=GRAY8,width=1280,height=720,framerate=25/1 \
             ! xmemsink pool=p wait-for-connection=true"
        ),
    );
    until("a producer", || pool_stats(&pools, "p").is_some());
    thread::sleep(Duration::from_secs(3));
    let shown = pools.file("shown");
    let mut consumer = Launch::new(
        &pools,
        "consumer",
        &format!(
            "xmemsrc pool=p ! clocksync ! filesink location={}",
            shown.display()
        ),
    );
    producer.succeeds();
    consumer.succeeds();
    let size = fs::metadata(&shown).unwrap().len();
    assert_eq!(size, FRAMES * 1280 * 720);
}

/// GStreamer parses such flags, which some decoders add to their caps, only in processes that have registered the type. In an
/// installation of few plugins no other one does.
#[test]
fn caps_with_flags_are_read_where_no_other_plugin_is_installed() {
    let pools = prepared();
    let info = gst_video::VideoInfo::builder(gst_video::VideoFormat::Rgb, 64, 48)
        .fps((30, 1))
        .multiview_mode(gst_video::VideoMultiviewMode::Mono)
        .build()
        .unwrap();
    let caps = info.to_caps().unwrap();
    assert!(caps.to_string().contains("(GstVideoMultiviewFlagsSet)"));
    let pool = pool_path(&pools, "p");
    let sender = pools.sender(&caps, &format!("pool={pool} {LOSSLESS}"));
    let few = pools.file("few");
    fs::create_dir(&few).unwrap();
    let core = gst::Registry::get().find_plugin("coreelements").unwrap();
    let core = core.filename().unwrap();
    std::os::unix::fs::symlink(&core, few.join(core.file_name().unwrap())).unwrap();
    let mut command = command(&pools, "gst-launch-1.0");
    command
        .args("xmemsrc pool=p ! fakesink".split(' '))
        .env("GST_PLUGIN_SYSTEM_PATH_1_0", &few)
        .env("GST_REGISTRY_1_0", pools.file("few.bin"));
    let mut consumer = Launch::start(&pools, "consumer", &mut command);
    let mut buffer = gst::Buffer::with_size(info.size()).unwrap();
    paint(&mut buffer, &info, 7);
    sender.push(buffer);
    sender.finish();
    consumer.succeeds();
}

#[test]
fn a_waiting_source_reports_it() {
    let pools = prepared();
    let _other = Launch::new(&pools, "other", &format!("{LIVE} ! xmemsink pool=existing"));
    // Existing pools are listed once.
    until("the other pool", || {
        pool_stats(&pools, "existing").is_some()
    });
    let waiting = Launch::new(&pools, "waiting", "-m xmemsrc pool=missing ! fakesink");
    until("a warning", || waiting.log().contains("missing.sock"));
    until("the pools there are", || waiting.log().contains("existing"));
}
