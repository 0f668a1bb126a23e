// SPDX-License-Identifier: MPL-2.0

//! `xmem record`, `replay` and `tap`.

use std::{fs, path::Path, thread, time::Duration};

use rustix::process::{Pid, Signal, kill_process};

use super::*;

/// A live stream of 64x48 in the pool p.
fn live(pools: &Pools, elements: &str) -> Launch {
    let source = "videotestsrc is-live=true ! video/x-raw,width=64,height=48,framerate=30/1";
    Launch::new(
        pools,
        "live",
        &format!("{source}{elements} ! xmemsink pool=p"),
    )
}

/// Records at least ten frames of the pool p.
fn record(pools: &Pools, file: &str, options: &[&str]) {
    let mut record = recording(pools, file, options);
    record.signal(Signal::INT);
    record.succeeds();
}

/// A recording of the pool p, which has at least ten frames.
fn recording(pools: &Pools, file: &str, options: &[&str]) -> Launch {
    let mut args = vec!["record", "p", file];
    args.extend(options);
    until("frames", || published(pools) > 0);
    let record = Launch::start(pools, "record", &mut xmem(pools, &args));
    let received = || {
        pool_stats(pools, "p")?
            .consumers
            .first()
            .map(|it| it.received)
    };
    until("ten frames", || {
        received().is_some_and(|frames| frames > 10)
    });
    record
}

/// Whether the header of a recording has its size, which is written at the end of the recording.
fn is_complete(file: &str) -> bool {
    const SEGMENT: &[u8] = b"\x18\x53\x80\x67";
    let bytes = fs::read(file).unwrap();
    let at = bytes.windows(4).position(|it| it == SEGMENT).unwrap() + 4;
    let (size, rest) = bytes[at..].split_first_chunk().unwrap();
    // A length of eight bytes has the mark 1 in its first byte.
    u64::from_be_bytes(*size) == (1 << 56) + rest.len() as u64
}

/// Whether this process, and so those that it starts, ignore SIGHUP.
fn ignores_hangups() -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let mask = status
        .lines()
        .find_map(|line| line.strip_prefix("SigIgn:"))
        .unwrap();
    u64::from_str_radix(mask.trim(), 16).unwrap() & 1 != 0
}

#[test]
fn a_recording_is_completed_however_it_ends() {
    let pools = prepared();
    let _producer = live(&pools, "");
    let signal = |pid: i32, signal| kill_process(Pid::from_raw(pid).unwrap(), signal);
    let parent = |pid: i32| -> i32 {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        let (_, rest) = stat.rsplit_once(") ").unwrap();
        rest.split(' ').nth(1).unwrap().parse().unwrap()
    };
    type End<'a> = &'a dyn Fn(i32, i32, i32);
    // The command, its helper, and GStreamer's tool.
    let ends: [(&str, End); 4] = [
        ("killed", &|xmem, _, _| signal(xmem, Signal::KILL).unwrap()),
        ("hung up", &|xmem, _, _| signal(xmem, Signal::HUP).unwrap()),
        ("interrupted twice", &|xmem, helper, _| {
            // The second one is passed on by the command.
            signal(helper, Signal::INT).unwrap();
            thread::sleep(Duration::from_millis(20));
            let _ = signal(xmem, Signal::INT);
        }),
        // As a service manager does.
        (
            "terminated, with all its processes",
            &|xmem, helper, tool| {
                for pid in [tool, helper, xmem] {
                    signal(pid, Signal::TERM).unwrap();
                }
            },
        ),
    ];
    for (number, (what, end)) in ends.iter().enumerate() {
        if *what == "hung up" && ignores_hangups() {
            not_run("the signal HUP is ignored, as after nohup");
            continue;
        }
        let file = pools.file(&format!("{number}.mkv"));
        let file = file.to_str().unwrap();
        let mut recording = recording(&pools, file, &[]);
        let tool = consumer(&pools).unwrap().pid.cast_signed();
        let helper = parent(tool);
        let xmem = recording.pid().cast_signed();
        end(xmem, helper, tool);
        recording.wait();
        until("no consumer", || consumer(&pools).is_none());
        until("no tool", || !Path::new(&format!("/proc/{tool}")).exists());
        assert!(is_complete(file), "{what}");
    }
}

