// SPDX-License-Identifier: MPL-2.0

//! Frames on a CUDA device. The tests use a driver that imitates the real one.

use std::process::Command;

use xmem_core::cuda::{Device, Stream};
use xmem_core::{SlotSpec, Sticky};
use xmem_cuda_standin::Machine;

use crate::support::*;

/// Set for the process that uses the device.
const INSIDE: &str = "XMEM_BRIDGE_TEST_DEVICE";
const SIZE: usize = 300_000;

/// Starts this program again, because the driver is loaded when a process starts.
#[test]
fn frames_on_a_device_are_downloaded_and_counted() {
    let hosts = Hosts::new();
    let machine = Machine::new(hosts.path().join("machine"));
    let mut inside = Command::new(std::env::current_exe().unwrap());
    inside.args(["--exact", "device::process", "--ignored", "--nocapture"]);
    machine.prepare(&mut inside);
    let output = inside.env(INSIDE, "1").output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}");
    assert_eq!(machine.violations(), Vec::<String>::new());
}

#[test]
#[ignore = "the process that sees the device, which the other test starts"]
fn process() {
    if std::env::var_os(INSIDE).is_none() {
        return;
    }
    let hosts = Hosts::new();
    let producer = hosts.producer("cam0");
    let mut sticky = Sticky::new();
    sticky.set("caps", "video/x-raw(memory:CUDAMemory), format=NV12");
    producer.set_sticky(&sticky).unwrap();
    let (export, _import) = (hosts.export(&["cam0"]), hosts.import("b"));
    let mut consumer = hosts.consumer("b");
    eventually("the exporter joins", || producer.num_consumers() == 1);
    let device = Device::new(0).unwrap();
    for number in 0..5 {
        let spec = SlotSpec::new(SIZE).on(&device);
        let slot = producer.acquire(spec).unwrap();
        let to = slot.cuda().unwrap().ptr();
        xmem_cuda::copy::upload(&device, to, &content(number, SIZE)).unwrap();
        let meta = meta(number, SIZE);
        drop(slot.publish_on(Stream::LEGACY_DEFAULT, meta).unwrap());
        let frame = receive(&mut consumer);
        assert!(!frame.is_on_device());
        let caps = frame.sticky().text("caps").unwrap();
        assert_eq!(caps, "video/x-raw, format=NV12");
        assert_eq!(crate::support::number(&frame), number);
    }
    // Frames of the same pool may be in host memory.
    assert!(publish(&producer, 5, SIZE));
    assert_eq!(number(&receive(&mut consumer)), 5);
    drop(consumer);
    export
        .prints("6 frames, 1 MB, 0 given up, 0 kept back for a key frame, 5 copied from a device");
}
