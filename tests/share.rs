// SPDX-License-Identifier: MPL-2.0

//! `xmem share`, which plays sources into pools with GStreamer's tools and the plugin.

mod support;

use std::{
    fs, net::TcpListener, os::unix::fs::PermissionsExt, path::Path, process::Command, thread,
    time::Duration,
};

use rustix::process::{Pid, Signal, kill_process};
use support::{process::*, *};

fn xmem(pools: &Pools, args: &[&str]) -> Command {
    let mut xmem = command(pools, target_dir().join("xmem"));
    xmem.args(args);
    xmem
}

fn share(pools: &Pools, source: &str, options: &[&str]) -> Launch {
    let mut args = vec!["share", source, "--pool", "p"];
    args.extend(options);
    Launch::start(pools, "share", &mut xmem(pools, &args))
}

fn published(pools: &Pools) -> u64 {
    pool_stats(pools, "p").map_or(0, |stats| stats.published)
}

/// A receiver of the pool that waits for each next producer.
fn receiver(pools: &Pools) -> Receiver {
    pools.receiver(&format!("pool={}", pool_path(pools, "p")))
}

/// Creates a film of `frames` frames at 30 per second.
fn film(pools: &Pools, frames: u32) -> String {
    let file = pools.file("a film.mkv").to_str().unwrap().to_owned();
    let mut launch = command(pools, "gst-launch-1.0");
    launch.args(["-q", "videotestsrc", &format!("num-buffers={frames}"), "!"]);
    launch.args(
        "video/x-raw,format=I420,width=64,height=48 ! jpegenc ! matroskamux ! filesink".split(' '),
    );
    let status = launch.arg(format!("location={file}")).status().unwrap();
    assert!(status.success());
    file
}

fn picture(pools: &Pools) -> String {
    let file = pools.file("a.png").to_str().unwrap().to_owned();
    pools.run(&format!(
        "videotestsrc num-buffers=1 ! video/x-raw,width=64,height=48 ! pngenc ! filesink location={file}"
    ));
    file
}

/// Asserts exit code 1 and this text in the error.
#[track_caller]
fn fails(pools: &Pools, args: &[&str], part: &str) {
    let output = xmem(pools, args).output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains(part), "{text}");
}

fn ends_by(mut share: Launch, signal: Signal) {
    share.signal(signal);
    share.succeeds();
}

#[test]
fn a_killed_source_is_started_again() {
    let pools = prepared();
    let share = share(&pools, "test", &[]);
    let receiver = receiver(&pools);
    assert!(receiver.next().is_some());
    until("a line about the format", || {
        share.log().contains("pool p: NV12 1280x720 30/1")
    });
    let stats = pool_stats(&pools, "p").unwrap();
    assert!(
        stats
            .sticky
            .iter()
            .any(|(key, caps)| key == "caps" && caps.contains("NV12"))
    );
    kill_process(
        Pid::from_raw(stats.pid.cast_signed()).unwrap(),
        Signal::KILL,
    )
    .unwrap();
    until("the next producer", || {
        receiver.next().is_some() && receiver.stat("reconnects") == 1
    });
    until("frames of the next producer", || published(&pools) > 0);
    assert_ne!(pool_stats(&pools, "p").unwrap().pid, stats.pid);
    let log = share.log();
    assert!(
        log.contains("xmem: test: sharing it in the pool p"),
        "{log}"
    );
    assert!(
        log.contains("signal: 9 (SIGKILL); starting it again in 1s"),
        "{log}"
    );
    ends_by(share, Signal::TERM);
    assert!(!Path::new(&pool_path(&pools, "p")).exists());
}

#[test]
fn the_source_ends_with_its_supervisor() {
    let pools = prepared();
    let share = share(&pools, "test", &["--format", "RGB"]);
    until("frames", || published(&pools) > 0);
    share.signal(Signal::KILL);
    until("no producer", || pool_stats(&pools, "p").is_none());
}