#[test]
fn a_recording_is_replayed_at_its_pace() {
    let pools = prepared();
    let file = pools.file("a.mkv").to_str().unwrap().to_owned();
    let producer = live(&pools, ",format=NV12");
    record(&pools, &file, &[]);
    let recorded = fs::read(&file).unwrap();
    fails(&pools, &["record", "p", &file], "exists: remove it");
    assert_eq!(fs::read(&file).unwrap(), recorded);
    fails(&pools, &["record", "p", "a.mp4"], "ends in .mkv");
    drop(producer);

    let args = [
        "replay",
        &file,
        "--pool",
        "q",
        "--set",
        "wait-for-connection=true",
        "--set",
        "delivery=lossless",
    ];
    let mut replay = Launch::start(&pools, "replay", &mut xmem(&pools, &args));
    let receiver = pools.receiver(&format!(
        "pool={} timestamp-mode=passthrough",
        pool_path(&pools, "q")
    ));
    let mut times = Vec::new();
    while let Some(sample) = receiver.next() {
        times.push(sample.buffer().unwrap().pts().unwrap().mseconds());
        let caps = sample.caps().unwrap().to_string();
        assert_contains(&caps, "NV12");
        assert_contains(&caps, "(int)64");
    }
    assert!(times.len() >= 10, "{times:?}");
    // A frame from before the start of the recording has the time 0. Matroska has milliseconds, and on a busy machine frames may be
    // missing.
    for pair in times.windows(2).filter(|pair| pair[0] > 0) {
        let frames = (pair[1] - pair[0]) as f64 / (1000.0 / 30.0);
        assert!(
            frames > 0.9 && (frames - frames.round()).abs() < 0.1,
            "{times:?}"
        );
    }
    replay.succeeds();
}

/// The only consumer of the pool p.
fn consumer(pools: &Pools) -> Option<xmem_core::ConsumerStats> {
    pool_stats(pools, "p")?.consumers.into_iter().next()
}

/// Stops the only consumer of the pool p until it must have missed frames.
fn stop_and_continue(pools: &Pools) {
    let pid = consumer(pools).unwrap().pid.cast_signed();
    let signal = |signal| kill_process(Pid::from_raw(pid).unwrap(), signal).unwrap();
    signal(Signal::STOP);
    let before = published(pools);
    until("frames", || published(pools) > before + 60);
    signal(Signal::CONT);
    until("missed frames", || {
        consumer(pools).is_some_and(|it| it.missed > 0)
    });
}

#[test]
fn missed_frames_are_reported() {
    let pools = prepared();
    let _producer = live(
        &pools,
        " ! x264enc tune=zerolatency ! video/x-h264,stream-format=byte-stream",
    );
    let file = pools.file("a.mkv").to_str().unwrap().to_owned();
    for args in [&["record", "p", &file][..], &["tap", "p", "--raw"]] {
        until("frames", || published(&pools) > 0);
        let mut reader = Launch::start(&pools, args[0], &mut xmem(&pools, args));
        until("a frame", || {
            consumer(&pools).is_some_and(|it| it.received > 0)
        });
        stop_and_continue(&pools);
        let warns = || reader.log().contains("xmem: Frames are missed");
        until("a warning", warns);
        reader.signal(Signal::INT);
        reader.succeeds();
        let at_end = "frames were missed: the recording has gaps";
        assert_eq!(
            reader.log().contains(at_end),
            args[0] == "record",
            "{}",
            reader.log()
        );
        until("no consumer", || consumer(&pools).is_none());
    }
}

