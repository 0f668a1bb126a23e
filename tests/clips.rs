// SPDX-License-Identifier: MPL-2.0

//! `xmem record --before`: clips that begin before they are asked for. ffmpeg reads them.

mod support;

use std::{
    fs,
    io::Write,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use rustix::process::Signal;
use support::{process::*, *};

/// 30 frames a second, with a picture that x264enc cannot make small.
const LIVE: &str = "videotestsrc is-live=true pattern=snow ! video/x-raw,format=I420,width=160,height=120,framerate=30/1";
/// With B frames, and a key frame each half second.
const H264: &str = "! x264enc b-adapt=false bframes=2 key-int-max=15 ! h264parse";

fn producer(pools: &Pools, rest: &str) -> Launch {
    let pipeline = format!("{LIVE} {rest} ! xmemsink pool=p");
    Launch::new(pools, "producer", &pipeline)
}

fn recording(pools: &Pools, args: &[&str]) -> Command {
    let mut record = xmem(pools, &["record", "p"]);
    record.args(args).current_dir(pools.path());
    record
}

/// The recorder, after it has received this number of frames from after its start.
fn recorder(pools: &Pools, command: &mut Command, frames: u64) -> Launch {
    until("frames", || {
        pool_stats(pools, "p").is_some_and(|it| it.published > 0)
    });
    let mut recorder = Launch::start(pools, "record", command);
    until("frames of the recorder", || {
        assert!(!recorder.has_ended(), "{}", recorder.log());
        received(pools) >= frames
    });
    recorder
}

fn received(pools: &Pools) -> u64 {
    let stats = pool_stats(pools, "p");
    // It drops what was made before it started.
    stats
        .and_then(|it| {
            it.consumers
                .first()
                .map(|it| it.received.saturating_sub(it.dropped))
        })
        .unwrap_or(0)
}

/// What ffprobe shows of these entries of a file.
fn probed(file: &Path, entries: &str) -> String {
    let mut probe = Command::new("ffprobe");
    probe.args(["-v", "error", "-show_entries", entries, "-of", "csv=p=0"]);
    String::from_utf8(probe.arg(file).output().unwrap().stdout).unwrap()
}

/// The packets of a file, as ffprobe sees them: their times, and whether they are key frames. ffmpeg decodes each without an error.
fn packets(file: &Path) -> Vec<(f64, bool)> {
    let mut decode = Command::new("ffmpeg");
    decode
        .args(["-nostdin", "-v", "error", "-i"])
        .arg(file)
        .args(["-fps_mode", "passthrough", "-f", "framemd5", "-"]);
    let decoded = decode.output().unwrap();
    let errors = String::from_utf8_lossy(&decoded.stderr);
    assert!(
        decoded.status.success() && errors.is_empty(),
        "{}: {errors}",
        file.display()
    );
    let text = probed(file, "packet=pts_time,flags");
    let packet = |line: &str| {
        let (time, flags) = line.split_once(',')?;
        Some((time.parse().ok()?, flags.starts_with('K')))
    };
    let packets: Vec<_> = text.lines().map(|line| packet(line).unwrap()).collect();
    let frames = String::from_utf8_lossy(&decoded.stdout);
    let frames = frames.lines().filter(|line| line.starts_with('0')).count();
    assert_eq!(frames, packets.len());
    packets
}

/// Whether a program finds its end, and a place in it without a search.
fn is_complete(file: &Path) -> bool {
    let duration = probed(file, "format=duration");
    let bytes = fs::read(file).unwrap();
    let has_cues = bytes.windows(4).any(|it| it == b"\x1c\x53\xbb\x6b");
    duration.trim().parse::<f64>().is_ok_and(|it| it > 0.0) && has_cues
}

/// The clips in the folder, in the order of their names.
fn clips(pools: &Pools) -> Vec<PathBuf> {
    let entries = fs::read_dir(pools.path())
        .unwrap()
        .map(|it| it.unwrap().path());
    let mut clips: Vec<_> = entries
        .filter(|it| it.extension().is_some_and(|it| it == "mkv"))
        .collect();
    clips.sort();
    clips
}

#[test]
fn a_clip_begins_with_a_key_frame_before_its_trigger() {
    for (rest, key_frames) in [
        (H264, 15),
        // Without a rate, matroskamux does not mark key frames.
        (
            "! capssetter caps=video/x-raw,framerate=0/1 ! x264enc tune=zerolatency key-int-max=15 ! h264parse",
            15,
        ),
        ("! jpegenc", 1_usize),
        // Encoded by the recorder.
        ("", 30),
    ] {
        let pools = prepared();
        // In snow, x264enc sees a new scene in each frame.
        let pipeline = format!("{} {rest} ! xmemsink pool=p", LIVE.replace("snow", "ball"));
        let _producer = Launch::new(&pools, "producer", &pipeline);
        let mut command = recording(&pools, &["clip.mkv", "--before", "2", "--after", "0.2"]);
        // Older frames than the clip's are there.
        let mut recorder = recorder(&pools, &mut command, 130);
        recorder.signal(Signal::USR1);
        recorder.succeeds();
        let clip = pools.file("clip.mkv");
        let packets = packets(&clip);
        let (first, is_key) = packets[0];
        let newest = packets.iter().map(|it| it.0).fold(0.0, f64::max);
        assert!(
            is_key && first == 0.0 && packets.iter().all(|it| it.0 >= 0.0),
            "{rest}: {packets:?}"
        );
        // At the trigger, the newest frame was at most the newest of the clip.
        assert!(newest >= 2.0, "{rest}: {packets:?}");
        // Less than the 130 frames before: it is no recording of everything.
        assert!(packets.len() < 120, "{rest}: {} packets", packets.len());
        let keys: Vec<_> = (0..packets.len()).filter(|at| packets[*at].1).collect();
        // x264enc may end a group one frame early, for its B frames.
        let distances: Vec<_> = keys.windows(2).map(|it| it[1] - it[0]).collect();
        assert!(
            !distances.is_empty()
                && distances
                    .iter()
                    .all(|it| (key_frames - 1..=key_frames).contains(it)),
            "{rest}: {keys:?}"
        );
        assert!(is_complete(&clip) && !pools.file("clip.mkv.part").exists());
        let log = recorder.log();
        assert_eq!(log.contains("with x264enc"), rest.is_empty(), "{log}");
    }
}

#[test]
fn one_run_writes_several_clips_and_keeps_the_newest() {
    let pools = prepared();
    let _producer = producer(&pools, H264);
    let args = [
        "a-%t.mkv",
        "--before",
        "0.5",
        "--after",
        "0.1",
        "--trigger",
        "--keep",
        "1",
    ];
    let mut command = recording(&pools, &args);
    let (reader, mut lines) = std::io::pipe().unwrap();
    let mut recorder = recorder(&pools, command.stdin(reader), 40);
    drop(command);
    let mut names = Vec::new();
    for round in 0..3 {
        lines.write_all(b"\n").unwrap();
        until("a clip", || {
            recorder.log().matches(" seconds\n").count() > round
        });
        until("no older clip", || clips(&pools).len() == 1);
        names.extend(clips(&pools));
    }
    assert!(names.is_sorted() && names[0] < names[1] && names[1] < names[2]);
    assert!(packets(&names[2])[0].1);
    // The end completes a clip.
    let log = recorder.log();
    lines.write_all(b"\n").unwrap();
    until("a clip", || {
        fs::read_dir(pools.path()).unwrap().any(|it| {
            it.unwrap()
                .path()
                .extension()
                .is_some_and(|it| it == "part")
        })
    });
    drop(lines);
    recorder.signal(Signal::INT);
    recorder.succeeds();
    assert!(recorder.log().len() > log.len());
    let [last] = &clips(&pools)[..] else {
        panic!("{}", recorder.log())
    };
    assert!(*last > names[2] && packets(last)[0].1 && is_complete(last));
}

/// Runs the first command of the recipe.
#[test]
fn the_recipe_of_the_cookbook_is_true() {
    let pools = prepared();
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/cookbook.md");
    let page = fs::read_to_string(page).unwrap();
    let line = page
        .lines()
        .find_map(|line| line.strip_prefix("xmem record cam0 'clip-"))
        .unwrap();
    let args = format!("clip-{}", line.replace('\'', ""));
    let args: Vec<_> = args.split(' ').collect();
    let _producer = producer(&pools, H264);
    let mut recorder = recorder(&pools, &mut recording(&pools, &args), 40);
    recorder.signal(Signal::USR1);
    until("a clip", || {
        let entries = fs::read_dir(pools.path()).unwrap();
        let mut names = entries.map(|it| it.unwrap().path());
        names.any(|it| it.extension().is_some_and(|it| it == "part"))
    });
    recorder.signal(Signal::INT);
    recorder.succeeds();
    assert!(packets(&clips(&pools)[0])[0].1);
}

#[test]
fn a_trigger_without_a_producer_writes_what_there_was() {
    let pools = prepared();
    let mut producer = producer(&pools, H264);
    let mut command = recording(&pools, &["clip.mkv", "--before", "30", "--after", "0.1"]);
    let mut recorder = recorder(&pools, &mut command, 60);
    producer.signal(Signal::KILL);
    producer.wait();
    recorder.signal(Signal::USR1);
    recorder.succeeds();
    let packets = packets(&pools.file("clip.mkv"));
    assert!(
        packets[0].1 && packets.iter().any(|it| it.0 >= 1.0),
        "{packets:?}\n{}",
        recorder.log()
    );
}

#[test]
fn a_clip_ends_before_a_full_disk_and_can_be_played() {
    let pools = prepared();
    let _producer = producer(&pools, H264);
    let mut command = command(&pools, "sh");
    let xmem = target_dir().join("xmem");
    // A limit of 64 KiB for each file. SIGXFSZ would end the command.
    let script = r#"ulimit -f 128; exec "$0" record p clip.mkv --before 1 --after 30"#;
    command.args(["-c", script]).arg(xmem);
    command.current_dir(pools.path());
    // The limit would also end a tool that renews the plugin registry, as it does after a test with another HOME.
    command.env("GST_REGISTRY_UPDATE", "no");
    let mut recorder = recorder(&pools, &mut command, 40);
    recorder.signal(Signal::USR1);
    assert_eq!(recorder.wait().code(), Some(1));
    let log = recorder.log();
    assert_contains(
        &log,
        "clip.mkv ends here, because writing failed: File too large",
    );
    let clip = pools.file("clip.mkv");
    let size = fs::metadata(&clip).unwrap().len();
    let packets = packets(&clip);
    assert!(
        packets.len() > 3 && packets[0].1 && size <= 65_536,
        "{size}: {packets:?}"
    );
}

#[test]
fn a_killed_recorder_leaves_a_part_that_can_be_played() {
    let pools = prepared();
    let _producer = producer(&pools, H264);
    let args = ["clip.mkv", "--before", "1", "--after", "30"];
    let mut recorder = recorder(&pools, &mut recording(&pools, &args), 40);
    recorder.signal(Signal::USR1);
    let part = pools.file("clip.mkv.part");
    until("a clip", || {
        fs::metadata(&part).is_ok_and(|it| it.len() > 100_000)
    });
    recorder.signal(Signal::KILL);
    recorder.wait();
    assert!(clips(&pools).is_empty());
    let played = pools.file("played.mkv");
    let mut copy = Command::new("ffmpeg");
    copy.args(["-nostdin", "-v", "error", "-i"])
        .arg(&part)
        .args(["-c", "copy"])
        .arg(&played);
    assert!(copy.status().unwrap().success());
    assert!(packets(&played)[0].1);
    let again = recording(&pools, &args).output().unwrap();
    let text = String::from_utf8_lossy(&again.stderr);
    assert_contains(&text, "clip.mkv.part exists: another command is writing it");
}

#[test]
fn errors_give_the_remedy() {
    let pools = prepared();
    fs::write(pools.file("old.mkv"), "").unwrap();
    for (args, code, part) in [
        (&["clip.mkv", "--before", "1"][..], 1, "no producer at"),
        (
            &["clip.mp4", "--before", "1"],
            1,
            "use a name that ends in .mkv",
        ),
        (
            &["none/clip.mkv", "--before", "1"],
            1,
            "there is no folder none: create it",
        ),
        (
            &["old.mkv", "--before", "1"],
            1,
            "old.mkv exists: remove it",
        ),
        (
            &["clip.mkv", "--before", "1", "--keep", "2G"],
            1,
            "--keep needs a name with %t",
        ),
        (
            &["clip.mkv", "--before", "1", "--memory", "2X"],
            2,
            "such as 500M or 20G",
        ),
        (&["clip.mkv", "--trigger"], 2, "--before"),
    ] {
        let output = recording(&pools, args)
            .stdin(Stdio::null())
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{args:?}: {text}");
        assert!(text.contains(part), "{args:?}: {text}");
    }
    assert!(!pools.file("clip.mkv").exists());
}

#[test]
fn too_little_memory_makes_clips_begin_later() {
    let pools = prepared();
    let _producer = producer(&pools, H264);
    let args = [
        "clip.mkv", "--before", "60", "--after", "0.1", "--memory", "200K",
    ];
    let mut recorder = recorder(&pools, &mut recording(&pools, &args), 60);
    until("a warning", || {
        recorder
            .log()
            .contains("so clips begin later: raise --memory")
    });
    recorder.signal(Signal::USR1);
    recorder.succeeds();
    assert!(packets(&pools.file("clip.mkv"))[0].1);
}