#[test]
fn a_program_starts_it_once_and_it_ends_without_a_consumer() {
    let pools = prepared();
    let mut first = share(&pools, "test", &["--idle", "2"]);
    let receiver = receiver(&pools);
    assert!(receiver.next().is_some());
    let second = ["share", "test", "--pool", "p", "--idle", "2"];
    let output = xmem(&pools, &second).output().unwrap();
    assert!(output.status.success() && output.stderr.is_empty());
    let log = Path::new(&pool_path(&pools, "p")).with_extension("log");
    let text = fs::read_to_string(&log).unwrap();
    assert!(text.contains("test: sharing it in the pool p"), "{text}");
    drop(receiver);
    first.succeeds();
    assert!(!log.exists());
    // A source that fails is not started again, and both say why.
    let wrong = ["share", "a ! b", "--pool", "p", "--idle", "2"];
    fails(&pools, &wrong, "p.log)");
    let text = fs::read_to_string(&log).unwrap();
    assert!(text.contains("no element \"a\""), "{text}");
}

#[test]
fn a_film_is_played_once_or_in_a_loop() {
    let pools = prepared();
    let film = film(&pools, 10);
    let mut once = share(
        &pools,
        &film,
        &[
            "--set",
            "wait-for-connection=true",
            "--set",
            "delivery=lossless",
        ],
    );
    let first = receiver(&pools);
    while first.next().is_some() {}
    assert_eq!(first.stat("received"), 10);
    once.succeeds();

    let looped = share(&pools, &film, &["--loop", "--format", "any"]);
    let second = receiver(&pools);
    until("the third round", || {
        second.next().unwrap();
        second.stat("reconnects") >= 2
    });
    ends_by(looped, Signal::INT);
}

/// Their demuxers and decoders need more than the name of the media type.
#[test]
fn films_of_all_kinds_are_played() {
    let pools = prepared();
    for kind in ["ts", "mpg", "m1v", "dv", "y4m"] {
        let film = pools.file(&format!("film.{kind}"));
        let film = film.to_str().unwrap();
        let mut ffmpeg = command(&pools, "ffmpeg");
        ffmpeg.args(
            "-v fatal -f lavfi -i testsrc2=s=720x576:r=25 -frames:v 10 -pix_fmt yuv420p".split(' '),
        );
        assert!(ffmpeg.arg(film).status().unwrap().success());
        let lossless = [
            "--set",
            "wait-for-connection=true",
            "--set",
            "delivery=lossless",
        ];
        let mut share = share(&pools, film, &lossless);
        let receiver = receiver(&pools);
        while receiver.next().is_some() {}
        assert_eq!(receiver.stat("received"), 10, "{kind}");
        share.succeeds();
    }
}

/// Their decoders have no caps, so decodebin finds them only if it decodes all streams.
#[test]
fn films_with_alpha_are_played() {
    let pools = prepared();
    for encoder in ["libvpx -auto-alt-ref 0", "libvpx-vp9"] {
        let film = pools.file("film.webm");
        let film = film.to_str().unwrap();
        let mut ffmpeg = command(&pools, "ffmpeg");
        let options = format!(
            "-v fatal -y -f lavfi -i sine=duration=1 -f lavfi -i testsrc2=s=64x48:r=25,format=yuva420p \
             -c:a libvorbis -c:v {encoder} -pix_fmt yuva420p -frames:v 10"
        );
        ffmpeg.args(options.split_whitespace()).arg(film);
        assert!(ffmpeg.status().unwrap().success());
        for (format, is) in [("RGBA", "RGBA"), ("any", "A420")] {
            let mut options = vec!["--format", format];
            options.extend(["--set", "wait-for-connection=true"]);
            options.extend(["--set", "delivery=lossless"]);
            let mut share = share(&pools, film, &options);
            let receiver = receiver(&pools);
            let first = receiver.next().unwrap();
            let caps = first.caps().unwrap().structure(0).unwrap();
            assert_eq!(caps.get::<&str>("format"), Ok(is), "{encoder}");
            drop(first);
            while receiver.next().is_some() {}
            assert_eq!(receiver.stat("received"), 10, "{encoder}");
            share.succeeds();
        }
    }
}

