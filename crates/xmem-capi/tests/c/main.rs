// SPDX-License-Identifier: MPL-2.0

//! libxmem from C and C++: programs are compiled with strict warnings, and run in processes of their own.

mod abi;
mod device;
mod handles;
mod install;
mod lab;

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::thread::sleep;
use std::time::Duration;

use xmem_core::{
    Attachments, Consumer, Delivery, FrameFlags, FrameMeta, Producer, Sticky, VideoLayout, Wait,
    monotonic_ns,
};

use crate::abi::{functions, header};
use crate::lab::{HERE, Lab, PATIENCE, Running, compilers, not_run};

#[test]
fn every_misuse_is_an_error() {
    for compiler in compilers("hostile.c") {
        let lab = Lab::new();
        misuse(&lab, compiler, lab.sanitizers(compiler), ["2", "0"]);
        // The sanitizers' own locks are not released in a child.
        misuse(&lab, compiler, &[], ["100", "3"]);
    }
}

/// Runs the program that calls each function wrongly, with these numbers of forks and of threads that run during them.
fn misuse(lab: &Lab, compiler: &str, flags: &[&str], forks: [&str; 2]) {
    let program = lab.compile(compiler, "tests/c/hostile.c", flags);
    let mut command = lab.command(&program);
    let output = command
        .arg(lab.pool())
        .arg("by-number")
        .args(forks)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{compiler}: {text}{errors}");
    assert!(text.ends_with("all errors are errors\n"), "{text}{errors}");
}

#[test]
fn every_function_is_misused() {
    let (header, source) = (header(), include_str!("hostile.c"));
    let table = |name: &str| -> BTreeSet<&str> {
        let (_, rest) = source.split_once(&format!("#define {name}(ROW)")).unwrap();
        let (rows, _) = rest.split_once("\n\n").unwrap();
        let rows = rows.split("ROW(").skip(1);
        rows.map(|row| row.split_once(',').unwrap().0).collect()
    };
    let tables = ["TEXTS", "OPENS", "USES", "ENDS"];
    let rows: BTreeSet<&str> = tables.into_iter().flat_map(table).collect();
    let functions = functions(&header);
    let all: BTreeSet<&str> = functions.iter().map(|it| it.0).collect();
    assert_eq!(rows, all, "calls of all functions of xmem.h");
    // Both pointers of `xmem_slot_publish` may be NULL.
    let with_pointers = functions.iter().filter(|(name, declaration)| {
        let (_, arguments) = declaration.split_once('(').unwrap();
        arguments.contains('*') && *name != "xmem_slot_publish"
    });
    let with_pointers: BTreeSet<&str> = with_pointers.map(|it| it.0).collect();
    assert_eq!(table("NULLS"), with_pointers, "calls with NULL");
}

#[test]
fn a_frame_of_rust_is_the_same_in_c() {
    let lab = Lab::new();
    let probe = lab.compile("gcc", "tests/c/probe.c", &[]);
    let producer = Producer::builder(lab.pool()).build().unwrap();
    let mut sticky = Sticky::new();
    sticky.set("caps", "video/x-raw, format=NV12");
    producer.set_sticky(&sticky).unwrap();
    let mut command = lab.command(&probe);
    command.arg(lab.pool());
    let mut running = Running::new(command);
    producer
        .wait_for_consumers(1, Wait::from(PATIENCE))
        .unwrap();

    // Padded rows, and a second plane that does not follow at once.
    let mut layout = VideoLayout::new("NV12", 322, 242).unwrap();
    layout.strides[..2].copy_from_slice(&[384, 400]);
    layout.offsets[1] = 384 * 250;
    let size = 384 * 250 + 400 * 121;
    let mut slot = producer
        .acquire(xmem_core::SlotSpec::new(size).attachments(100))
        .unwrap();
    slot.as_mut_slice().fill(3);
    slot.as_mut_slice()[size - 1] = 9;
    let mut attachments = Attachments::new();
    attachments.set("note", "left of the door");
    let mut meta = FrameMeta::new(size)
        .pts(40)
        .duration(20)
        .timestamp(7_000)
        .flags(FrameFlags::DELTA_UNIT)
        .attachments(attachments);
    let described = meta.layout_mut();
    described.video = Some(layout);
    described.content_type = "image/raw".into();
    slot.publish(meta).unwrap();
    let line = running.line().unwrap();
    assert_eq!(
        line,
        format!(
            "frame 0 size {size} first 3 last 9 format NV12 322x242 planes 2 type image/raw pts 40 duration 20 timestamp 7000 \
             flags 2000 number 0 copied 0 note left of the door caps video/x-raw, format=NV12"
        )
    );
    assert_eq!(
        running.line().unwrap(),
        "plane 0 at 0 stride 384 rows 242 row_bytes 322"
    );
    assert_eq!(
        running.line().unwrap(),
        "plane 1 at 96000 stride 400 rows 121 row_bytes 322"
    );

    // Without a format.
    producer
        .acquire(5)
        .unwrap()
        .publish(FrameMeta::new(5))
        .unwrap();
    let line = running.line().unwrap();
    assert!(
        line.contains("size 5 ") && line.contains("format  0x0 planes 0 type  pts"),
        "{line}"
    );

    // Another process wrote this: planes outside of the frame are an error, and no bytes are read.
    let mut meta = FrameMeta::new(5);
    meta.layout_mut().video = Some(layout);
    producer.acquire(5).unwrap().publish(meta).unwrap();
    let (lines, succeeded) = running.end();
    assert!(
        !succeeded && lines[0].contains("-11 the planes of the frame are outside"),
        "{lines:?}"
    );
}

