// SPDX-License-Identifier: MPL-2.0

//! `xmem list --remote`, with a program in place of xmem-bridge. The tests of the bridge run it with the real one.

use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;
use tempfile::TempDir;

use crate::support::{stderr, stdout};

/// Writes a shell script as xmem-bridge into a directory. Another process writes it: a child of a parallel test would inherit
/// the open file of this one, and no process can run a file that is open for writing.
fn bridge(dir: &Path, script: &str) {
    const WRITE: &str = "printf '#!/bin/sh\\n%s\\n' \"$1\" > \"$0\" && chmod 755 \"$0\"";
    let mut write = Command::new("sh");
    write
        .args(["-c", WRITE])
        .arg(dir.join("xmem-bridge"))
        .arg(script);
    assert!(write.status().unwrap().success());
}

/// Lists the pools of a host, with this directory alone on PATH.
fn list(path: &Path, args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_xmem"));
    command.args(["list", "--remote", "hostA"]).args(args);
    command.env("PATH", path).output().unwrap()
}

#[test]
fn a_missing_bridge_is_named_with_the_remedy() {
    let dir = TempDir::new().unwrap();
    let output = list(dir.path(), &["--trusted-network"]);
    let text = stderr(&output);
    for part in ["xmem-bridge", "cargo install --locked --path bridge"] {
        assert!(text.contains(part), "{text}");
    }
    assert_eq!(text.lines().count(), 1, "{text}");
}

#[test]
fn the_pools_are_rows_and_objects() {
    let dir = TempDir::new().unwrap();
    bridge(dir.path(), "echo cam0; echo cam1");
    let output = list(dir.path(), &["--trusted-network"]);
    let words = stdout(&output).split_whitespace().collect::<Vec<_>>();
    let expected = ["POOL", "SOURCE", "cam0", "cam0@hostA", "cam1", "cam1@hostA"];
    assert_eq!(words, expected);
    let output = list(dir.path(), &["--trusted-network", "-f", "json"]);
    let json: Value = serde_json::from_str(stdout(&output)).unwrap();
    let object =
        |name: &str| serde_json::json!({ "name": name, "source": format!("{name}@hostA") });
    assert_eq!(json, Value::Array(vec![object("cam0"), object("cam1")]));
}

#[test]
fn the_bridge_gets_the_options_and_its_error_is_printed() {
    let dir = TempDir::new().unwrap();
    bridge(dir.path(), "echo \"xmem-bridge: got $*\" >&2; exit 1");
    let files = [
        "--certificate",
        "b.pem",
        "--key",
        "b.key",
        "--server-ca",
        "ca.pem",
    ];
    let output = list(dir.path(), &files);
    let expected = "xmem: cannot list the pools of hostA: got list --certificate b.pem --key b.key --server-ca ca.pem -- hostA\n";
    assert_eq!(stderr(&output), expected);
    let output = list(dir.path(), &["--trusted-network"]);
    assert!(stderr(&output).ends_with(": got list --trusted-network -- hostA\n"));
}

#[test]
fn options_of_another_host_need_one() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_xmem"));
    let output = command
        .args(["list", "--trusted-network"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
}