#[test]
fn a_picture_stays() {
    let pools = prepared();
    let picture = picture(&pools);
    for options in [&[][..], &["--loop"]] {
        let share = share(&pools, &picture, options);
        let receiver = receiver(&pools);
        (0..15).for_each(|_| drop(receiver.next().unwrap()));
        assert_eq!(receiver.stat("reconnects"), 0);
        ends_by(share, Signal::INT);
    }
}

#[test]
fn smaller_frames_are_in_a_pool_of_their_own() {
    let pools = prepared();
    let options = ["--also", "small=160x120@5", "--on-demand"];
    let share = share(&pools, "test", &options);
    let stats = |name| pool_stats(&pools, name);
    until("the pools", || {
        stats("p").is_some() && stats("small").is_some()
    });
    assert_eq!(stats("p").unwrap().published, 0);
    // A consumer of the second pool opens the source.
    let small = pools.receiver(&format!("pool={}", pool_path(&pools, "small")));
    let mut times = Vec::new();
    while times.len() < 5 {
        times.push(small.next().unwrap().buffer().unwrap().pts().unwrap());
    }
    assert!(
        times
            .windows(2)
            .all(|it| it[1] - it[0] >= gst::ClockTime::from_mseconds(190)),
        "{times:?}"
    );
    let (of_p, of_small) = (stats("p").unwrap(), stats("small").unwrap());
    let caps = |stats: &xmem_core::PoolStats| {
        let caps = stats.sticky.iter().find(|(key, _)| key == "caps");
        caps.unwrap().1.clone()
    };
    assert!(caps(&of_p).contains("width=(int)1280"));
    assert!(caps(&of_small).contains("width=(int)160") && caps(&of_small).contains("5/1"));
    // The source still writes into the slots of the first pool.
    assert_eq!(of_p.copied, 0, "{of_p:?}");
    drop(small);
    until("a closed source", || {
        share.log().matches("closed until a consumer comes").count() == 2
    });
    ends_by(share, Signal::INT);
    fails(
        &pools,
        &[
            "share", "test", "--pool", "p", "--also", "s=64x48", "--format", "any",
        ],
        "name their format",
    );
}

/// The device is no camera. What counts is when it is opened.
#[test]
fn a_camera_that_is_unplugged_is_waited_for() {
    let pools = prepared();
    let link = pools.file("by-id");
    let plug = || std::os::unix::fs::symlink("/dev/null", &link).unwrap();
    plug();
    let share = share(&pools, link.to_str().unwrap(), &[]);
    let count = |text: &str| share.log().matches(text).count();
    until("a restart", || count("starting it again in 1s") == 1);
    fs::remove_file(&link).unwrap();
    until("a pause", || count("waiting for the device") == 1);
    plug();
    until("another start", || {
        count("starting it again") + count("waiting") > 2
    });
    // The link, not its target.
    let name = format!("xmem: {}: ", link.display());
    assert!(share.log().lines().all(|line| line.starts_with(&name)));
    ends_by(share, Signal::INT);
}

#[test]
fn a_source_without_frames_is_started_again() {
    let pools = prepared();
    let share = share(
        &pools,
        "videotestsrc is-live=true ! valve drop=true",
        &["--timeout", "0.1"],
    );
    until("a restart", || {
        share.log().contains("starting it again in 2s")
    });
    ends_by(share, Signal::INT);
}

