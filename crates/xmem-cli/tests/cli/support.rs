// SPDX-License-Identifier: MPL-2.0

//! Functions that the tests share: a pool, and the binary.

use std::ffi::OsStr;
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};
use std::time::Duration;
use tempfile::TempDir;
use xmem_core::{Consumer, FrameMeta, Producer, Sticky};

/// A pool with two published frames, one of which is held by a consumer.
pub(crate) struct Pool {
    pub(crate) dir: TempDir,
    pub(crate) producer: Producer,
    pub(crate) consumer: Consumer,
    _held: xmem_core::ReadLease,
}

impl Pool {
    pub(crate) fn new() -> Self {
        let dir = private_dir();
        let path = socket(&dir);
        let producer = Producer::builder(&path).max_held(4).build().unwrap();
        let mut sticky = Sticky::new();
        sticky.set("caps", "video/x-raw,format=NV12");
        // As GStreamer prints a segment.
        sticky.set("segment", r#""GstSegment, format=\"time\\\";""#);
        producer.set_sticky(&sticky).unwrap();
        let mut consumer = Consumer::builder(&path).name("reader").connect().unwrap();
        let held = {
            publish(&producer);
            consumer.receive(Some(Duration::from_secs(60))).unwrap()
        };
        publish(&producer);
        Self {
            dir,
            producer,
            consumer,
            _held: held,
        }
    }

    pub(crate) fn path(&self) -> String {
        socket(&self.dir)
    }
}

/// A directory that a producer accepts as its runtime directory, with any umask.
pub(crate) fn private_dir() -> TempDir {
    let mode = Permissions::from_mode(0o700);
    tempfile::Builder::new()
        .permissions(mode)
        .tempdir()
        .unwrap()
}

pub(crate) fn socket(dir: &TempDir) -> String {
    dir.path().join("cam0.sock").to_str().unwrap().to_owned()
}

pub(crate) fn publish(producer: &Producer) {
    let mut lease = producer.acquire(64).unwrap();
    lease.as_mut_slice().fill(7);
    lease.publish(FrameMeta::new(64)).unwrap();
}

pub(crate) fn xmem<A: AsRef<OsStr>>(runtime_dir: &Path, args: &[A]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_xmem"))
        .args(args)
        .env("XMEM_RUNTIME_DIR", runtime_dir)
        .output()
        .unwrap()
}

pub(crate) fn stdout(output: &Output) -> &str {
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    str::from_utf8(&output.stdout).unwrap()
}

pub(crate) fn stderr(output: &Output) -> &str {
    assert_eq!(stdout_of_failure(output), "");
    str::from_utf8(&output.stderr).unwrap()
}

pub(crate) fn stdout_of_failure(output: &Output) -> &str {
    assert_eq!(output.status.code(), Some(1));
    str::from_utf8(&output.stdout).unwrap()
}
