// SPDX-License-Identifier: MPL-2.0

//! `xmem snapshot` and `xmem tap`, which run GStreamer's tools with the plugin.

use std::{fs, path::Path, process::Stdio};

use crate::support::{process::*, *};
use rustix::process::{Pid, Signal};
use xmem_core::{FrameMeta, Producer, Sticky};

/// The left half is blue, the right half red.
const HALVES: &str = "videotestsrc is-live=true pattern=solid-color foreground-color=0xff0000ff \
     ! video/x-raw,format=RGB,width=6,height=4,framerate=30/1 ! queue ! mixed. \
     videotestsrc is-live=true pattern=solid-color foreground-color=0xffff0000 \
     ! video/x-raw,format=RGB,width=7,height=4,framerate=30/1 ! queue ! mixed. \
     compositor name=mixed sink_1::xpos=6 ! video/x-raw,format=NV12,width=13,height=4";

fn published(pools: &Pools, pipeline: &str) -> Launch {
    let launch = Launch::new(pools, "producer", &format!("{pipeline} ! xmemsink pool=p"));
    let has_frames = || pool_stats(pools, "p").is_some_and(|stats| stats.published > 0);
    until("a frame is published", has_frames);
    launch
}

fn snapshot(pools: &Pools, name: &str) -> Vec<u8> {
    let file = pools.file(name);
    let output = xmem(pools, &["snapshot", "p", file.to_str().unwrap()])
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    fs::read(file).unwrap()
}

/// The pixels of an image as RGB.
fn decoded(pools: &Pools, name: &str, decoder: &str) -> Vec<u8> {
    let raw = pools.file("decoded.raw");
    pools.run(&format!(
        "filesrc location={} ! {decoder} ! videoconvert ! video/x-raw,format=RGB ! filesink location={}",
        pools.file(name).display(),
        raw.display()
    ));
    fs::read(raw).unwrap()
}

fn is_blue(pixel: &[u8]) -> bool {
    pixel[2] > 200 && pixel[0] < 60
}

fn is_red(pixel: &[u8]) -> bool {
    pixel[0] > 200 && pixel[2] < 60
}

#[test]
fn a_snapshot_that_cannot_be_written_is_named() {
    let pools = prepared();
    let _producer = published(&pools, HALVES);
    let folder = pools.file("a.png");
    fs::create_dir(&folder).unwrap();
    let output = xmem(&pools, &["snapshot", "p", folder.to_str().unwrap()])
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert_contains(&text, "cannot write");
    assert_contains(&text, "a.png");
}

#[test]
fn a_snapshot_is_the_picture() {
    let pools = prepared();
    let _producer = published(&pools, HALVES);
    // Rows are padded to four bytes.
    let (stride, row) = (40, 39);
    for (name, decoder) in [("a.png", "pngdec"), ("a.jpg", "jpegdec")] {
        snapshot(&pools, name);
        let pixels = decoded(&pools, name, decoder);
        assert_eq!(pixels.len(), stride * 4, "{name}");
        assert!(
            is_blue(&pixels[..3]) && is_red(&pixels[row - 3..row]),
            "{name}"
        );
    }

    let array = snapshot(&pools, "a.npy");
    let (head, pixels) = array.split_at(array.len() - row * 4);
    assert!(head.starts_with(b"\x93NUMPY\x01\x00") && head.len() % 64 == 0);
    let shape = b"'shape': (4, 13, 3), }";
    assert!(
        head.windows(shape.len()).any(|it| it == shape),
        "{}",
        head.escape_ascii()
    );
    assert!(is_blue(&pixels[..3]) && is_red(&pixels[row * 4 - 3..]));

    // NV12 with rows of 16 bytes.
    assert_eq!(snapshot(&pools, "a.raw").len(), 16 * 6);
}

#[test]
fn a_paused_pool_has_a_newest_picture() {
    let pools = prepared();
    let producer = pools.launch(&format!(
        "{HALVES} ! xmemsink pool={}",
        pool_path(&pools, "p")
    ));
    producer.play();
    let published = || pool_stats(&pools, "p").map_or(0, |stats| stats.published);
    until("a frame", || published() > 0);
    producer.settle(gst::State::Paused);
    for name in ["a.png", "a.jpg", "a.npy", "a.raw"] {
        let file = pools.file(name);
        let args = ["snapshot", "p", file.to_str().unwrap(), "--newest"];
        let output = xmem(&pools, &args).output().unwrap();
        assert!(output.status.success(), "{name}: {output:?}");
    }
}