#[test]
fn a_source_that_waits_for_consumers_is_not_started_again() {
    let pools = prepared();
    let share = share(
        &pools,
        "test",
        &[
            "--set",
            "delivery=lossless",
            "--set",
            "wait-for-connection=true",
            "--timeout",
            "3",
        ],
    );
    let stats = || pool_stats(&pools, "p");
    until("the pool", || stats().is_some());
    // Longer than the timeout.
    let stays = |begin: u64| {
        until("an old pool", || {
            stats().is_some_and(|it| it.up_ns > begin + 6_000_000_000)
        });
    };
    stays(0);
    let mut consumer = xmem_core::Consumer::builder(pool_path(&pools, "p"))
        .connect()
        .unwrap();
    until("a producer that waits", || {
        stats().is_some_and(|it| it.consumers.iter().any(|it| it.waited_for_ns > 0))
    });
    stays(stats().unwrap().up_ns);
    assert!(!share.log().contains("again"), "{}", share.log());
    assert!(consumer.receive(None).is_ok());
    ends_by(share, Signal::INT);
}

#[test]
fn a_loop_without_frames_has_pauses() {
    let pools = prepared();
    let share = share(&pools, "videotestsrc num-buffers=0 ! identity", &["--loop"]);
    until("a pause", || {
        let log = share.log();
        log.contains("at its end without a frame; starting it again in 2s")
    });
    ends_by(share, Signal::INT);
}

#[test]
fn a_source_on_demand_is_open_while_there_are_consumers() {
    let pools = prepared();
    // Longer than the test: the source is closed between two runs of a film.
    let film = film(&pools, 4000);
    let share = share(&pools, &film, &["--on-demand", "--loop"]);
    let has_film = |pid: u32| {
        let files = fs::read_dir(format!("/proc/{pid}/fd"))
            .into_iter()
            .flatten();
        files
            .filter_map(|file| fs::read_link(file.ok()?.path()).ok())
            .any(|file| file == Path::new(&film))
    };
    let producer = || pool_stats(&pools, "p").map(|stats| stats.pid);
    let is_open = || producer().is_some_and(has_film);
    until("the pool", || producer().is_some());
    assert!(!is_open() && !has_film(share.pid()));
    let mut rounds = Vec::new();
    for _ in 0..2 {
        let receiver = receiver(&pools);
        assert!(receiver.next().is_some());
        until("an open film", is_open);
        let with_film = producer();
        drop(receiver);
        // The pool was created again.
        until("a closed film", || {
            let now = producer();
            now.is_some() && now != with_film && !is_open()
        });
        rounds.push(with_film);
    }
    assert_ne!(rounds[0], rounds[1]);
    // A command that needs the caps is also a consumer.
    let picture = pools.file("a.png").to_str().unwrap().to_owned();
    let output = xmem(&pools, &["snapshot", "p", &picture, "--timeout", "60"])
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    until("an open film", is_open);
    let log = share.log();
    assert!(log.contains("closed until a consumer comes"), "{log}");
    ends_by(share, Signal::TERM);
    assert!(!Path::new(&pool_path(&pools, "p")).exists());
}

#[test]
fn a_short_film_on_demand_is_closed_between_two_rounds() {
    let pools = prepared();
    let share = share(&pools, &film(&pools, 40), &["--on-demand", "--loop"]);
    let closed = || {
        let log = share.log();
        log.matches("closed until a consumer comes").count()
    };
    until("the pool", || pool_stats(&pools, "p").is_some());
    assert!(receiver(&pools).next().is_some());
    until("a closed film", || closed() == 2);

    // The process without a source is also restarted.
    until("the pool", || pool_stats(&pools, "p").is_some());
    let waiting = pool_stats(&pools, "p").unwrap().pid.cast_signed();
    kill_process(Pid::from_raw(waiting).unwrap(), Signal::KILL).unwrap();
    until("a line about its end", || {
        share.log().contains("SIGKILL); starting it again in 1s")
    });
    assert!(receiver(&pools).next().is_some());
    ends_by(share, Signal::TERM);
}

