// SPDX-License-Identifier: MPL-2.0

//! `xmem clean`

use serde_json::Value;
use std::os::unix::net::UnixListener;
use std::path::Path;
use xmem_core::{Backing, Producer};

use crate::support::{Pool, private_dir, publish, socket, stderr, stdout, stdout_of_failure, xmem};

#[test]
fn clean_removes_only_the_files_of_a_killed_producer() {
    let pool = Pool::new();
    let dir = pool.dir.path();
    let left = |name: &str| {
        drop(UnixListener::bind(dir.join(format!("{name}.sock"))).unwrap());
        std::fs::write(dir.join(format!("{name}.lock")), "killed (process 1)").unwrap();
    };
    let files = || {
        let mut names: Vec<_> = std::fs::read_dir(dir)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    };
    let live = ["cam0.lock", "cam0.sock"];
    for name in ["a", "b", "c"] {
        left(name);
    }
    let output = xmem(dir, &["clean", "b"]);
    let text = stdout(&output);
    assert_eq!(text.lines().count(), 2, "{text}");
    assert!(text.contains("b.sock") && text.contains("b.lock"), "{text}");
    let output = xmem(dir, &["clean", "-f", "json"]);
    let json: Value = serde_json::from_str(stdout(&output)).unwrap();
    // The command may also find files of other tests.
    let of_here = |path: &&Value| path.as_str().unwrap().starts_with(dir.to_str().unwrap());
    let count = json.as_array().unwrap().iter().filter(of_here).count();
    assert_eq!(count, 4, "{json}");
    assert_eq!(files(), live);
    let output = xmem(dir, &["clean", "b"]);
    assert_eq!(stdout(&output), "nothing to remove\n");
    stdout(&xmem(dir, &["clean"]));
    assert_eq!(files(), live);

    // A pool with a producer is reported. The others are removed nevertheless.
    left("d");
    let output = xmem(dir, &["clean", "cam0", "d"]);
    assert!(stdout_of_failure(&output).contains("d.sock"), "{output:?}");
    let text = str::from_utf8(&output.stderr).unwrap();
    assert!(text.contains("has a producer"), "{text}");
    assert_eq!(files(), live);
    publish(&pool.producer);
    stdout(&xmem(dir, &["show", "cam0"]));
}

/// The segments of this process in /dev/shm.
fn own_segments() -> Vec<String> {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines()
        .filter_map(|line| Some(line[line.find("/dev/shm/xmem-")?..].to_owned()))
        .collect()
}

#[test]
fn clean_removes_a_lock_file_without_a_socket() {
    let dir = private_dir();
    let path = |name: &str| dir.path().join(name);
    std::fs::write(path("a.lock"), "killed (process 1)").unwrap();
    std::fs::write(path("notes.lock"), "another program's").unwrap();
    let output = xmem(dir.path(), &["clean"]);
    assert!(stdout(&output).contains("a.lock"), "{output:?}");
    assert!(!path("a.lock").exists());
    assert!(path("notes.lock").exists());
}

#[test]
fn clean_removes_the_files_of_a_process_that_joined_a_channel() {
    let dir = private_dir();
    let path = |name: &str| dir.path().join(name);
    let live = path("jobs.sock.0123456789abcdef");
    let _live = Producer::builder(&live).build().unwrap();
    let killed = "jobs.sock.fedcba9876543210";
    drop(UnixListener::bind(path(killed)).unwrap());
    let lock = path(&format!("{killed}.xmem.lock"));
    std::fs::write(&lock, "killed (process 1)").unwrap();
    let output = xmem(dir.path(), &["clean"]);
    assert!(stdout(&output).contains(killed), "{output:?}");
    assert!(!path(killed).exists() && !lock.exists());
    assert!(live.exists());
}

#[test]
fn clean_leaves_sockets_of_other_programs_alone() {
    let (dir, elsewhere) = (private_dir(), private_dir());
    let path = elsewhere.path().join("agent.sock");
    let lock = elsewhere.path().join("agent.lock");
    drop(UnixListener::bind(&path).unwrap());
    let clean = || xmem(dir.path(), &["clean", path.to_str().unwrap()]);
    assert!(stderr(&clean()).contains("not removed"));
    // Other programs also have empty lock files.
    std::fs::write(&lock, "").unwrap();
    assert!(stderr(&clean()).contains("not removed"));
    assert!(path.exists() && lock.exists());
    std::fs::write(&lock, "killed (process 1)").unwrap();
    stdout(&clean());
    assert!(!path.exists() && !lock.exists());
}

#[test]
fn clean_removes_segments_without_a_pool() {
    let dir = private_dir();
    let producer = Producer::builder(socket(&dir)).backing(Backing::PosixShm);
    let producer = producer.build().unwrap();
    publish(&producer);
    let live = own_segments();
    assert_eq!(live.len(), 1);
    let (head, _) = live[0].rsplit_once('.').unwrap();
    // Segments of a killed producer, and files with similar names.
    let orphan = format!("{head}.{:016x}", std::process::id());
    let other = format!("{orphan}.txt");
    for path in [&orphan, &other] {
        std::fs::write(path, "").unwrap();
    }
    let empty = private_dir();
    stdout(&xmem(empty.path(), &["clean"]));
    let is_left = [&orphan, &other, &live[0]].map(|path| Path::new(path).exists());
    std::fs::remove_file(other).unwrap();
    assert_eq!(is_left, [false, true, true]);
}

#[test]
fn verbose_prints_each_step() {
    let dir = private_dir();
    let producer = Producer::builder(socket(&dir)).backing(Backing::PosixShm);
    let producer = producer.build().unwrap();
    publish(&producer);
    let live = own_segments().remove(0);
    drop(producer);
    let (head, _) = live.rsplit_once('.').unwrap();
    let orphan = format!("{head}.{:016x}", std::process::id());
    for (args, is_said) in [
        (&["clean", "cam0"][..], false),
        (&["-v", "clean", "cam0"], true),
    ] {
        std::fs::write(&orphan, "").unwrap();
        let output = xmem(dir.path(), args);
        // Another test that removes stale segments of all pools may have removed it.
        if stdout(&output).contains(&orphan) {
            let text = str::from_utf8(&output.stderr).unwrap();
            assert_eq!(text.contains("xmem: info: removing"), is_said, "{text}");
        }
    }
}
