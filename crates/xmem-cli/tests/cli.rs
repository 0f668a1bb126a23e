// SPDX-License-Identifier: MPL-2.0

//! The real binary against a real pool that this process makes.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};
use serde_json::Value;
use tempfile::TempDir;
use xmem_core::{Backing, Canceller, Consumer, Delivery, FrameMeta, Producer, Sticky};

/// A pool of its own for each test, with two frames published and one of them held by a consumer.
struct Pool {
    dir: TempDir,
    producer: Producer,
    consumer: Consumer,
    _held: xmem_core::ReadLease,
}

impl Pool {
    fn new() -> Self {
        let dir = TempDir::new().unwrap();
        let path = socket(&dir);
        let producer = Producer::builder(&path).max_held(4).build().unwrap();
        let mut sticky = Sticky::new();
        sticky.set("caps", "video/x-raw,format=NV12");
        // As GStreamer writes a segment.
        sticky.set("segment", r#""GstSegment, format=\"time\\\";""#);
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
            consumer,
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
    lease.as_mut_slice().fill(7);
    lease.publish(FrameMeta::new(64)).unwrap();
}

fn xmem<A: AsRef<OsStr>>(runtime_dir: &Path, args: &[A]) -> Output {
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
    let output = xmem(pool.dir.path(), &["show", "-v", &pool.path()]);
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
fn show_as_json_prints_the_producers_statistics() {
    let pool = Pool::new();
    let output = xmem(pool.dir.path(), &["show", &pool.path(), "--format", "json"]);
    let json: Value = serde_json::from_str(stdout(&output)).unwrap();
    assert_eq!(json["published"], 2);
    assert_eq!(json["pid"], std::process::id());
    // The sticky state by its keys, each value quoted by JSON only.
    assert_eq!(json["sticky"]["caps"], "video/x-raw,format=NV12");
    assert_eq!(json["sticky"]["segment"], r#"GstSegment, format="time\";"#);
    assert_eq!(json["consumers"][0]["name"], "reader");
    assert_eq!(json["consumers"][0]["held"], 1);
    assert_eq!(json["consumers"][0]["received"], 1);
    assert_eq!(json["published"], pool.producer.stats().published);
}

/// The value in a column of the row of a consumer, in a table whose other cells have no blanks in them.
fn cell<'a>(text: &'a str, row: &str, column: &str) -> &'a str {
    let words = |line: &'a str| {
        line.split("  ")
            .map(str::trim)
            .filter(|word| !word.is_empty())
    };
    let heading = text.lines().find(|line| line.contains("MISSED")).unwrap();
    let column = words(heading).position(|word| word == column).unwrap();
    // The columns that a pool fills and a consumer does not, or the other way round, are empty.
    let row = text
        .lines()
        .find(|line| line.trim_start().starts_with(row))
        .unwrap();
    words(row).nth(column).unwrap()
}

#[test]
fn show_and_watch_print_dropped_frames() {
    let pool = Pool::new();
    pool.consumer.note_dropped();
    pool.consumer.note_dropped();
    let output = xmem(pool.dir.path(), &["show", &pool.path()]);
    assert_eq!(cell(stdout(&output), "reader", "DROPPED"), "2");
    let output = xmem(pool.dir.path(), &["watch", "-n1", &pool.path()]);
    assert_eq!(cell(stdout(&output), "reader", "DROPPED"), "2");
    let output = xmem(pool.dir.path(), &["show", &pool.path(), "-f", "json"]);
    let json: Value = serde_json::from_str(stdout(&output)).unwrap();
    assert_eq!(json["consumers"][0]["dropped"], 2);
}

#[test]
fn show_names_the_consumer_that_delays_a_lossless_pool() {
    let dir = TempDir::new().unwrap();
    let builder = Producer::builder(&socket(&dir)).delivery(Delivery::Lossless);
    let producer = builder.max_slots(12).build().unwrap();
    let join = |name| {
        Consumer::builder(&socket(&dir))
            .name(name)
            .connect()
            .unwrap()
    };
    let (mut quick, mut stopped) = (join("quick"), join("stopped"));
    let cancel = Canceller::new();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while producer.wait_for_room(None, &cancel).is_ok() {
                let slot = producer.acquire_wait(64, None, &Canceller::new()).unwrap();
                slot.publish(FrameMeta::new(64)).unwrap();
            }
        });
        let time = Some(Duration::from_secs(10));
        let take = |consumer: &mut Consumer| consumer.receive_with(time, |_| ()).unwrap();
        take(&mut stopped);
        // It waits when the slowest has eight to take.
        (0..9).for_each(|_| take(&mut quick));
        let show = || xmem(dir.path(), &["show", "cam0"]);
        while !stdout(&show()).contains("waits") {}
        let shown = show();
        let line = stdout(&shown).lines().find(|line| line.contains("waits"));
        assert!(line.unwrap().contains("for stopped (process"), "{line:?}");
        assert!(stdout(&shown).contains("budgets  smaller than asked for: raise max-slots"));
        let watched = xmem(dir.path(), &["watch", "cam0", "--count", "1"]);
        assert!(stdout(&watched).contains("  stopped (waited for)"));
        assert!(!stdout(&watched).contains("quick (waited for)"));
        cancel.cancel();
    });
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
fn list_has_one_row_for_all_writers_of_buffers() {
    let dir = TempDir::new().unwrap();
    // By path, as pools of the runtime directory: `XMEM_RUNTIME_DIR` is that of the command alone.
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
fn a_missing_pool_fails_with_the_path() {
    let dir = TempDir::new().unwrap();
    let output = xmem(dir.path(), &["show", "missing"]);
    let text = stderr(&output);
    assert!(text.starts_with("xmem: no producer at "), "{text}");
    assert!(text.contains("missing.sock"), "{text}");
    assert_eq!(text.lines().count(), 1, "{text}");
}

#[test]
fn a_failure_without_a_writable_stderr_exits_with_1() {
    let dir = TempDir::new().unwrap();
    let status = Command::new(env!("CARGO_BIN_EXE_xmem"))
        .args(["show", "missing"])
        .env("XMEM_RUNTIME_DIR", dir.path())
        .stderr(File::options().write(true).open("/dev/full").unwrap())
        .status()
        .unwrap();
    assert_eq!(status.code(), Some(1));
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
        // To root everything is readable.
        if !rustix::process::geteuid().is_root() {
            let locked = dir.path().join("locked");
            let _ = std::fs::create_dir(&locked);
            std::fs::set_permissions(&locked, std::fs::Permissions::from_mode(0o000)).unwrap();
            let text = stderr(&xmem(&locked, &[command])).to_owned();
            assert!(text.contains("Permission denied"), "{text}");
        }
    }
    let output = xmem(&missing, &["list"]);
    let text = stdout(&output);
    assert!(text.contains("missing, which does not exist yet"), "{text}");
    assert_eq!(stdout(&xmem(&missing, &["list", "-f", "json"])), "[]\n");
    assert!(!missing.exists());
}

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
    // Besides, it may find what another test left for a moment.
    let of_here = |path: &&Value| path.as_str().unwrap().starts_with(dir.to_str().unwrap());
    let count = json.as_array().unwrap().iter().filter(of_here).count();
    assert_eq!(count, 4, "{json}");
    assert_eq!(files(), live);
    let output = xmem(dir, &["clean", "b"]);
    assert_eq!(stdout(&output), "nothing to remove\n");
    stdout(&xmem(dir, &["clean"]));
    assert_eq!(files(), live);

    // One that has a producer is reported, and the others are removed nevertheless.
    left("d");
    let output = xmem(dir, &["clean", "cam0", "d"]);
    assert!(stdout_of_failure(&output).contains("d.sock"), "{output:?}");
    let text = str::from_utf8(&output.stderr).unwrap();
    assert!(text.contains("has a producer"), "{text}");
    assert_eq!(files(), live);
    publish(&pool.producer);
    stdout(&xmem(dir, &["show", "cam0"]));
}