#[test]
fn errors_give_the_remedy() {
    let pools = prepared();
    let share = |source: &str, part: &str| fails(&pools, &["share", source, "--pool", "p"], part);
    share("/none.mp4", "cannot read /none.mp4: No such file");
    share(
        "nothing ! identity",
        "no element \"nothing\". Install the package",
    );
    share(
        "nix://a",
        "No URI handler implemented for \"nix\". Install the package",
    );
    let sound = pools.file("sound.wav").to_str().unwrap().to_owned();
    pools.run(&format!(
        "audiotestsrc num-buffers=9 ! wavenc ! filesink location={sound}"
    ));
    share(&sound, "there is no video in it");
    fails(
        &pools,
        &["share", "test", "--pool", "p", "--format", "RGB7"],
        "format=(string)RGB7",
    );

    // Without GStreamer, and with a pool that has a producer.
    let mut without_tool = xmem(&pools, &["share", "test", "--pool", "p"]);
    let output = without_tool.env("PATH", "/nowhere").output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(text.contains("package gstreamer1.0-tools"), "{text}");
    let _producer = xmem_core::Producer::builder(pool_path(&pools, "p"))
        .build()
        .unwrap();
    share("test", "has a producer");
}

#[test]
fn the_tool_prints_english() {
    let pools = prepared();
    let stand_in = pools.file("gst-launch-1.0");
    fs::write(&stand_in, "#!/bin/sh\necho \"LANGUAGE is $LANGUAGE\" >&2\n").unwrap();
    fs::set_permissions(&stand_in, PermissionsExt::from_mode(0o755)).unwrap();
    let args = ["--verbose", "share", "test", "--pool", "p"];
    let mut command = xmem(&pools, &args);
    command.env("PATH", pools.path()).env("LANGUAGE", "de");
    let share = Launch::start(&pools, "share", &mut command);
    until("a line of the tool", || {
        share.log().contains("LANGUAGE is en\n")
    });
    ends_by(share, Signal::INT);
}