/// A moved object has neither its frame nor the addresses of it.
#[test]
fn frames_and_slots_of_cpp_move() {
    for compiler in compilers("moves.cpp") {
        let lab = Lab::new();
        let moves = lab.compile(compiler, "tests/c/moves.cpp", &[]);
        let output = lab.command(&moves).arg(lab.pool()).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{compiler}: {text}");
    }
}

/// A time of 0 is a time, and a frame has those that the caller knows.
#[test]
fn a_frame_of_c_has_its_times() {
    let lab = Lab::new();
    let times = lab.compile("gcc", "tests/c/times.c", &[]);
    let mut command = lab.command(&times);
    command.arg(lab.pool());
    let begin = monotonic_ns();
    let running = Running::new(command);
    let mut consumer = Consumer::builder(lab.pool())
        .connect_wait(PATIENCE)
        .unwrap();
    let received = [(); 6].map(|()| {
        let frame = consumer.receive(PATIENCE).unwrap();
        let meta = frame.meta();
        let is_now = meta.timestamp.unwrap() >= begin;
        (is_now, meta.pts, meta.dts, meta.duration)
    });
    let unknown = (true, None, None, None);
    assert_eq!(
        received,
        [
            unknown,
            unknown,
            (true, Some(0), Some(0), Some(0)),
            (false, Some(40), Some(30), Some(20)),
            (false, Some(40), None, None),
            (true, Some(40), None, Some(20)),
        ]
    );
    assert!(running.end().1);
}

#[test]
fn frames_past_the_budget_are_copies() {
    let lab = Lab::new();
    let probe = lab.compile("gcc", "tests/c/probe.c", &[]);
    let producer = Producer::builder(lab.pool()).build().unwrap();
    let mut command = lab.command(&probe);
    command.arg(lab.pool()).arg("3");
    let mut running = Running::new(command);
    producer
        .wait_for_consumers(1, Wait::from(PATIENCE))
        .unwrap();
    for number in 0..8u8 {
        let mut slot = producer.acquire(100).unwrap();
        slot.as_mut_slice().fill(number);
        slot.publish(FrameMeta::new(100)).unwrap();
        let line = running.line().unwrap();
        let copied = u8::from(number >= 3);
        assert!(
            line.contains(&format!("first {number} last {number} ")),
            "{line}"
        );
        assert!(
            line.contains(&format!("number {number} copied {copied} ")),
            "{line}"
        );
    }
    producer.set_eos(true);
    let (lines, succeeded) = running.end();
    assert_eq!(
        lines,
        ["ended 2 received 8 missed 0 skipped 0 copied 5 reconnects 0 held 3 budget 3"]
    );
    assert!(succeeded);
    // It released them all.
    assert_eq!(producer.stats().copied, 0);
}

#[test]
fn a_consumer_receives_no_more_than_its_rate() {
    let lab = Lab::new();
    let probe = lab.compile("gcc", "tests/c/probe.c", &[]);
    let producer = Producer::builder(lab.pool()).history(8).build().unwrap();
    let mut command = lab.command(&probe);
    // One frame in a quarter of an hour.
    command.arg(lab.pool()).args(["0", "0.001"]);
    let running = Running::new(command);
    producer
        .wait_for_consumers(1, Wait::from(PATIENCE))
        .unwrap();
    for _ in 0..8 {
        let slot = producer.acquire(100).unwrap();
        slot.publish(FrameMeta::new(100)).unwrap();
    }
    producer.set_eos(true);
    let (lines, succeeded) = running.end();
    assert!(succeeded && lines[0].starts_with("frame 0 "), "{lines:?}");
    assert!(
        lines[1].starts_with("ended 2 received 1 missed 0 skipped 7 "),
        "{lines:?}"
    );
}

