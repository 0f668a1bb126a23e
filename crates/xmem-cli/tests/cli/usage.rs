// SPDX-License-Identifier: MPL-2.0

//! Pools by their path, errors and exit codes.

use serde_json::Value;
use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixListener;
use std::process::Command;
use xmem_core::Producer;

use crate::support::{private_dir, publish, stderr, stdout, xmem};

#[test]
fn a_missing_pool_fails_with_the_path() {
    let dir = private_dir();
    let output = xmem(dir.path(), &["show", "missing"]);
    let text = stderr(&output);
    assert!(text.starts_with("xmem: no producer at "), "{text}");
    assert!(text.contains("missing.sock"), "{text}");
    assert_eq!(text.lines().count(), 1, "{text}");
}

#[test]
fn only_one_option_sets_the_pool() {
    let dir = private_dir();
    let args = ["share", "test", "--pool", "p", "--set", "pool=q"];
    let output = xmem(dir.path(), &args);
    assert_eq!(output.status.code(), Some(2));
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(text.contains("--pool sets the pool"), "{text}");
}

#[test]
fn a_failure_without_a_writable_stderr_exits_with_1() {
    let dir = private_dir();
    let status = Command::new(env!("CARGO_BIN_EXE_xmem"))
        .args(["show", "missing"])
        .env("XMEM_RUNTIME_DIR", dir.path())
        .stderr(File::options().write(true).open("/dev/full").unwrap())
        .status()
        .unwrap();
    assert_eq!(status.code(), Some(1));
}

#[test]
fn a_file_that_is_not_a_socket_is_not_a_pool() {
    let dir = private_dir();
    let file = dir.path().join("letter.sock");
    std::fs::write(&file, "to my mother").unwrap();
    let output = xmem(dir.path(), &["list", "-f", "json"]);
    assert_eq!(stdout(&output), "[]\n");
    stdout(&xmem(dir.path(), &["clean"]));
    let output = xmem(dir.path(), &["clean", "letter"]);
    assert!(stderr(&output).contains("letter.sock"), "{output:?}");
    assert!(file.exists());
}

#[test]
fn files_with_invalid_pool_names_are_ignored() {
    let dir = private_dir();
    let names: [&[u8]; 5] = [
        b"\xff\xfe.sock",
        b"\xff\xfe.lock",
        b"a\x1b[31m.sock",
        b"a\x1b[31m.lock",
        b"b\x1b[31m.lock",
    ];
    let paths = names.map(|name| dir.path().join(OsStr::from_bytes(name)));
    for path in &paths {
        if path.extension() == Some(OsStr::new("sock")) {
            drop(UnixListener::bind(path).unwrap());
        } else {
            std::fs::write(path, "killed (process 1)").unwrap();
        }
    }
    assert_eq!(stdout(&xmem(dir.path(), &["list", "-f", "json"])), "[]\n");
    assert!(stdout(&xmem(dir.path(), &["list"])).starts_with("no pools in "));
    stdout(&xmem(dir.path(), &["clean"]));
    assert!(paths.iter().all(|path| path.exists()));
}

#[test]
fn a_pool_is_named_by_a_path_that_is_not_utf_8() {
    let dir = private_dir();
    let path = dir.path().join(OsStr::from_bytes(b"\xff.sock"));
    let producer = Producer::builder(&path).build().unwrap();
    publish(&producer);
    let run = |words: &[&str]| {
        let words = words.iter().map(OsStr::new);
        let args: Vec<_> = words.chain([path.as_os_str()]).collect();
        xmem(dir.path(), &args)
    };
    let json: Value = serde_json::from_str(stdout(&run(&["show", "-f", "json"]))).unwrap();
    assert_eq!(json["published"], 1);
    stdout(&run(&["watch", "-n", "1"]));
    assert!(stderr(&run(&["clean"])).contains("has a producer"));
}

#[test]
fn a_bad_name_fails_with_the_reason() {
    let dir = private_dir();
    for (name, word) in [("", "empty"), ("a\nb", "control character")] {
        let output = xmem(dir.path(), &["show", name]);
        assert!(stderr(&output).contains(word), "{output:?}");
    }
}

#[test]
fn wrong_usage_is_exit_code_2() {
    let dir = private_dir();
    for args in [
        &["frobnicate"][..],
        &["show"],
        &["watch", "a", "--count", "0"],
        &["watch", "a", "--interval", "0"],
        &["watch", "a", "--interval", "NaN"],
        &["list", "-f", "xml"],
    ] {
        let output = xmem(dir.path(), args);
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        assert!(output.stdout.is_empty());
    }
}