/// A live stream of 64x48 in the pool p.
fn live(pools: &Pools, elements: &str) -> Launch {
    let source = "videotestsrc is-live=true ! video/x-raw,width=64,height=48,framerate=30/1";
    Launch::new(
        pools,
        "live",
        &[],
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
        assert!(caps.contains("NV12") && caps.contains("(int)64"), "{caps}");
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
    Launch::new(pools, "first", &[], &pipeline).succeeds();
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
    let _producer = Launch::new(pools, "live", &[], &format!("{picture} ! xmemsink pool=p"));
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

/// Whoever made the file would choose what is opened.
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
fn a_tap_ends_when_the_size_changes() {
    let pools = prepared();
    let producer = live(&pools, "");
    until("frames", || published(&pools) > 0);
    let mut tap = Launch::start(&pools, "tap", &mut xmem(&pools, &["tap", "p"]));
    until("the tap", || {
        pool_stats(&pools, "p").is_some_and(|it| it.consumers.len() == 1)
    });
    drop(producer);
    let _producer = Launch::new(
        &pools,
        "larger",
        &[],
        "videotestsrc is-live=true ! video/x-raw,width=128,height=48,framerate=30/1 ! xmemsink pool=p",
    );
    assert!(!tap.wait().success());
    let log = tap.log();
    assert!(
        log.contains("does not accept the caps of pool") && log.contains("width=(int)128"),
        "{log}"
    );
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

/// Runs the commands of docs/cli.md with stand-ins for a camera, a stream and a film.
#[test]
fn the_page_about_the_command_is_true() {
    let pools = prepared();
    let film = film(&pools, 30);
    let picture = picture(&pools);
    let page =
        fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/cli.md")).unwrap();
    let lines: Vec<_> = page
        .lines()
        .filter(|line| line.starts_with("xmem share "))
        .collect();
    assert!(lines.len() >= 5);
    for line in lines {
        let line = line.split('#').next().unwrap();
        let mut words = line.split('"');
        let mut args: Vec<&str> = words.next().unwrap().split_whitespace().skip(1).collect();
        args.extend(words.next());
        args.extend(words.next().unwrap_or_default().split_whitespace());
        args[1] = match args[1] {
            "film.mp4" => &film,
            "logo.png" => &picture,
            "/dev/video0" | "rtsp://192.0.2.7/stream" => "test",
            other => other,
        };
        let pool = args[3].to_owned();
        let share = Launch::start(&pools, "share", &mut xmem(&pools, &args));
        let join = || pools.receiver(&format!("pool={}", pool_path(&pools, &pool)));
        let _receiver = args.contains(&"--on-demand").then(join);
        until("frames", || {
            pool_stats(&pools, &pool).is_some_and(|stats| stats.published > 0)
        });
        ends_by(share, Signal::INT);
    }
}

/// Compares the command of the unit file with that of the example for containers.
#[test]
fn the_unit_and_the_compose_file_share_a_source() {
    let pools = prepared();
    let read =
        |file: &str| fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(file)).unwrap();
    let unit = read("contrib/xmem-share@.service");
    let line = unit
        .lines()
        .find_map(|line| line.strip_prefix("ExecStart=/usr/bin/xmem "))
        .unwrap();
    let line = line
        .replace("${SOURCE}", "test")
        .replace("%i", "p")
        .replace("$OPTIONS", "--set socket-mode=0666");
    let compose = read("examples/compose.yaml");
    let command = compose
        .lines()
        .find_map(|line| line.trim().strip_prefix("command: xmem "))
        .unwrap();
    for line in [
        line,
        command.replace("/dev/video0", "test").replace("cam0", "p"),
    ] {
        let args: Vec<&str> = line.split_whitespace().collect();
        let share = Launch::start(&pools, "share", &mut xmem(&pools, &args));
        until("frames", || published(&pools) > 0);
        ends_by(share, Signal::TERM);
    }
}

/// The commands of the first page: a camera of the network, and a window that shows it.
#[test]
fn a_camera_of_the_network_is_shown_without_gaps() {
    let pools = prepared();
    let port = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .port();
    let served = "( videotestsrc is-live=true ! video/x-raw,format=I420,width=320,height=240,framerate=25/1 \
         ! x264enc tune=zerolatency key-int-max=25 ! rtph264pay name=pay0 )";
    let Some(_server) = rtsp_server(&pools, &port.to_string(), served) else {
        return;
    };
    let address = format!("rtsp://127.0.0.1:{port}/cam0");
    for (options, latency) in [
        (&[][..], 200_000_000),
        (&["--latency", "2000"], 2_000_000_000),
        (&["--latency", "0"], 0),
    ] {
        let share = share(&pools, &address, options);
        let consumer = Launch::new(
            &pools,
            "consumer",
            &[],
            "xmemsrc pool=p ! videoconvert ! fakesink sync=true",
        );
        let mut stats = None;
        until("frames", || {
            stats = pool_stats(&pools, "p");
            let consumers = stats.iter().flat_map(|stats| &stats.consumers);
            consumers.map(|consumer| consumer.received).max() >= Some(60)
        });
        let stats = stats.unwrap();
        let timeline = stats.sticky.iter().find(|(key, _)| key == "timeline");
        let timeline: gst::Structure = timeline.unwrap().1.parse().unwrap();
        let promised = timeline.get::<u64>("latency").unwrap();
        assert!(
            (latency..latency + 150_000_000).contains(&promised),
            "{promised}"
        );
        let missed = stats.consumers[0].missed;
        assert!(
            missed < 5,
            "{missed} missed with {options:?}\n{}",
            consumer.log()
        );
        drop(consumer);
        ends_by(share, Signal::INT);
    }
    fails(
        &pools,
        &["share", "test", "--pool", "p", "--latency", "9"],
        "--latency is for",
    );
}
