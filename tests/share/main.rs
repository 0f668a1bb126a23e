// SPDX-License-Identifier: MPL-2.0

//! `xmem share`, which plays sources into pools with GStreamer's tools and the plugin, and `xmem record`, `replay` and `tap`.

mod recordings;
mod sources;
mod supervision;
#[path = "../support/mod.rs"]
mod support;

use std::{fs, os::unix::fs::PermissionsExt, path::Path};

use rustix::process::Signal;
use support::{process::*, *};

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
    assert_contains(&text, part);
}

fn ends_by(mut share: Launch, signal: Signal) {
    share.signal(signal);
    share.succeeds();
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
    assert_contains(&text, "package gstreamer1.0-tools");
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
