// SPDX-License-Identifier: MPL-2.0

//! Frames on CUDA devices, on the stand-in driver of `xmem-cuda-standin`: there is no GPU in these tests.
#![cfg(feature = "cuda")]

mod support;

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use gst::prelude::*;
use support::*;
use xmem_core::cuda::Device;
use xmem_core::{FrameMeta, Producer, Sticky};
use xmem_cuda_standin::Machine;

const SIZE: usize = 64 * 64;

/// Publishes frames on a device. Does nothing when the tests are run.
#[test]
fn child() {
    let Ok(pool) = std::env::var("XMEM_TEST_POOL") else {
        return;
    };
    let producer = Producer::builder(&pool).history(4).build().unwrap();
    let mut sticky = Sticky::new();
    sticky.set("caps", "video/x-raw, format=(string)GRAY8, width=(int)64, height=(int)64, framerate=(fraction)30/1");
    producer.set_sticky(&sticky).unwrap();
    let device = Device::new(0).unwrap();
    let slot = producer.acquire_cuda(SIZE, &device).unwrap();
    let _published = slot.publish(FrameMeta::new(SIZE)).unwrap();
    println!("\n@published");
    let _ = std::io::stdin().lines().next();
}

#[test]
fn xmemsrc_says_what_it_lacks_for_frames_on_a_device() {
    let pools = Pools::new();
    let machine = Machine::new(pools.file("machine"));
    let mut command = Command::new(std::env::current_exe().unwrap());
    machine.prepare(&mut command);
    let mut producer = command
        .args(["--exact", "child", "--nocapture"])
        .env("XMEM_TEST_POOL", pools.pool("p"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = BufReader::new(producer.stdout.take().unwrap()).lines();
    assert!(
        said.by_ref()
            .map_while(Result::ok)
            .any(|line| line == "@published")
    );
    let pipeline = pools.launch("xmemsrc pool=POOL start-from=oldest ! fakesink");
    let _ = pipeline.0.set_state(gst::State::Playing);
    let (error, text) = pipeline.wait_error();
    assert!(error.matches(gst::CoreError::Negotiation), "{text}");
    assert!(
        text.contains("CUDA device") && text.contains("takes a driver, libgstcuda"),
        "{text}"
    );
    drop(producer.stdin.take());
    assert!(producer.wait().unwrap().success());
}