/// The segments in /dev/shm that this process has.
fn own_segments() -> Vec<String> {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines()
        .filter_map(|line| Some(line[line.find("/dev/shm/xmem-")?..].to_owned()))
        .collect()
}

#[test]
fn clean_removes_a_lock_file_without_a_socket() {
    let dir = TempDir::new().unwrap();
    let path = |name: &str| dir.path().join(name);
    std::fs::write(path("a.lock"), "killed (process 1)").unwrap();
    std::fs::write(path("notes.lock"), "another program's").unwrap();
    let output = xmem(dir.path(), &["clean"]);
    assert!(stdout(&output).contains("a.lock"), "{output:?}");
    assert!(!path("a.lock").exists());
    assert!(path("notes.lock").exists());
}

#[test]
fn a_file_that_is_not_a_socket_is_not_a_pool() {
    let dir = TempDir::new().unwrap();
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
    let dir = TempDir::new().unwrap();
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
fn a_pool_is_named_by_a_path_that_is_not_utf_8() {
    let dir = TempDir::new().unwrap();
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
fn clean_leaves_sockets_of_other_programs_alone() {
    let (dir, elsewhere) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let path = elsewhere.path().join("agent.sock");
    let lock = elsewhere.path().join("agent.lock");
    drop(UnixListener::bind(&path).unwrap());
    let clean = || xmem(dir.path(), &["clean", path.to_str().unwrap()]);
    assert!(stderr(&clean()).contains("left alone"));
    // Other programs have empty lock files, too.
    std::fs::write(&lock, "").unwrap();
    assert!(stderr(&clean()).contains("left alone"));
    assert!(path.exists() && lock.exists());
    std::fs::write(&lock, "killed (process 1)").unwrap();
    stdout(&clean());
    assert!(!path.exists() && !lock.exists());
}

#[test]
fn clean_removes_segments_without_a_pool() {
    let dir = TempDir::new().unwrap();
    let producer = Producer::builder(&socket(&dir)).backing(Backing::PosixShm);
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
    let empty = TempDir::new().unwrap();
    stdout(&xmem(empty.path(), &["clean"]));
    let is_left = [&orphan, &other, &live[0]].map(|path| Path::new(path).exists());
    std::fs::remove_file(other).unwrap();
    assert_eq!(is_left, [false, true, true]);
}

#[test]
fn verbose_prints_each_step() {
    let dir = TempDir::new().unwrap();
    let producer = Producer::builder(&socket(&dir)).backing(Backing::PosixShm);
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
        // Unless another test, which removes those of all pools, came first.
        if stdout(&output).contains(&orphan) {
            let text = str::from_utf8(&output.stderr).unwrap();
            assert_eq!(text.contains("xmem: info: removing"), is_said, "{text}");
        }
    }
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
    let is_waiting = |line: String| {
        assert!(line.starts_with("xmem: no producer at "), "{line}");
        assert!(line.contains("waiting"), "{line}");
    };
    is_waiting(lines.next().unwrap().unwrap());
    // It has waited for a while once three connections have got no answer.
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
    // A child that another test is just starting has the socket until it runs its program.
    let end = Instant::now() + Duration::from_secs(60);
    let producer = loop {
        match Producer::builder(&socket(&dir)).build() {
            Ok(producer) => break producer,
            Err(error) => assert!(Instant::now() < end, "{error}"),
        }
    };
    let published =
        |line: String| serde_json::from_str::<Value>(&line).unwrap()["published"].clone();
    assert_eq!(published(shown.next().unwrap().unwrap()), 0);
    drop(producer);
    is_waiting(lines.next().unwrap().unwrap());
    let producer = Producer::builder(&socket(&dir)).build().unwrap();
    publish(&producer);
    assert!(shown.any(|line| published(line.unwrap()) == 1));
    watch.kill().unwrap();
    watch.wait().unwrap();
    // Once for each time that there is none; on a busy machine the last one may have taken its time to answer.
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
    // The terminal's content comes in parts, and then an error, since its other side is closed.
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

#[test]
fn a_bad_name_fails_with_the_reason() {
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
        &["watch", "a", "--interval", "0"],
        &["watch", "a", "--interval", "NaN"],
        &["list", "-f", "xml"],
    ] {
        let output = xmem(dir.path(), args);
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        assert!(output.stdout.is_empty());
    }
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

#[test]
fn completions_and_manual_pages_have_all_commands() {
    let dir = TempDir::new().unwrap();
    let help = xmem(dir.path(), &["--help"]);
    let commands = stdout(&help)
        .lines()
        .skip_while(|line| *line != "Commands:")
        .skip(1);
    let commands: Vec<_> = commands
        .take_while(|line| !line.is_empty())
        .filter_map(|line| line.strip_prefix("  ")?.split_whitespace().next())
        .collect();
    assert!(commands.len() > 10, "{commands:?}");
    for shell in ["bash", "zsh", "fish"] {
        let output = xmem(dir.path(), &["completions", shell]);
        for command in &commands {
            assert!(stdout(&output).contains(command), "{command}");
        }
    }
    stdout(&xmem(dir.path(), &["man", dir.path().to_str().unwrap()]));
    let meson = concat!(env!("CARGO_MANIFEST_DIR"), "/../../meson.build");
    let meson = std::fs::read_to_string(meson).unwrap();
    for command in commands {
        assert!(
            meson.contains(&format!("'{command}',")),
            "meson.build does not install the page of {command}"
        );
        let page = std::fs::read_to_string(dir.path().join(format!("xmem-{command}.1")));
        assert!(page.unwrap().starts_with(".ie"), "{command}");
    }
    let output = xmem(dir.path(), &["man", "/none"]);
    assert!(
        stderr(&output).contains("cannot write to /none"),
        "{output:?}"
    );
}

fn doctor(runtime_dir: &Path, path: &str) -> (Vec<Value>, i32) {
    let output = Command::new(env!("CARGO_BIN_EXE_xmem"))
        .args(["doctor", "--format", "json"])
        .env("XMEM_RUNTIME_DIR", runtime_dir)
        .env("PATH", path)
        .output()
        .unwrap();
    let findings = serde_json::from_slice(&output.stdout).unwrap();
    (findings, output.status.code().unwrap())
}

fn finding<'a>(findings: &'a [Value], check: &str) -> &'a Value {
    findings
        .iter()
        .find(|finding| finding["check"] == check)
        .unwrap()
}

