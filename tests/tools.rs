// SPDX-License-Identifier: MPL-2.0

//! GStreamer's tools report no problems.

mod support;

use rustix::process::Signal;
use support::{process::*, *};

const LIVE: &str = "videotestsrc is-live=true \
     ! video/x-raw,format=I420,width=320,height=240,framerate=100/1 ! xmemsink";

#[test]
fn gst_inspect_shows_everything_without_a_warning() {
    let pools = prepared();
    for (what, expected) in [
        (
            "xmem",
            &["xmemsink", "xmemsrc", "xmemdeviceprovider", "MPL"][..],
        ),
        (
            "xmemsink",
            &["URI handling capabilities", "delivery", "client-connected"],
        ),
        (
            "xmemsrc",
            &["URI handling capabilities", "on-producer-lost"],
        ),
    ] {
        let mut inspect = command(&pools, "gst-inspect-1.0");
        let output = inspect
            .arg(what)
            .env("G_DEBUG", "fatal-warnings")
            .output()
            .unwrap();
        let (out, err) = (
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr),
        );
        assert!(output.status.success(), "{what}: {out}\n{err}");
        assert!(err.is_empty(), "{what}: {err}");
        for text in expected {
            assert!(out.contains(text), "{what} lacks {text}: {out}");
        }
    }
}

#[test]
fn messages_of_the_core_are_in_the_debug_log() {
    let pools = prepared();
    let file = pools.file("debug.log");
    let _producer = Launch::new(&pools, "producer", &format!("{LIVE} pool=p"));
    let mut consumer = command(&pools, "gst-launch-1.0");
    consumer
        .args("xmemsrc pool=p max-held=5000 ! fakesink".split_ascii_whitespace())
        .env("GST_DEBUG", "xmemcore:2")
        .env("GST_DEBUG_FILE", &file);
    let _consumer = Launch::start(&pools, "consumer", &mut consumer);
    until("a warning of the core's", || {
        let text = std::fs::read_to_string(&file).unwrap_or_default();
        text.lines().any(|line| {
            line.contains("WARN") && line.contains("xmemcore") && line.contains("asked to hold")
        })
    });
}

/// At the end, the leaks tracer reports the objects that are still alive.
fn traced(pools: &Pools, name: &str, program: &str, arguments: &str) -> Launch {
    let mut command = command(pools, program);
    command
        .args(arguments.split_ascii_whitespace())
        .env("GST_TRACERS", "leaks")
        .env("GST_DEBUG", "GST_TRACER:7")
        .env("GST_DEBUG_NO_COLOR", "1");
    Launch::start(pools, name, &mut command)
}

#[track_caller]
fn leaks_nothing(mut launch: Launch) {
    launch.succeeds();
    let log = launch.log();
    // The tracer is active: this line announces its report.
    assert_contains(&log, "new format string: object-alive");
    let alive: Vec<_> = log
        .lines()
        .filter(|line| line.contains("object-alive, ") && !line.contains("new format string"))
        .collect();
    assert!(alive.is_empty(), "{}", alive.join("\n"));
}

#[test]
fn nothing_leaks() {
    let pools = prepared();
    let producer = traced(
        &pools,
        "producer",
        "gst-launch-1.0",
        &format!("{LIVE} name=sink pool=p"),
    );
    until("the pool", || {
        pool_stats(&pools, "p").is_some_and(|stats| stats.published > 0)
    });
    let consumers = [
        "xmemsrc pool=p num-buffers=20 ! fakesink",
        "xmemsrc pool=p num-buffers=20 max-held=1 ! queue ! videoconvert ! video/x-raw,format=RGB ! fakesink",
    ];
    for (number, consumer) in consumers.iter().enumerate() {
        let name = format!("consumer-{number}");
        leaks_nothing(traced(&pools, &name, "gst-launch-1.0", consumer));
    }
    let monitor = traced(&pools, "monitor", "gst-device-monitor-1.0", "Video/Source");
    leaks_nothing(monitor);
    let log = std::fs::read_to_string(pools.file("monitor.log")).unwrap();
    assert_contains(&log, "xmemsrc pool=p");
    // Played by its address, so that elements are added and removed.
    let player = traced(
        &pools,
        "player",
        "gst-launch-1.0",
        "playbin uri=xmem://p?on-producer-lost=eos video-sink=fakesink",
    );
    until("the player", || {
        pool_stats(&pools, "p")
            .is_some_and(|stats| stats.consumers.iter().any(|client| client.received > 5))
    });
    producer.signal(Signal::INT);
    leaks_nothing(producer);
    leaks_nothing(player);
}