#[test]
fn an_interrupted_snapshot_leaves_nothing() {
    let pools = prepared();
    let producer = silent_producer(&pools, "p");
    let folder = pools.file("pictures");
    fs::create_dir(&folder).unwrap();
    let file = folder.join("a.png");
    let args = ["snapshot", "p", file.to_str().unwrap(), "--timeout", "600"];
    let mut snapshot = Launch::start(&pools, "snapshot", &mut xmem(&pools, &args));
    let consumers = || producer.stats().consumers;
    until("the consumer", || !consumers().is_empty());
    snapshot.signal(Signal::TERM);
    snapshot.wait();
    assert_eq!(fs::read_dir(&folder).unwrap().count(), 0);
    until("no consumer", || consumers().is_empty());
}

#[test]
fn an_encoded_pool_has_pictures_too() {
    let pools = prepared();
    let _producer = published(
        &pools,
        "videotestsrc is-live=true ! video/x-raw,format=I420,width=64,height=48,framerate=30/1 \
         ! x264enc key-int-max=5 tune=zerolatency ! h264parse",
    );
    snapshot(&pools, "a.png");
    assert_eq!(decoded(&pools, "a.png", "pngdec").len(), 64 * 48 * 3);
}

#[test]
fn a_tap_writes_y4m_until_its_reader_ends() {
    let pools = prepared();
    let _producer = published(&pools, HALVES);
    let mut tap = xmem(&pools, &["tap", "p"]);
    let mut tap = tap.stdout(Stdio::piped()).spawn().unwrap();
    let mut head = [0; 200];
    let mut pipe = tap.stdout.take().unwrap();
    std::io::Read::read_exact(&mut pipe, &mut head).unwrap();
    let head = String::from_utf8_lossy(&head);
    // C420jpeg, since GStreamer 1.28.
    assert!(head.starts_with("YUV4MPEG2 C420"), "{head}");
    assert_contains(&head, " W13 H4 ");
    assert_contains(&head, "FRAME");
    drop(pipe);
    tap.wait().unwrap();
}

/// The command itself writes frames with padding, and GStreamer writes others.
#[test]
fn a_tap_to_a_full_disk_says_so() {
    let whole = "videotestsrc is-live=true ! video/x-raw,format=NV12,width=16,height=4";
    for frames in [HALVES, whole] {
        let pools = prepared();
        let _producer = published(&pools, frames);
        let full = std::fs::File::create("/dev/full").unwrap();
        let mut tap = xmem(&pools, &["tap", "p"]);
        let output = tap.stdout(full).output().unwrap();
        let log = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success(), "{log}");
        assert_contains(&log, "standard output: ");
        // "on the resource", from GStreamer.
        assert_contains(&log, "No space left on ");
    }
}

/// Decoders leave bytes between rows and planes, also in frames whose size needs none.
#[test]
fn a_tap_has_each_frame_of_a_lossless_pool_without_padding() {
    for (width, format) in [(320, "I420"), (322, "Y444")] {
        let pools = prepared();
        let producer = format!(
            "videotestsrc num-buffers=60 ! video/x-raw,format={format},width={width},height=240,framerate=30/1 \
             ! x264enc tune=zerolatency ! h264parse ! avdec_h264 ! xmemsink pool=p history=16 {LOSSLESS}"
        );
        let _producer = Launch::new(&pools, "producer", &producer);
        until("a producer", || pool_stats(&pools, "p").is_some());
        let output = xmem(&pools, &["tap", "p"]).output().unwrap();
        let log = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{log}");
        let header = output.stdout.split_inclusive(|byte| *byte == b'\n').next();
        let frames = &output.stdout[header.unwrap().len()..];
        let planes = if format == "I420" {
            width * 240 * 3 / 2
        } else {
            width * 240 * 3
        };
        let frame_len = "FRAME\n".len() + planes;
        assert!(
            frames
                .chunks(frame_len)
                .all(|it| it.starts_with(b"FRAME\n")),
            "{log}"
        );
        assert_eq!(frames.len(), 60 * frame_len, "{log}");
    }
}

