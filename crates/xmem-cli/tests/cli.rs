// SPDX-License-Identifier: MPL-2.0

//! The real binary against a real pool that this process makes.

use std::path::Path;
use std::process::{Command, Output};
use std::time::Duration;

use serde_json::Value;
use tempfile::TempDir;
use xmem_core::{Consumer, FrameMeta, Producer, Sticky};

/// A pool of its own for each test, with two frames published and one of them held by a consumer.
struct Pool {
    dir: TempDir,
    producer: Producer,
    _consumer: Consumer,
    _held: xmem_core::ReadLease,
}

impl Pool {
    fn new() -> Self {
        let dir = TempDir::new().unwrap();
        let path = socket(&dir);
        let producer = Producer::builder(&path).max_held(4).build().unwrap();
        let mut sticky = Sticky::new();
        sticky.set("caps", "video/x-raw,format=NV12");
        producer.set_sticky(&sticky).unwrap();
        let mut consumer = Consumer::builder(&path).name("reader").connect().unwrap();
        let held = {
            publish(&producer);
            consumer.receive(Some(Duration::from_secs(10))).unwrap()
        };
        publish(&producer);
        Self {
            dir,
            producer,
            _consumer: consumer,
            _held: held,
        }
    }

    fn path(&self) -> String {
        socket(&self.dir)
    }
}

fn socket(dir: &TempDir) -> String {
    dir.path().join("cam0.sock").to_str().unwrap().to_owned()
}

fn publish(producer: &Producer) {
    let mut lease = producer.acquire(64).unwrap();
    lease.as_mut_slice()[..64].fill(7);
    lease.publish(FrameMeta::new(64)).unwrap();
}

fn xmem(runtime_dir: &Path, args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_xmem"))
        .args(args)
        .env("XMEM_RUNTIME_DIR", runtime_dir)
        .output()
        .unwrap()
}

fn stdout(output: &Output) -> &str {
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    str::from_utf8(&output.stdout).unwrap()
}

fn stderr(output: &Output) -> &str {
    assert_eq!(stdout_of_failure(output), "");
    str::from_utf8(&output.stderr).unwrap()
}

fn stdout_of_failure(output: &Output) -> &str {
    assert_eq!(output.status.code(), Some(1));
    str::from_utf8(&output.stdout).unwrap()
}

#[test]
fn show_prints_the_pool_and_its_consumers() {
    let pool = Pool::new();
    let output = xmem(pool.dir.path(), &["show", &pool.path()]);
    let text = stdout(&output);
    for part in [
        "2 published",
        "live",
        "video/x-raw,format=NV12",
        "reader",
        "HELD",
    ] {
        assert!(text.contains(part), "{part:?} is missing in:\n{text}");
    }
}

#[test]
fn show_as_json_is_what_the_producer_says() {
    let pool = Pool::new();
    let output = xmem(pool.dir.path(), &["show", &pool.path(), "--format", "json"]);
    let json: Value = serde_json::from_str(stdout(&output)).unwrap();
    assert_eq!(json["published"], 2);
    assert_eq!(json["pid"], std::process::id());
    assert_eq!(json["consumers"][0]["name"], "reader");
    assert_eq!(json["consumers"][0]["held"], 1);
    assert_eq!(json["consumers"][0]["received"], 1);
    assert_eq!(json["published"], pool.producer.stats().published);
}

#[test]
fn list_finds_the_pools_of_the_runtime_dir() {
    let pool = Pool::new();
    let output = xmem(pool.dir.path(), &["list"]);
    let text = stdout(&output);
    let row = text.lines().nth(1).unwrap();
    for part in ["cam0", "live", &pool.path()] {
        assert!(row.contains(part), "{part:?} is missing in:\n{text}");
    }

    let output = xmem(pool.dir.path(), &["list", "--format", "json"]);
    let json: Value = serde_json::from_str(stdout(&output)).unwrap();
    assert_eq!(json.as_array().unwrap().len(), 1);
    assert_eq!(json[0]["name"], "cam0");
    assert_eq!(json[0]["state"], "live");
    assert_eq!(json[0]["consumers"], 1);
}

#[test]
fn list_of_an_empty_dir_is_no_failure() {
    let dir = TempDir::new().unwrap();
    let output = xmem(dir.path(), &["list"]);
    assert!(stdout(&output).starts_with("no pools in "));
    let output = xmem(dir.path(), &["list", "-f", "json"]);
    assert_eq!(stdout(&output), "[]\n");
}

#[test]
fn list_skips_other_files_and_names_a_stale_socket() {
    let dir = TempDir::new().unwrap();
    std::fs::write(dir.path().join("notes.txt"), "").unwrap();
    drop(std::os::unix::net::UnixListener::bind(dir.path().join("old.sock")).unwrap());
    let output = xmem(dir.path(), &["list", "-f", "json"]);
    let json: Value = serde_json::from_str(stdout(&output)).unwrap();
    assert_eq!(json.as_array().unwrap().len(), 1);
    assert_eq!(json[0]["name"], "old");
    assert_eq!(json[0]["state"], "stale");
    assert_eq!(json[0].get("pid"), None);
}

#[test]
fn watch_repeats_and_counts_frames_per_second() {
    let pool = Pool::new();
    let output = xmem(pool.dir.path(), &["watch", &pool.path(), "--count", "2"]);
    let text = stdout(&output);
    assert_eq!(text.matches("FPS").count(), 2, "{text}");
    assert_eq!(text.matches("reader").count(), 2, "{text}");
    assert!(!text.contains('\x1b'), "cursor tricks in a pipe: {text:?}");

    let output = xmem(
        pool.dir.path(),
        &["watch", &pool.path(), "-n", "2", "-f", "json"],
    );
    let lines: Vec<Value> = stdout(&output)
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(lines.len(), 2);
    assert_eq!(lines[1]["published"], 2);
}

#[test]
fn a_pool_that_does_not_exist_is_a_failure_that_says_where_it_looked() {
    let dir = TempDir::new().unwrap();
    for command in ["show", "watch"] {
        let output = xmem(dir.path(), &[command, "nobody"]);
        let text = stderr(&output);
        assert!(text.starts_with("xmem: no producer at "), "{text}");
        assert!(text.contains("nobody.sock"), "{text}");
        assert_eq!(text.lines().count(), 1, "{text}");
    }
}

#[test]
fn a_bad_name_is_a_failure_that_says_what_is_wrong() {
    let dir = TempDir::new().unwrap();
    for (name, word) in [("", "empty"), ("a\nb", "control character")] {
        let output = xmem(dir.path(), &["show", name]);
        assert!(stderr(&output).contains(word), "{output:?}");
    }
}

#[test]
fn wrong_usage_is_exit_code_2() {
    let dir = TempDir::new().unwrap();
    for args in [
        &["frobnicate"][..],
        &["show"],
        &["watch", "a", "--count", "0"],
        &["list", "-f", "xml"],
    ] {
        let output = xmem(dir.path(), args);
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        assert!(output.stdout.is_empty());
    }
}