#[test]
fn doctor_reports_a_missing_gstreamer_and_a_silent_producer() {
    let pool = Pool::new();
    let (findings, code) = doctor(pool.dir.path(), "/nowhere");
    assert_eq!(code, 1);
    assert_eq!(finding(&findings, "shared memory")["verdict"], "ok");
    assert_eq!(finding(&findings, "pools")["what"], "1 with a producer");
    let gstreamer = finding(&findings, "GStreamer");
    assert_eq!(gstreamer["verdict"], "warning");
    assert!(gstreamer["advice"].as_str().unwrap().contains("1.22"));

    // It accepts connections and never answers.
    let _silent = UnixListener::bind(pool.dir.path().join("silent.sock")).unwrap();
    let (findings, _) = doctor(pool.dir.path(), "/nowhere");
    let pools = finding(&findings, "pools");
    assert_eq!(pools["verdict"], "warning");
    assert_eq!(pools["what"], "no answer from the producer of silent");
}

#[test]
fn doctor_reads_what_gstreamer_reports() {
    let dir = TempDir::new().unwrap();
    let tool = dir.path().join("gst-inspect-1.0");
    let check = |version: &str, plugin: &str| {
        let script = format!(
            "#!/bin/sh\ncase $1 in\n--version) echo 'GStreamer {version}' ;;\nxmem) {plugin} ;;\nesac\n"
        );
        std::fs::write(&tool, script).unwrap();
        std::fs::set_permissions(&tool, std::fs::Permissions::from_mode(0o755)).unwrap();
        let (findings, code) = doctor(dir.path(), dir.path().to_str().unwrap());
        let verdict = |check| {
            finding(&findings, check)["verdict"]
                .as_str()
                .unwrap()
                .to_owned()
        };
        (verdict("GStreamer"), verdict("plugin"), code)
    };
    let ours = format!("echo '  Version  {}-abc'", env!("CARGO_PKG_VERSION"));
    let found = |gstreamer: &str, plugin: &str, code| (gstreamer.into(), plugin.into(), code);
    assert_eq!(check("1.20.3", "exit 1"), found("problem", "warning", 2));
    assert_eq!(
        check("1.22.0", "echo '  Version  0.0.1'"),
        found("ok", "warning", 1)
    );
    let (gstreamer, plugin, code) = check("1.26.2", &ours);
    assert_eq!((gstreamer.as_str(), plugin.as_str()), ("ok", "ok"));
    // Other findings depend on the host.
    assert!(code <= 1);
}