#[test]
fn a_timeout_covers_both_waits_for_a_slot() {
    const LIMIT: Duration = Duration::from_millis(400);
    let is_over_in_time = || {
        let lab = Lab::new();
        let acquire = lab.compile("gcc", "tests/c/acquire.c", &[]);
        let mut command = lab.command(&acquire);
        command.arg(lab.pool()).arg(LIMIT.as_nanos().to_string());
        let mut running = Running::new(command);
        let mut consumer = Consumer::builder(lab.pool())
            .connect_wait(PATIENCE)
            .unwrap();
        assert_eq!(running.line().unwrap(), "acquires");
        sleep(LIMIT / 2);
        // Now there is room for a frame, but no free slot.
        let frame = consumer.receive(PATIENCE).unwrap();
        sleep(LIMIT * 3 / 4);
        drop(frame);
        let (lines, _) = running.end();
        match lines[0].as_str() {
            "timeout" => true,
            "slot" => false,
            other => panic!("{other}"),
        }
    };
    // A slot is free in time if the program was held up before its call.
    assert!((0..10).any(|_| is_over_in_time()));
}

#[test]
fn the_examples_run() {
    for compiler in compilers("publish.c") {
        let lab = Lab::new();
        let publish = lab.compile(compiler, "examples/publish.c", &[]);
        let save = lab.compile(compiler, "examples/save-frame.c", &[]);
        let mut command = lab.command(&publish);
        command.arg("from-c");
        let running = Running::new(command);
        let picture = lab.file("frame.pgm");
        let saved = lab
            .command(&save)
            .arg("from-c")
            .arg(&picture)
            .output()
            .unwrap();
        assert!(saved.status.success(), "{saved:?}");
        let bytes = fs::read(&picture).unwrap();
        let pixels = bytes.strip_prefix(b"P5\n640 480\n255\n").unwrap();
        assert!(pixels.len() == 640 * 480 && pixels.iter().all(|pixel| *pixel == pixels[0]));

        // Rust reads what C publishes, with caps for GStreamer.
        let mut consumer = Consumer::builder(lab.file("from-c.sock"))
            .connect_wait(PATIENCE)
            .unwrap();
        let frame = consumer.receive(PATIENCE).unwrap();
        let caps = frame.sticky().text("caps").unwrap();
        assert!(
            caps.starts_with("video/x-raw, format=(string)GRAY8, width=(int)640"),
            "{caps}"
        );
        assert!(caps.ends_with("framerate=(fraction)30/1"), "{caps}");
        assert_eq!(frame.meta().layout.video.unwrap().width, 640);
        assert!(frame.meta().timestamp.is_some_and(|time| time > 0));
        running.kill();
    }
}

#[test]
fn consumers_follow_a_producer_that_is_killed() {
    for compiler in compilers("follow.cpp") {
        let lab = Lab::new();
        let publish = lab.compile("gcc", "examples/publish.c", &[]);
        let follow = lab.compile(compiler, "examples/follow.cpp", lab.sanitizers(compiler));
        let publisher = || {
            let mut command = lab.command(&publish);
            command.arg(lab.pool());
            Running::new(command)
        };
        let first = publisher();
        let mut command = lab.command(&follow);
        command.arg(lab.pool()).arg("2");
        let mut consumers = Running::new(command);
        let mut lines: Vec<_> = consumers
            .line()
            .into_iter()
            .chain(consumers.line())
            .collect();
        first.kill();
        let second = publisher();
        let (rest, succeeded) = consumers.end();
        second.kill();
        lines.extend(rest);
        lines.sort();
        // Each frame of this producer has one brightness.
        let one = |line: &str| {
            let (start, range) = line.split_once(", brightness ").unwrap();
            let (darkest, brightest) = range.split_once(" to ").unwrap();
            assert_eq!(darkest, brightest, "{line}");
            start.to_owned()
        };
        let lines: Vec<_> = lines.iter().map(|line| one(line)).collect();
        let expected = [1, 2].map(|consumer| {
            [1, 2]
                .map(|producer| format!("consumer {consumer}: producer {producer}, GRAY8 640x480"))
        });
        assert!(succeeded && lines == expected.concat(), "{lines:?}");
    }
}