/// Y4M has no padding, and neither Y4M nor JPEG states the range and the matrix of its values.
#[test]
fn all_pictures_of_a_pool_are_alike() {
    let pools = prepared();
    let rgb = |input: &str| {
        let out = pools.file("rgb");
        let mut sh = command(&pools, "sh");
        let ffmpeg = "ffmpeg -v fatal -i - -frames:v 1 -pix_fmt rgb24 -f rawvideo";
        let script = format!("{input} | {ffmpeg} -y {}", out.display());
        assert!(sh.args(["-c", &script]).status().unwrap().success());
        fs::read(out).unwrap()
    };
    for (caps, in_y4m) in [
        ("format=NV12,width=854,height=480", true),
        ("format=I420,width=321,height=243", true),
        ("format=Y42B,width=326,height=241", true),
        ("format=RGB,width=323,height=240", true),
        ("format=GRAY8,width=320,height=240", true),
        ("format=I420,width=320,height=240,colorimetry=1:4:0:0", true),
        ("format=I420,width=322,height=240 ! jpegenc", true),
        // A reader of Y4M has to be told the matrix.
        ("format=NV12,width=320,height=240,colorimetry=bt709", false),
    ] {
        let _producer = published(
            &pools,
            &format!("videotestsrc is-live=true pattern=smpte75 ! video/x-raw,{caps}"),
        );
        let array = snapshot(&pools, "a.npy");
        snapshot(&pools, "a.jpg");
        let xmem = target_dir().join("xmem");
        let taken = [
            (true, format!("cat {}", pools.file("a.jpg").display())),
            (in_y4m, format!("{} tap p", xmem.display())),
        ];
        for (_, input) in taken.iter().filter(|(is_asked, _)| *is_asked) {
            let pixels = rgb(input);
            let expected = &array[array.len() - pixels.len()..];
            let differences = pixels
                .iter()
                .zip(expected)
                .map(|(a, b)| u64::from(a.abs_diff(*b)));
            let mean = differences.sum::<u64>() as f64 / pixels.len() as f64;
            assert!(mean < 4.0, "{caps}: {input}: {mean}");
        }
    }
}

/// A tap whose reader does not read can be ended.
#[test]
fn a_tap_that_is_not_read_ends() {
    let pools = prepared();
    let _producer = published(
        &pools,
        "videotestsrc is-live=true ! video/x-raw,format=I420,width=640,height=480,framerate=30/1",
    );
    let mut tap = xmem(&pools, &["tap", "p"]);
    let mut tap = tap.stdout(Stdio::piped()).spawn().unwrap();
    until("a full pipe", || {
        let stats = pool_stats(&pools, "p").unwrap();
        let received = stats.consumers.first().map(|it| it.received);
        received.is_some_and(|it| it > 0 && it + 60 < stats.published)
    });
    let pid = Pid::from_child(&tap);
    rustix::process::kill_process(pid, Signal::TERM).unwrap();
    until("its end", || tap.try_wait().unwrap().is_some());
}

/// The producer reports encoded video, and then publishes a playlist.
#[test]
fn frames_name_no_address_to_open() {
    let pools = prepared();
    let (listener, playlist) = playlist();
    let set = |producer: &Producer, caps: &str| {
        let mut sticky = Sticky::new();
        sticky.set("caps", caps);
        producer.set_sticky(&sticky).unwrap();
    };
    let file = pools.file("a.png");
    for args in [
        &["snapshot", "p", file.to_str().unwrap(), "--timeout", "20"][..],
        &["tap", "p"],
    ] {
        let producer = Producer::builder(pool_path(&pools, "p")).build().unwrap();
        set(
            &producer,
            "video/x-h264, stream-format=(string)byte-stream, alignment=(string)au",
        );
        producer
            .acquire(1)
            .unwrap()
            .publish(FrameMeta::new(1))
            .unwrap();
        let mut xmem = xmem(&pools, args)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        until("the consumer", || !producer.stats().consumers.is_empty());
        set(&producer, "application/x-hls");
        until("its end", || {
            let mut slot = producer.acquire(playlist.len()).unwrap();
            slot.as_mut_slice().copy_from_slice(playlist.as_bytes());
            slot.publish(FrameMeta::new(playlist.len())).unwrap();
            xmem.try_wait().unwrap().is_some()
        });
        assert!(!xmem.wait().unwrap().success());
        assert!(listener.accept().is_err(), "{args:?} opened an address");
    }
}

/// What a container has in it decides what is opened.
#[test]
fn containers_are_not_decoded() {
    let pools = prepared();
    let _producer = published(
        &pools,
        "videotestsrc is-live=true ! video/x-raw,format=I420,width=64,height=48,framerate=30/1 ! vp8enc ! webmmux streamable=true",
    );
    let file = pools.file("a.png");
    for command in [
        &["snapshot", "p", file.to_str().unwrap()][..],
        &["tap", "p"],
    ] {
        let output = xmem(&pools, command).output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr);
        assert_contains(&text, "video/webm, which is not decoded here");
    }
}

#[test]
fn pools_without_video_are_refused() {
    let pools = prepared();
    let _producer = published(
        &pools,
        "audiotestsrc is-live=true ! audio/x-raw,format=S16LE,channels=2,rate=48000",
    );
    let file = pools.file("a.png");
    let refused = |args: &[&str], part: &str| {
        let output = xmem(&pools, args).output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{text}");
        assert_contains(&text, part);
    };
    let file = file.to_str().unwrap();
    refused(
        &["snapshot", "p", file],
        "has no video, but S16LE 48000 Hz 2 channels",
    );
    refused(&["tap", "p"], "has no video");
    refused(&["snapshot", "none", file], "pools in");
    refused(&["snapshot", "p", "a.gif"], ".png, .jpg, .npy or .raw");
    assert!(!Path::new(file).exists());
}
