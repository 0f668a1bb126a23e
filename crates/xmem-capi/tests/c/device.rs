// SPDX-License-Identifier: MPL-2.0

//! Frames on CUDA devices, and DLPack.

use std::process::Stdio;

use xmem_cuda_standin::Machine;

use crate::lab::{Lab, Running, compilers};

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
        let producer = Running::new(command("produce"));
        let (lines, succeeded) = Running::new(command("consume")).end();
        assert!(succeeded && lines == ["read them all"], "{lines:?}");
        let (lines, succeeded) = producer.end();
        assert!(succeeded, "{lines:?}");
        assert_eq!(machine.violations(), [""; 0]);
    }
}
