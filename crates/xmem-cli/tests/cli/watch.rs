// SPDX-License-Identifier: MPL-2.0

//! `xmem watch`

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};
use serde_json::Value;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;
use xmem_core::{BufferPool, Producer};

use crate::support::{Pool, publish, socket, stdout, xmem};

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
fn watch_of_a_pool_of_buffers_names_the_pools_to_watch() {
    let dir = TempDir::new().unwrap();
    let name = dir.path().join("my_pool");
    let name = name.to_str().unwrap();
    let pool = BufferPool::new(name).unwrap();
    pool.acquire_cpu(1000).unwrap().forget().unwrap();
    let output = xmem(dir.path(), &["watch", name]);
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains(&format!("`xmem show {name}`")), "{text}");
    let (_, writer) = text.trim_end().rsplit_once(' ').unwrap();
    assert_eq!(BufferPool::name_of_writer(writer), Some(name));
}

#[test]
fn watch_waits_for_the_first_producer_and_for_the_next() {
    let dir = TempDir::new().unwrap();
    let mut watch = Command::new(env!("CARGO_BIN_EXE_xmem"))
        .args(["watch", "cam0", "-i", "0.05", "-f", "json"])
        .env("XMEM_RUNTIME_DIR", dir.path())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(watch.stderr.take().unwrap()).lines();
    let mut shown = BufReader::new(watch.stdout.take().unwrap()).lines();
    let is_waiting =
        |line: &str| line.starts_with("xmem: no producer at ") && line.contains("waiting");
    let line = lines.next().unwrap().unwrap();
    assert!(is_waiting(&line), "{line}");
    // The command has waited for some time when three connections got no answer.
    let path = socket(&dir);
    let (family, kind, flags) = (
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC,
    );
    let deaf = rustix::net::socket_with(family, kind, flags, None).unwrap();
    rustix::net::bind(&deaf, &SocketAddrUnix::new(&path).unwrap()).unwrap();
    rustix::net::listen(&deaf, 4).unwrap();
    for _ in 0..3 {
        drop(rustix::net::accept(&deaf).unwrap());
    }
    drop(deaf);
    // A child that another test is starting inherits the socket until its exec.
    let end = Instant::now() + Duration::from_secs(60);
    let producer = loop {
        match Producer::builder(socket(&dir)).build() {
            Ok(producer) => break producer,
            Err(error) => assert!(Instant::now() < end, "{error}"),
        }
    };
    let published =
        |line: String| serde_json::from_str::<Value>(&line).unwrap()["published"].clone();
    assert_eq!(published(shown.next().unwrap().unwrap()), 0);
    drop(producer);
    // On a busy machine a query may have been slow before.
    assert!(lines.any(|line| is_waiting(&line.unwrap())));
    let producer = Producer::builder(socket(&dir)).build().unwrap();
    publish(&producer);
    assert!(shown.any(|line| published(line.unwrap()) == 1));
    watch.kill().unwrap();
    watch.wait().unwrap();
    // Once for each change. On a busy machine the last query may have been slow.
    assert!(lines.count() <= 1);
}

#[test]
fn watch_cuts_its_lines_where_the_terminal_ends() {
    const COLUMNS: u16 = 40;
    let pool = Pool::new();
    let terminal = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    grantpt(&terminal).unwrap();
    unlockpt(&terminal).unwrap();
    let size = Winsize {
        ws_row: 24,
        ws_col: COLUMNS,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    tcsetwinsize(&terminal, size).unwrap();
    let side = ptsname(&terminal, Vec::new()).unwrap();
    let side = File::options()
        .read(true)
        .write(true)
        .open(side.to_str().unwrap())
        .unwrap();
    let status = Command::new(env!("CARGO_BIN_EXE_xmem"))
        .args(["watch", &pool.path(), "-n", "1"])
        .stdout(side.try_clone().unwrap())
        .status()
        .unwrap();
    assert!(status.success());
    // The terminal's content arrives in parts, followed by an error, because its other side is closed.
    drop(side);
    let mut bytes = Vec::new();
    let mut piece = [0; 4096];
    while let Ok(len @ 1..) = rustix::io::read(&terminal, &mut piece) {
        bytes.extend_from_slice(&piece[..len]);
    }
    let text = str::from_utf8(&bytes).unwrap();
    let lines: Vec<_> = text.split("\x1b[J").last().unwrap().lines().collect();
    assert!(lines.len() >= 3, "{text:?}");
    for line in lines {
        assert!(line.chars().count() <= COLUMNS.into(), "{line:?}");
    }
}