#[test]
fn the_end_of_a_tap_is_reported_unless_its_reader_ended_it() {
    let pools = prepared();
    let _live = live(&pools, "");
    until("frames", || published(&pools) > 0);
    for (signal, name) in [
        (Some(Signal::KILL), "SIGKILL"),
        (Some(Signal::SEGV), "SIGSEGV"),
        (None, "SIG"),
    ] {
        let (reader, writer) = std::io::pipe().unwrap();
        let mut sh = command(&pools, "sh");
        sh.args(["-c", r#"exec "$0" tap p --raw >&0 </dev/null"#]);
        sh.arg(target_dir().join("xmem")).stdin(writer);
        let mut tap = Launch::start(&pools, "tap", &mut sh);
        drop(sh);
        until("the consumer", || consumer(&pools).is_some());
        if let Some(signal) = signal {
            let tool = consumer(&pools).unwrap().pid.cast_signed();
            kill_process(Pid::from_raw(tool).unwrap(), signal).unwrap();
        } else {
            drop(reader);
        }
        let code = tap.wait().code();
        let ended_by = signal.unwrap_or(Signal::PIPE);
        assert_eq!(code, Some(128 + ended_by.as_raw()));
        let log = tap.log();
        assert_eq!(log.contains(name), signal.is_some(), "{log}");
        assert_eq!(log.contains("without a message"), signal.is_some(), "{log}");
        until("no consumer", || consumer(&pools).is_none());
    }
}

/// x265enc without a parser sends its parameter sets once, before the recorder joins.
#[test]
fn a_recording_without_frames_is_reported_while_it_runs() {
    let pools = prepared();
    let _producer = live(
        &pools,
        " ! x265enc tune=zerolatency speed-preset=ultrafast key-int-max=10",
    );
    until("frames", || published(&pools) > 20);
    let file = pools.file("a.mkv").to_str().unwrap().to_owned();
    for options in [&[][..], &["--before", "5"]] {
        let args = [&["record", "p", &file], options].concat();
        let mut record = Launch::start(&pools, "record", &mut xmem(&pools, &args));
        until("a warning", || {
            record.log().contains("put `h265parse config-interval=-1`")
        });
        record.signal(Signal::INT);
        assert!(!record.wait().success(), "{}", record.log());
    }
}

/// The size of pictures without padding in all formats: the content of padding is not defined.
const WITHOUT_PADDING: &str = "width=96,height=64";

/// A live still picture with fine detail. Plain areas, such as colour bars, stay the same under dither.
fn detailed(format: &str) -> String {
    format!(
        "videotestsrc is-live=true pattern=zone-plate kx2=20 ky2=20 ! videoconvert ! \
         video/x-raw,format={format},{WITHOUT_PADDING},framerate=30/1"
    )
}

/// The bytes of the first frame that a pipeline puts out.
fn first_frame(pools: &Pools, source: &str, format: &str) -> Vec<u8> {
    let file = pools.file("frame.raw").to_str().unwrap().to_owned();
    let filter = format!("video/x-raw,format={format},{WITHOUT_PADDING}");
    let pipeline = format!(
        "{source} ! videoconvert dither=none ! {filter} ! identity eos-after=2 ! filesink location={file}"
    );
    Launch::new(pools, "first", &pipeline).succeeds();
    let mut frames = fs::read(file).unwrap();
    // With GStreamer 1.26 a second frame may pass.
    let format = gst_video::VideoFormat::from_string(format);
    let info = gst_video::VideoInfo::builder(format, 96, 64).build();
    let size = info.unwrap().size();
    assert!(frames.len() >= size, "{source}");
    frames.truncate(size);
    frames
}

/// Records a live picture, and returns the name of the file.
fn recorded(pools: &Pools, picture: &str) -> String {
    let file = pools.file("a.mkv").to_str().unwrap().to_owned();
    let _producer = Launch::new(pools, "live", &format!("{picture} ! xmemsink pool=p"));
    record(pools, &file, &[]);
    file
}

#[test]
fn raw_frames_are_recorded_without_loss() {
    // One for each target format with eight bits, and some with more.
    for format in [
        "NV12",
        "YUY2",
        "NV24",
        "AYUV",
        "RGB",
        "RGBA",
        "RGB16",
        "GRAY8",
        "v210",
        "P010_10LE",
        "r210",
    ] {
        let pools = prepared();
        let picture = detailed(format);
        let file = recorded(&pools, &picture);
        let sent = first_frame(&pools, &picture, format);
        let played = format!("filesrc location={file} ! matroskademux ! avdec_ffv1");
        assert!(first_frame(&pools, &played, format) == sent, "{format}");
    }
}

#[test]
fn a_replay_in_the_recorded_format_has_no_loss() {
    const FORMAT: &str = "P010_10LE";
    let pools = prepared();
    let picture = detailed(FORMAT);
    let file = recorded(&pools, &picture);
    let args = ["replay", &file, "--pool", "q", "--loop", "--format", FORMAT];
    let replay = Launch::start(&pools, "replay", &mut xmem(&pools, &args));
    let played = first_frame(&pools, "xmemsrc pool=q", FORMAT);
    assert!(played == first_frame(&pools, &picture, FORMAT));
    ends_by(replay, Signal::INT);
}

#[test]
fn a_format_that_would_lose_bits_is_not_recorded() {
    let pools = prepared();
    let _producer = live(&pools, ",format=ARGB64");
    until("frames", || published(&pools) > 0);
    let file = pools.file("a.mkv").to_str().unwrap().to_owned();
    fails(
        &pools,
        &["record", "p", &file],
        "format ARGB64 cannot be recorded without loss: use --h264",
    );
    let nowhere = ["record", "p", "/none/a.mkv", "--h264"];
    fails(&pools, &nowhere, "no folder /none");
    assert!(!fs::exists(&file).unwrap());
}

#[test]
fn a_recording_without_a_frame_is_removed() {
    let pools = prepared();
    let file = pools.file("a.mkv").to_str().unwrap().to_owned();
    let producer = silent_producer(&pools, "p");
    let start = || {
        let record = Launch::start(&pools, "record", &mut xmem(&pools, &["record", "p", &file]));
        until("the consumer", || consumer(&pools).is_some());
        assert!(fs::exists(&file).unwrap());
        record
    };
    let mut killed = start();
    let tool = consumer(&pools).unwrap().pid.cast_signed();
    kill_process(Pid::from_raw(tool).unwrap(), Signal::KILL).unwrap();
    // As in a shell.
    assert_eq!(killed.wait().code(), Some(128 + 9), "{}", killed.log());
    assert_contains(&killed.log(), "GStreamer ended without a message");
    assert_contains(&killed.log(), "SIGKILL");
    assert!(!fs::exists(&file).unwrap(), "{}", killed.log());

    // The tool writes a header.
    until("no consumer", || consumer(&pools).is_none());
    let mut ended = start();
    producer.set_eos(true);
    ended.succeeds();
    assert!(!fs::exists(&file).unwrap(), "{}", ended.log());
    assert!(ended.log().contains("nothing was recorded"));
}

#[test]
fn a_recording_replaces_no_file_and_follows_no_link() {
    let pools = prepared();
    let _producer = live(&pools, "");
    let path = |name: &str| pools.file(name).to_str().unwrap().to_owned();
    let file = path("a.mkv");
    let mut first = recording(&pools, &file, &[]);
    fails(&pools, &["record", "p", &file], "a.mkv exists");
    first.signal(Signal::INT);
    first.succeeds();
    assert!(is_complete(&file));
    let link = path("link.mkv");
    std::os::unix::fs::symlink(path("nothing"), &link).unwrap();
    fails(&pools, &["record", "p", &link], "link.mkv exists");
    assert!(!fs::exists(path("nothing")).unwrap());
}

#[test]
fn a_recording_has_its_time_in_its_name() {
    let pools = prepared();
    let _producer = live(&pools, "");
    let file = pools.file("a-%t.mkv");
    record(&pools, file.to_str().unwrap(), &[]);
    let files = fs::read_dir(file.parent().unwrap()).unwrap();
    let names = files.map(|it| it.unwrap().file_name().into_string().unwrap());
    let recordings: Vec<_> = names.filter(|it| it.ends_with(".mkv")).collect();
    let [recording] = &recordings[..] else {
        panic!("{recordings:?}");
    };
    let time = recording.strip_prefix("a-20").unwrap();
    assert!(time.ends_with("Z.mkv"), "{recording}");
    assert!(is_complete(pools.file(recording).to_str().unwrap()));
}

/// Otherwise the author of a file could make the command open any other one.
#[test]
fn a_playlist_is_no_film() {
    let pools = prepared();
    let file = pools.file("a.mkv").to_str().unwrap().to_owned();
    let (listener, playlist) = playlist();
    fs::write(&file, playlist).unwrap();
    let args = ["replay", &file, "--pool", "p"];
    fails(
        &pools,
        &args,
        "isn't a film or a picture: its type is application/x-hls",
    );
    fs::write(
        &file,
        "<svg xmlns='http://www.w3.org/2000/svg' width='9' height='9'/>",
    )
    .unwrap();
    fails(&pools, &args, "isn't a film or a picture: its type is ");
    fs::write(&file, [0; 5000]).unwrap();
    fails(
        &pools,
        &args,
        "isn't a film or a picture: its type is unknown to GStreamer",
    );
    assert!(listener.accept().is_err(), "nothing was opened");
}

#[test]
fn taps_and_recordings_end_when_the_size_changes() {
    let pools = prepared();
    let producer = live(&pools, ",format=NV12");
    until("frames", || published(&pools) > 0);
    let path = |name: &str| pools.file(name).to_str().unwrap().to_owned();
    let (file, h264, clips) = (path("a.mkv"), path("b.mkv"), path("c-%t.mkv"));
    let commands = [
        &["tap", "p"][..],
        &["record", "p", &file],
        &["record", "p", &h264, "--h264"],
        &["record", "p", &clips, "--before", "3"],
    ];
    let readers = commands.map(|args| Launch::start(&pools, args[0], &mut xmem(&pools, args)));
    until("frames for all", || {
        let consumers = pool_stats(&pools, "p").unwrap().consumers;
        consumers.iter().filter(|it| it.received > 0).count() == readers.len()
    });
    drop(producer);
    let _producer = Launch::new(
        &pools,
        "larger",
        "videotestsrc is-live=true ! video/x-raw,format=NV12,width=128,height=48,framerate=30/1 ! xmemsink pool=p",
    );
    for (mut reader, args) in readers.into_iter().zip(commands) {
        assert_eq!(reader.wait().code(), Some(1), "{args:?}");
        let log = reader.log();
        let what = if args[0] == "tap" {
            "output"
        } else {
            "recording"
        };
        assert_contains(
            &log,
            &format!(
                "xmem: the frames changed from NV12 64x48 30/1 to NV12 128x48 30/1, so the {what} ended there: start another one\n"
            ),
        );
        assert!(!log.contains("xmemsrc") && !log.contains("ERROR"), "{log}");
    }
}

#[test]
fn encoded_frames_are_recorded_as_they_are() {
    let pools = prepared();
    let _producer = live(
        &pools,
        " ! x264enc tune=zerolatency key-int-max=5 ! video/x-h264,stream-format=byte-stream",
    );
    for (name, options) in [("a.mkv", &[][..]), ("b.mkv", &["--h264"])] {
        let file = pools.file(name).to_str().unwrap().to_owned();
        record(&pools, &file, options);
        pools.run(&format!(
            "filesrc location={file} ! matroskademux ! video/x-h264 ! avdec_h264 ! fakesink"
        ));
    }
}