#[test]
fn doctor_reports_an_unusable_directory() {
    let dir = TempDir::new().unwrap();
    let file = dir.path().join("file");
    std::fs::write(&file, "").unwrap();
    let (findings, code) = doctor(&file, "/nowhere");
    assert_eq!(code, 2);
    let directory = finding(&findings, "runtime directory");
    assert_eq!(directory["verdict"], "problem");
    assert!(
        directory["advice"]
            .as_str()
            .unwrap()
            .contains("XMEM_RUNTIME_DIR")
    );
}

/// All lines that begin with `xmem` in the page about the command, and the fields that its tables name.
#[test]
fn the_page_about_the_command_is_true() {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/cli.md");
    let page = std::fs::read_to_string(page).unwrap();
    let pool = Pool::new();
    let mut commands = 0;
    // Those need the plugin, or do not end; other tests run them.
    let is_elsewhere = |line: &str| {
        ["snapshot", "tap", "share", "metrics", "record", "replay"]
            .iter()
            .any(|it| line.starts_with(&format!("xmem {it}")))
    };
    let lines = page.lines().filter(|line| line.starts_with("xmem "));
    for line in lines.filter(|line| !is_elsewhere(line)) {
        let command = line.split('#').next().unwrap();
        let args: Vec<&str> = command.split_whitespace().skip(1).collect();
        let output = xmem(pool.dir.path(), &args);
        let may_warn = args == ["doctor"] && output.status.code() == Some(1);
        assert!(output.status.success() || may_warn, "{line}: {output:?}");
        commands += 1;
    }
    assert!(commands >= 5);
    let shown = xmem(pool.dir.path(), &["show", "cam0", "-f", "json"]);
    let shown: Value = serde_json::from_str(stdout(&shown)).unwrap();
    let fields =
        |json: &Value| -> Vec<String> { json.as_object().unwrap().keys().cloned().collect() };
    for field in fields(&shown)
        .into_iter()
        .chain(fields(&shown["consumers"][0]))
    {
        assert!(
            page.contains(&format!("`{field}`")),
            "{field} is not on the page"
        );
    }
}
