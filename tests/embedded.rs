// SPDX-License-Identifier: MPL-2.0

//! The examples, as programs with the plugin linked statically, with and without an installed plugin.

mod support;

use support::{assert_contains, process::*, until};

fn example(name: &str) -> std::path::PathBuf {
    let program = target_dir().join("examples").join(name);
    assert!(
        program.exists(),
        "no {}: build the examples first",
        program.display()
    );
    program
}

fn frames_arrive(installed: bool) {
    let pools = prepared();
    let start = |name: &str, args: &[&str]| {
        let mut command = command(&pools, example(name));
        if !installed {
            command.env_remove("GST_PLUGIN_PATH");
            command.env_remove("GST_PLUGIN_PATH_1_0");
            command.env("GST_REGISTRY_1_0", pools.file("without.bin"));
        }
        Launch::start(&pools, name, command.args(args))
    };
    // Without an end: a consumer of a busy machine may start later than a few frames, and leaves those out.
    let producer = start("embed-producer", &["p"]);
    let mut consumer = start("embed-consumer", &["p"]);
    until("a frame", || consumer.log().contains("mean"));
    drop(producer);
    consumer.succeeds();
    let log = consumer.log();
    for line in log.lines().filter(|line| line.contains("mean")) {
        // The brightness of frame 7 is its number.
        let (number, mean) = line
            .strip_prefix("frame ")
            .and_then(|rest| rest.split_once(" at ")?.0.parse::<u64>().ok())
            .zip(line.rsplit_once("mean ").map(|(_, mean)| mean))
            .unwrap_or_else(|| panic!("{line}"));
        assert_eq!(mean, number.to_string(), "{line}");
        assert_contains(line, "320x240 GRAY8");
    }
}

#[test]
fn without_an_installed_plugin() {
    frames_arrive(false);
}

#[test]
fn beside_an_installed_plugin() {
    frames_arrive(true);
}

#[test]
fn the_consumer_reads_padded_rows_in_place() {
    let pools = prepared();
    // The decoder pads rows of 300 pixels.
    let mut producer = Launch::new(
        &pools,
        "producer",
        "videotestsrc num-buffers=20 ! video/x-raw,format=I420,width=300,height=200 ! x264enc ! avdec_h264 ! \
         xmemsink pool=p delivery=lossless wait-for-connection=true pace=never",
    );
    let mut consumer = command(&pools, example("embed-consumer"));
    let mut consumer = Launch::start(&pools, "consumer", consumer.arg("p"));
    producer.succeeds();
    consumer.succeeds();
    let log = consumer.log();
    let frames: Vec<_> = log.lines().filter(|line| line.contains("mean")).collect();
    assert!(!frames.is_empty(), "{log}");
    // Otherwise they begin with "a copy".
    assert!(
        frames.iter().all(|line| line.starts_with("frame ")),
        "{log}"
    );
}

#[test]
fn the_consumer_ends_when_its_output_is_closed() {
    let pools = prepared();
    let mut producer = command(&pools, example("embed-producer"));
    let _producer = Launch::start(&pools, "producer", producer.arg("p"));
    // Otherwise the consumer prints that it waits.
    until("the pool", || pool_stats(&pools, "p").is_some());
    let mut shell = command(&pools, "bash");
    shell.args(["-c", "set -o pipefail; \"$0\" p | head -n 1"]);
    let mut consumer = Launch::start(
        &pools,
        "consumer",
        shell.arg(example("embed-consumer").as_os_str()),
    );
    consumer.succeeds();
    let log = consumer.log();
    // On a busy machine it also warns that it missed frames.
    let is_expected =
        |line: &&str| line.starts_with("frame ") || line.starts_with("Frames are missed");
    let (lines, others): (Vec<_>, Vec<_>) = log
        .lines()
        .filter(|line| !line.is_empty())
        .partition(is_expected);
    assert_eq!(others, [""; 0], "{log}");
    let frames = lines.iter().filter(|line| line.starts_with("frame "));
    assert_eq!(frames.count(), 1, "{log}");
}

#[test]
fn a_program_in_cpp_reads_frames() {
    let pools = prepared();
    let mut compiler = command(&pools, "sh");
    compiler.current_dir(env!("CARGO_MANIFEST_DIR")).args([
        "-c",
        "c++ -Wall -Wextra -Werror examples/appsink.cpp -o \"$0\" \
         $(pkg-config --cflags --libs gstreamer-app-1.0 gstreamer-video-1.0)",
    ]);
    let program = pools.file("appsink");
    Launch::start(&pools, "compiler", compiler.arg(&program)).succeeds();
    let mut consumer = Launch::start(&pools, "consumer", &mut command(&pools, &program));
    let mut producer = command(&pools, example("embed-producer"));
    let mut producer = Launch::start(&pools, "producer", producer.args(["cam0", "20"]));
    producer.succeeds();
    consumer.succeeds();
    // The brightness of frame 19 is its number.
    let log = consumer.log();
    assert_eq!(log.lines().last(), Some("320x240, first byte 19"), "{log}");
}
