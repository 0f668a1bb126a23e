// SPDX-License-Identifier: MPL-2.0

//! Frames on CUDA devices if GStreamer cannot provide them as CUDA memory: without a driver, or with an old libgstcuda. The devices
//! are those of the stand-in driver `xmem-cuda-standin`, without a GPU.
#![cfg(feature = "cuda")]
#![allow(unreachable_pub)] // a program of its own

#[path = "../crates/xmem-core/tests/support/child.rs"]
#[allow(dead_code, unsafe_code)]
mod child;
#[path = "cuda_elements/gstcuda.rs"]
#[allow(dead_code)]
mod gstcuda;
mod support;

use std::process::Command;

use child::{Child, read_line, reply, role};
use gst::prelude::*;
use support::*;
use xmem_core::cuda::Device;
use xmem_core::{FrameMeta, Producer, SlotSpec, Sticky};
use xmem_cuda_standin::Machine;

const SIZE: usize = 64 * 64 * 3 / 2;
const CAPS: &str =
    "video/x-raw, format=(string)NV12, width=(int)64, height=(int)64, framerate=(fraction)30/1";
const ON_DEVICE: &str =
    "video/x-raw(memory:CUDAMemory), format=(string)NV12, width=(int)64, height=(int)64";

/// The bytes of a frame.
fn picture(number: u8) -> Vec<u8> {
    (0..SIZE).map(|at| (at % 251) as u8 ^ number).collect()
}

/// Runs a role in a child process. Does nothing in a normal test run.
#[test]
fn child() {
    let Some((role, pool)) = role() else { return };
    match &*role {
        "producer" => produce(&pool),
        "receiver" => receive(&pool),
        other => panic!("no role {other:?}"),
    }
}

/// Publishes a frame on a device for each line of input.
fn produce(pool: &str) {
    let producer = Producer::builder(pool).history(4).build().unwrap();
    let mut sticky = Sticky::new();
    sticky.set("caps", CAPS);
    producer.set_sticky(&sticky).unwrap();
    let device = Device::new(0).unwrap();
    for number in 0.. {
        let slot = producer.acquire(SlotSpec::new(SIZE).on(&device)).unwrap();
        gstcuda::upload(slot.cuda().unwrap().ptr(), &picture(number));
        slot.publish(FrameMeta::new(SIZE)).unwrap();
        reply("published");
        read_line();
    }
}

/// Runs `xmemsrc` with the properties from standard input, and prints the result.
fn receive(pool: &str) {
    let pools = Pools::new();
    reply("ready");
    loop {
        let properties = read_line();
        let description = format!(
            "xmemsrc name=src pool={pool} start-from=oldest num-buffers=1 {properties} ! appsink name=app sync=false"
        );
        let pipeline = pools.launch(&description);
        let app: gst_app::AppSink = pipeline.by_name("app").downcast().unwrap();
        pipeline.play();
        match app.try_pull_sample(SOON) {
            Some(sample) => {
                let is_whole = bytes(sample.buffer().unwrap()) == picture(0);
                let copied = pipeline.stat("src", "copied");
                reply(format_args!(
                    "{is_whole} {copied} {}",
                    sample.caps().unwrap()
                ));
            }
            None => reply(pipeline.wait_error().1.replace('\n', " ")),
        }
    }
}

fn on(machine: &Machine, role: &str, pools: &Pools, variables: &[(&str, &str)]) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    machine.prepare(&mut command);
    // What it makes there is removed with the pools, because it ends without a chance to.
    command.env("TMPDIR", pools.path());
    command.envs(variables.iter().copied());
    Child::from(command, role, &pools.pool("p"))
}

/// Whether an error names a missing library.
fn names_the_missing_library(text: &str) -> bool {
    let parts = [
        "CUDA device",
        "driver",
        "libgstcuda",
        "1.24",
        "download=true",
        "xmemcuda:4",
    ];
    parts.into_iter().all(|part| text.contains(part))
}

#[test]
fn xmemsrc_names_the_missing_library_for_frames_on_a_device() {
    let pools = Pools::new();
    let machine = Machine::new(pools.file("machine"));
    let mut producer = on(&machine, "producer", &pools, &[]);
    assert_eq!(producer.reply(), "published");
    // This process has no driver.
    let pipeline = pools.launch("xmemsrc pool=POOL start-from=oldest ! fakesink");
    let _ = pipeline.0.set_state(gst::State::Playing);
    let (error, text) = pipeline.wait_error();
    assert!(error.matches(gst::CoreError::Negotiation), "{text}");
    assert!(names_the_missing_library(&text), "{text}");
    // Downloading also fails.
    let pipeline = pools.launch("xmemsrc pool=POOL start-from=oldest download=true ! fakesink");
    let _ = pipeline.0.set_state(gst::State::Playing);
    let (_, text) = pipeline.wait_error();
    assert_contains(&text, "CUDA");
}

#[test]
fn with_an_old_libgstcuda_frames_can_be_downloaded() {
    let pools = Pools::new();
    let machine = Machine::new(pools.file("machine"));
    let mut producer = on(&machine, "producer", &pools, &[]);
    assert_eq!(producer.reply(), "published");
    let log = pools.file("log");
    let debug = [
        ("GST_DEBUG", "xmemcuda:4"),
        ("GST_DEBUG_FILE", log.to_str().unwrap()),
        ("GST_DEBUG_NO_COLOR", "1"),
    ];
    let mut receiver = on(&machine, "receiver", &pools, &debug);
    assert_eq!(receiver.reply(), "ready");
    receiver.send("download=true");
    assert_eq!(receiver.reply(), format!("true 1 {CAPS}"));
    receiver.send("");
    let reply = receiver.reply();
    if reply.contains("memory:CUDAMemory") {
        return not_run("GStreamer's own CUDA library is new enough here");
    }
    assert!(names_the_missing_library(&reply), "{reply}");
    let log = std::fs::read_to_string(log).unwrap();
    let line = log.lines().find(|line| line.contains("memory:CUDAMemory"));
    let line = line.unwrap_or_else(|| panic!("nothing in {log}"));
    assert_contains(line, "libgstcuda");
}

#[test]
fn without_a_driver_cuda_memory_is_not_offered() {
    let pools = Pools::new();
    let pipeline = pools.launch("identity ! xmemsink name=sink pool=POOL");
    let sink = pipeline.sink();
    let pad = sink.static_pad("sink").unwrap();
    let on_device: gst::Caps = ON_DEVICE.parse().unwrap();
    assert!(!pad.query_accept_caps(&on_device));
    assert!(pad.query_caps(Some(&on_device)).is_empty());
    let mut both: gst::Caps = ON_DEVICE.parse().unwrap();
    both.make_mut().append(CAPS.parse::<gst::Caps>().unwrap());
    assert_eq!(
        pad.query_caps(Some(&both)),
        CAPS.parse::<gst::Caps>().unwrap()
    );
    // There is no context to share.
    let mut query = gst::query::Context::new("gst.cuda.context");
    assert!(!pad.query(&mut query));
    // All other memory is accepted.
    for caps in [
        CAPS,
        "video/x-raw(memory:DMABuf), format=(string)DMA_DRM",
        "audio/x-raw",
    ] {
        assert!(pad.query_accept_caps(&caps.parse().unwrap()), "{caps}");
    }
}