#[test]
fn opencv_reads_a_plane() {
    const HEADERS: &str = "/usr/include/opencv4";
    if !Path::new(HEADERS).join("opencv2/imgproc.hpp").exists() {
        not_run("OpenCV's headers are missing: install libopencv-imgproc-dev");
        return;
    }
    let lab = Lab::new();
    let publish = lab.compile("gcc", "examples/publish.c", &[]);
    // OpenCV's own headers have warnings.
    let libraries = [
        "-isystem",
        HEADERS,
        "-Wl,--no-as-needed",
        "-lopencv_core",
        "-lopencv_imgproc",
    ];
    let edges = lab.compile("g++", "examples/edges.cpp", &libraries);
    let mut command = lab.command(&publish);
    command.arg(lab.pool());
    let running = Running::new(command);
    let output = lab
        .command(&edges)
        .arg(lab.pool())
        .arg("3")
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(
        output.status.success() && text.lines().count() == 3,
        "{text}"
    );
    // Each picture of this producer has one colour.
    assert!(
        text.lines()
            .all(|line| line.ends_with(": 0 pixels of edges")),
        "{text}"
    );
    running.kill();
}

#[test]
fn libavcodec_encodes_frames_in_place() {
    let flags = Command::new("pkg-config")
        .args(["--libs", "libavformat", "libavcodec", "libavutil"])
        .output();
    let Some(flags) = flags.ok().filter(|output| output.status.success()) else {
        not_run("FFmpeg's headers are missing: install libavformat-dev");
        return;
    };
    let flags = String::from_utf8(flags.stdout).unwrap();
    let flags: Vec<&str> = ["-Wl,--no-as-needed"]
        .into_iter()
        .chain(flags.split_whitespace())
        .collect();
    let lab = Lab::new();
    let encode = lab.compile("gcc", "examples/encode.c", &flags);
    let producer = Producer::builder(lab.pool()).delivery(Delivery::Lossless);
    let producer = producer.build().unwrap();
    let clip = lab.file("clip.mkv");
    let mut command = lab.command(&encode);
    command.arg(lab.pool()).arg(&clip).arg("6");
    let running = Running::new(command);
    producer
        .wait_for_consumers(1, Wait::from(PATIENCE))
        .unwrap();
    // Odd, so that rows have padding.
    let layout = VideoLayout::new("I420", 101, 51).unwrap();
    let size = layout.size().unwrap();
    let mut expected = Vec::new();
    for number in 0..6u8 {
        producer.wait_for_room(Wait::from(PATIENCE)).unwrap();
        let mut slot = producer.acquire(size).unwrap();
        let bytes = slot.as_mut_slice();
        bytes.fill(200);
        for (plane, extent) in layout.planes().unwrap().enumerate() {
            let (at, stride) = (
                layout.offsets[plane] as usize,
                layout.strides[plane] as usize,
            );
            for (row, line) in bytes[at..]
                .chunks_mut(stride)
                .take(extent.rows as usize)
                .enumerate()
            {
                let line = &mut line[..extent.row_bytes() as usize];
                line.fill(number * 20 + plane as u8 + row as u8 % 8);
                expected.extend_from_slice(line);
            }
        }
        let mut meta =
            FrameMeta::new(size).timestamp(5_000_000_000 + i64::from(number) * 40_000_000);
        meta.layout_mut().video = Some(layout);
        slot.publish(meta).unwrap();
    }
    let (lines, succeeded) = running.end();
    assert!(succeeded && lines == ["6 frames, 0 copied"], "{lines:?}");
    let decoded = Command::new("ffmpeg")
        .args(["-v", "error", "-i"])
        .arg(&clip)
        .args(["-f", "rawvideo", "-pix_fmt", "yuv420p", "-"])
        .output()
        .unwrap();
    assert!(
        decoded.status.success() && decoded.stdout == expected,
        "{} bytes",
        decoded.stdout.len()
    );
    let times = Command::new("ffprobe")
        .args([
            "-v",
            "error",
            "-show_entries",
            "packet=pts_time",
            "-of",
            "csv=p=0",
        ])
        .arg(&clip)
        .output()
        .unwrap();
    let times = String::from_utf8(times.stdout).unwrap();
    let times: Vec<f64> = times
        .lines()
        .map(|line| line.trim_matches(',').parse().unwrap())
        .collect();
    assert_eq!(times, [0.0, 0.04, 0.08, 0.12, 0.16, 0.2]);
}

/// The programs on the page about C.
#[test]
fn the_page_compiles() {
    let page = fs::read_to_string(Path::new(HERE).join("../../docs/c.md")).unwrap();
    let lab = Lab::new();
    for (language, compiler) in [("c", "gcc"), ("cpp", "g++")] {
        let (_, rest) = page.split_once(&format!("\n```{language}\n")).unwrap();
        let (program, _) = rest.split_once("\n```\n").unwrap();
        let source = lab.file(&format!("page.{language}"));
        fs::write(&source, program).unwrap();
        lab.compile(compiler, source.to_str().unwrap(), &[]);
    }
}
