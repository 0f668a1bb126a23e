// SPDX-License-Identifier: MPL-2.0

//! `xmem list`

use serde_json::Value;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use tempfile::TempDir;
use xmem_core::{Producer, Sticky};

use crate::support::{Pool, stderr, stdout, xmem};

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
fn list_has_one_row_for_all_writers_of_buffers() {
    let dir = TempDir::new().unwrap();
    // By path: `XMEM_RUNTIME_DIR` is set only for the command.
    let producers = ["b01", "b3f"].map(|writer| {
        let path = dir.path().join(format!("my_pool.{writer}.sock"));
        Producer::builder(path.to_str().unwrap()).build().unwrap()
    });
    let output = xmem(dir.path(), &["list"]);
    let text = stdout(&output);
    assert_eq!(text.lines().count(), 2, "{text}");
    let row = text.lines().nth(1).unwrap();
    for part in ["my_pool ", "live", "buffers of 2 processes"] {
        assert!(row.contains(part), "{part:?} is missing in:\n{text}");
    }
    let output = xmem(dir.path(), &["list", "-f", "json"]);
    let json: Value = serde_json::from_str(stdout(&output)).unwrap();
    assert_eq!(json[0]["name"], "my_pool.b01");
    assert_eq!(json[1]["name"], "my_pool.b3f");
    drop(producers);
}

#[test]
fn list_of_an_empty_dir_succeeds() {
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
fn list_reports_an_unreadable_or_missing_directory() {
    let dir = TempDir::new().unwrap();
    let file = dir.path().join("file");
    std::fs::write(&file, "").unwrap();
    let missing = dir.path().join("missing");
    for command in ["list", "clean"] {
        let text = stderr(&xmem(&file, &[command])).to_owned();
        for part in ["file", "ot a directory", "set XMEM_RUNTIME_DIR"] {
            assert!(text.contains(part), "{part:?} is missing in:\n{text}");
        }
        // Root can read everything.
        if !rustix::process::geteuid().is_root() {
            let locked = dir.path().join("locked");
            let _ = std::fs::create_dir(&locked);
            std::fs::set_permissions(&locked, std::fs::Permissions::from_mode(0o000)).unwrap();
            let text = stderr(&xmem(&locked, &[command])).to_owned();
            assert!(text.contains("Permission denied"), "{text}");
            // Otherwise an ordinary user cannot remove it.
            std::fs::set_permissions(&locked, std::fs::Permissions::from_mode(0o700)).unwrap();
        }
    }
    let output = xmem(&missing, &["list"]);
    let text = stdout(&output);
    assert!(text.contains("missing, which does not exist yet"), "{text}");
    assert_eq!(stdout(&xmem(&missing, &["list", "-f", "json"])), "[]\n");
    assert!(!missing.exists());
}

#[test]
fn list_finds_pools_in_a_directory_that_is_not_utf_8() {
    let dir = TempDir::new().unwrap();
    let dir = dir.path().join(OsStr::from_bytes(b"\xff"));
    std::fs::create_dir(&dir).unwrap();
    drop(UnixListener::bind(dir.join("cam0.sock")).unwrap());
    let json: Value = serde_json::from_str(stdout(&xmem(&dir, &["list", "-f", "json"]))).unwrap();
    assert_eq!(json[0]["name"], "cam0");
    assert!(
        json[0]["path"]
            .as_str()
            .unwrap()
            .ends_with("\u{fffd}/cam0.sock")
    );
    let removed = xmem(&dir, &["clean", "-f", "json"]);
    assert!(
        stdout(&removed).contains("\u{fffd}/cam0.sock"),
        "{removed:?}"
    );
    assert!(!dir.join("cam0.sock").exists());
}

#[test]
fn list_and_show_begin_with_the_format_and_the_rate() {
    let pool = Pool::new();
    let mut sticky = Sticky::new();
    let caps =
        "video/x-raw, format=(string)NV12, width=(int)64, height=(int)48, framerate=(fraction)30/1";
    sticky.set("caps", caps);
    pool.producer.set_sticky(&sticky).unwrap();
    let shown = xmem(pool.dir.path(), &["show", "cam0"]);
    let headline = stdout(&shown).lines().next().unwrap();
    assert!(
        headline.contains("cam0.sock: NV12 64x48 30/1, live, up 0:0"),
        "{headline}"
    );
    assert!(headline.ends_with(" fps"), "{headline}");
    assert!(!stdout(&shown).contains("video/x-raw"));
    let listed = xmem(pool.dir.path(), &["list"]);
    assert!(stdout(&listed).contains("NV12 64x48 30/1"));

    let listed = xmem(pool.dir.path(), &["list", "-f", "json"]);
    let listed: Value = serde_json::from_str(stdout(&listed)).unwrap();
    let shown = xmem(pool.dir.path(), &["show", "cam0", "-f", "json"]);
    let shown: Value = serde_json::from_str(stdout(&shown)).unwrap();
    for json in [&listed[0], &shown] {
        assert_eq!(json["format"], "NV12 64x48 30/1");
        assert!(json["fps"].as_f64().unwrap() > 0.0);
        assert!(json["up_ns"].as_u64().unwrap() > 0);
    }
    assert!(shown["time"].as_f64().unwrap() > 1.7e9);
}
