// SPDX-License-Identifier: MPL-2.0

//! Hosts, each a runtime directory, bridges between them, and frames with known content.

use std::io::{BufRead, BufReader};
use std::net::{TcpListener, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use xmem_core::{Consumer, FrameMeta, Producer, ReadLease, ReceiveError, StartFrom};

/// The time after which a test counts as hanging. It is no limit on speed.
pub(crate) const HANG: Duration = Duration::from_secs(50);

#[track_caller]
pub(crate) fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < HANG, "never: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A directory for each host, and one for certificates.
pub(crate) struct Hosts {
    dir: TempDir,
    port: u16,
}

impl Hosts {
    pub(crate) fn new() -> Self {
        let dir = tempfile::Builder::new().prefix("xb").tempdir().unwrap();
        for host in ["a", "b", "c", "d", "e"] {
            std::fs::create_dir(dir.path().join(host)).unwrap();
        }
        // Find a port that is free for TCP and UDP.
        let port = std::iter::repeat_with(|| {
            let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
            let port = tcp.local_addr().unwrap().port();
            UdpSocket::bind(("127.0.0.1", port)).ok().map(|_| port)
        });
        let port = port.flatten().next().unwrap();
        Self { dir, port }
    }

    pub(crate) fn path(&self) -> &Path {
        self.dir.path()
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    pub(crate) fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// The path of a pool's socket.
    pub(crate) fn pool(&self, host: &str, name: &str) -> PathBuf {
        self.dir.path().join(host).join(format!("{name}.sock"))
    }

    pub(crate) fn bridge(&self, host: &str, args: &[&str]) -> Bridge {
        self.bridge_in(Command::new("env"), host, args)
    }

    /// As [`bridge`](Self::bridge). `command` runs the program in its arguments.
    pub(crate) fn bridge_in(&self, command: Command, host: &str, args: &[&str]) -> Bridge {
        Bridge::start(command, &self.dir.path().join(host), args)
    }

    /// Exports these pools of host a over TCP.
    pub(crate) fn export(&self, pools: &[&str]) -> Bridge {
        let listen = format!("tcp/{}", self.address());
        let args = [
            &["export"],
            pools,
            &["--listen", &listen, "--trusted-network"],
        ]
        .concat();
        let bridge = self.bridge("a", &args);
        bridge.prints("exports");
        bridge
    }

    /// Imports cam0 on a host.
    pub(crate) fn import(&self, host: &str) -> Bridge {
        self.import_pool(host, "cam0")
    }

    /// Imports this pool on a host.
    pub(crate) fn import_pool(&self, host: &str, pool: &str) -> Bridge {
        let source = format!("{pool}@{}", self.address());
        let bridge = self.bridge(host, &["import", &source, "--trusted-network"]);
        bridge.prints("imports");
        bridge
    }

    pub(crate) fn producer(&self, name: &str) -> Producer {
        self.producer_on("a", name)
    }

    pub(crate) fn producer_on(&self, host: &str, name: &str) -> Producer {
        Producer::builder(self.pool(host, name)).build().unwrap()
    }

    /// A consumer of cam0 on a host.
    pub(crate) fn consumer(&self, host: &str) -> Consumer {
        self.consumer_of(host, "cam0")
    }

    /// A consumer of this pool on a host.
    pub(crate) fn consumer_of(&self, host: &str, pool: &str) -> Consumer {
        let pool = self.pool(host, pool);
        let builder = Consumer::builder(&pool)
            .start_from(StartFrom::Oldest)
            .events(true);
        builder.connect_wait(Some(HANG)).unwrap()
    }
}

/// A process of the bridge. It is killed when the value is dropped.
pub(crate) struct Bridge {
    child: Child,
    lines: Arc<Mutex<Vec<String>>>,
    reader: Option<JoinHandle<()>>,
}

impl Bridge {
    fn start(mut command: Command, runtime_dir: &Path, args: &[&str]) -> Self {
        let mut child = command
            .arg(env!("CARGO_BIN_EXE_xmem-bridge"))
            .args(args)
            .env("XMEM_RUNTIME_DIR", runtime_dir)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = Arc::<Mutex<Vec<String>>>::default();
        let (stderr, shared) = (child.stderr.take().unwrap(), lines.clone());
        let reader = std::thread::spawn(move || {
            for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                eprintln!("{line}");
                shared.lock().unwrap().push(line);
            }
        });
        Self {
            child,
            lines,
            reader: Some(reader),
        }
    }

    pub(crate) fn has_printed(&self, words: &str) -> bool {
        let lines = self.lines.lock().unwrap();
        lines.iter().any(|line| line.contains(words))
    }

    #[track_caller]
    pub(crate) fn prints(&self, words: &str) {
        eventually(words, || self.has_printed(words));
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Waits until the process ends. Returns its exit code, its standard output and its standard error.
    pub(crate) fn end(mut self) -> (Option<i32>, String, String) {
        let mut status = None;
        eventually("the bridge ends", || {
            status = self.child.try_wait().unwrap();
            status.is_some()
        });
        self.reader.take().unwrap().join().unwrap();
        let mut out = String::new();
        let stdout = self.child.stdout.take().unwrap();
        std::io::Read::read_to_string(&mut BufReader::new(stdout), &mut out).unwrap();
        let lines = self.lines.lock().unwrap().join("\n");
        (status.unwrap().code(), out, lines)
    }

    /// The peak resident memory of the process, in bytes.
    pub(crate) fn peak_memory(&self) -> u64 {
        let status = format!("/proc/{}/status", self.child.id());
        let status = std::fs::read_to_string(status).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let kilobytes = line.unwrap().trim().trim_end_matches(" kB");
        kilobytes.parse::<u64>().unwrap() * 1024
    }

    pub(crate) fn kill(self) {
        self.signal(Signal::KILL);
        self.end();
    }

    /// Ends an importer, and returns the numbers of received and missed frames from its last line.
    pub(crate) fn figures(self) -> (u64, u64) {
        self.signal(Signal::TERM);
        let (code, _, lines) = self.end();
        assert_eq!(code, Some(0));
        let words: Vec<&str> = lines.lines().last().unwrap().split_whitespace().collect();
        let before = |word: &str| {
            let at = words.iter().position(|it| it.starts_with(word)).unwrap();
            words[at - 1].parse().unwrap()
        };
        (before("frames,"), before("missed,"))
    }
}

impl Drop for Bridge {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The bytes of the frame with this number.
pub(crate) fn content(number: u64, size: usize) -> Vec<u8> {
    let mut state = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = Vec::with_capacity(size + 8);
    while bytes.len() < size {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend(state.to_le_bytes());
    }
    bytes.truncate(size);
    bytes
}

/// The description of the frame with this number.
pub(crate) fn meta(number: u64, size: usize) -> FrameMeta {
    let mut meta = FrameMeta::new(size);
    meta.buffer_offset = Some(number);
    meta
}

/// Publishes the frame with this number. Returns `false` if no slot is free.
pub(crate) fn publish(producer: &Producer, number: u64, size: usize) -> bool {
    let Ok(mut slot) = producer.acquire(size) else {
        return false;
    };
    slot.as_mut_slice().copy_from_slice(&content(number, size));
    slot.publish(meta(number, size)).is_ok()
}

/// The number of a frame. Asserts that all of its bytes are correct.
#[track_caller]
pub(crate) fn number(frame: &ReadLease) -> u64 {
    let number = frame.meta().buffer_offset.unwrap();
    let bytes = frame.bytes().unwrap();
    assert!(
        bytes == content(number, bytes.len()),
        "frame {number} is torn"
    );
    number
}

/// Receives the next frame, and skips events.
#[track_caller]
pub(crate) fn receive(consumer: &mut Consumer) -> ReadLease {
    loop {
        let frame = consumer.receive(Some(HANG)).unwrap();
        if !frame.meta().event {
            return frame;
        }
    }
}

/// Receives frames until the number is at least `last`. Returns that number.
#[track_caller]
pub(crate) fn receive_until(consumer: &mut Consumer, last: u64) -> u64 {
    loop {
        let number = number(&receive(consumer));
        if number >= last {
            return number;
        }
    }
}

/// A thread that publishes frames of one size until the value is dropped.
pub(crate) struct Camera {
    stop: Arc<AtomicBool>,
    next: Arc<AtomicU64>,
    thread: Option<JoinHandle<()>>,
}

impl Camera {
    /// Publishes 100 frames a second. `first` is the number of the first frame.
    pub(crate) fn start(producer: &Producer, size: usize, first: u64) -> Self {
        Self::start_every(Duration::from_millis(10), producer, size, first)
    }

    /// `period` is the frame interval.
    pub(crate) fn start_every(
        period: Duration,
        producer: &Producer,
        size: usize,
        first: u64,
    ) -> Self {
        let (stop, next) = (
            Arc::<AtomicBool>::default(),
            Arc::new(AtomicU64::new(first)),
        );
        let (producer, stopped, counted) = (producer.clone(), stop.clone(), next.clone());
        let thread = std::thread::spawn(move || {
            let mut due = Instant::now();
            while !stopped.load(Ordering::Relaxed) {
                let number = counted.load(Ordering::Relaxed);
                assert!(publish(&producer, number, size), "the camera has no slot");
                counted.store(number + 1, Ordering::Relaxed);
                due = (due + period).max(Instant::now());
                std::thread::sleep(due.saturating_duration_since(Instant::now()));
            }
        });
        let thread = Some(thread);
        Self { stop, next, thread }
    }

    /// The number of the next frame.
    pub(crate) fn next(&self) -> u64 {
        self.next.load(Ordering::Relaxed)
    }

    /// Stops the thread. Returns the number of the last frame.
    pub(crate) fn stop(mut self) -> u64 {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.take().unwrap().join().unwrap();
        self.next() - 1
    }
}

impl Drop for Camera {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Whether the stream of a consumer has ended.
pub(crate) fn is_over(consumer: &mut Consumer) -> bool {
    match consumer.receive(Some(Duration::ZERO)) {
        Ok(_) | Err(ReceiveError::Timeout) => false,
        Err(ReceiveError::Eos) => true,
        Err(error) => panic!("{error}"),
    }
}

/// Reports that a test cannot run. `cargo xtask test` prints the reason again in its summary.
pub(crate) fn not_run(why: &str) {
    let thread = std::thread::current();
    let line = format!("{}: {why}", thread.name().unwrap_or("a test"));
    eprintln!("NOT RUN: {line}");
    if let Some(file) = std::env::var_os("XMEM_NOT_RUN") {
        let file = std::fs::OpenOptions::new().append(true).open(file);
        // Use one write, because tests run in parallel.
        let line = format!("{line}\n");
        std::io::Write::write_all(&mut file.unwrap(), line.as_bytes()).unwrap();
    }
}
