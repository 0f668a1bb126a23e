// SPDX-License-Identifier: MPL-2.0

//! Frames on CUDA devices, and DLPack.

use std::process::{Command, Stdio};

use xmem_core::{FrameMeta, Producer, VideoLayout, Wait};
use xmem_cuda_standin::Machine;

use crate::lab::{HERE, Lab, PATIENCE, Running, compilers, libraries, not_run};

#[test]
fn streams_write_and_read_frames_on_a_device() {
    for compiler in compilers("device.c") {
        let lab = Lab::new();
        let machine = Machine::new(lab.file("machine"));
        let program = lab.compile(compiler, "tests/c/device.c", &["-ldl"]);
        let command = |role: &str| {
            let mut command = lab.command(&program);
            for (name, value) in machine.environment() {
                if name == "LD_LIBRARY_PATH" {
                    let mut paths = lab.file("").into_os_string();
                    paths.push(":");
                    paths.push(value);
                    command.env(name, paths);
                } else {
                    command.env(name, value);
                }
            }
            command.arg(lab.pool()).arg(role).stdin(Stdio::piped());
            command
        };
        let mut producer = Running::new(command("produce"));
        let mut consumer = Running::new(command("consume"));
        assert_eq!(consumer.line().as_deref(), Some("received the first"));
        // The others are published, received and released before they are written.
        let hold = machine.hold(Some(producer.pid()));
        producer.go_on();
        assert_eq!(consumer.line().as_deref(), Some("received them all"));
        drop(hold);
        let (lines, succeeded) = consumer.end();
        assert!(succeeded && lines == ["read them all"], "{lines:?}");
        let (lines, succeeded) = producer.end();
        assert!(succeeded, "{lines:?}");
        assert_eq!(machine.violations(), [""; 0]);
    }
}

#[test]
fn numpy_reads_planes_by_dlpack() {
    // Tensors that are marked as read-only need NumPy 2.1.
    const IS_NEW: &str = "import numpy, sys; sys.exit(not hasattr(numpy, 'from_dlpack') or \
                          tuple(map(int, numpy.__version__.split('.')[:2])) < (2, 1))";
    let of_tests = libraries().join("../python/venv/bin/python");
    let mut pythons = [of_tests, "python3".into()].into_iter();
    let is_new = |python: &std::path::PathBuf| {
        let tried = Command::new(python).args(["-c", IS_NEW]).output();
        tried.is_ok_and(|output| output.status.success())
    };
    let Some(python) = pythons.find(is_new) else {
        not_run("NumPy 2.1 or newer is missing: `cargo xtask python` installs it");
        return;
    };
    let lab = Lab::new();
    let producer = Producer::builder(lab.pool()).build().unwrap();
    let mut command = lab.command(&python);
    command
        .arg(std::path::Path::new(HERE).join("tests/c/tensor.py"))
        .arg(libraries().join("libxmem.so"))
        .arg(lab.pool());
    let reader = Running::new(command);
    producer
        .wait_for_consumers(1, Wait::from(PATIENCE))
        .unwrap();
    let layout = VideoLayout::new("NV12", 322, 242).unwrap();
    let size = layout.size().unwrap();
    let mut slot = producer.acquire(size).unwrap();
    slot.as_mut_slice().fill(5);
    slot.as_mut_slice()[layout.offsets[1] as usize..].fill(9);
    let mut meta = FrameMeta::new(size);
    meta.layout_mut().video = Some(layout);
    slot.publish(meta).unwrap();
    let (lines, succeeded) = reader.end();
    let expected = [
        "(242, 322) uint8 (324, 1) False 5 5",
        "(121, 161, 2) uint8 (324, 2, 1) False 9 9",
    ];
    assert!(succeeded && lines == expected, "{lines:?}");
}
