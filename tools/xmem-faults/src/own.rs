// SPDX-License-Identifier: MPL-2.0

//! Figures that a process measures about itself, and faults that it injects into itself.
#![allow(unsafe_code)] // fork without exec

use std::fs;
use std::io::{BufRead, Write};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use xmem_core::fault::{Action, Point, arm, disarm, set_clock_offset};
use xmem_core::{Consumer, ReadyFd};

/// The number of open descriptors.
pub(crate) fn descriptors() -> usize {
    // Does not count the descriptor of the directory listing.
    fs::read_dir("/proc/self/fd").map_or(0, |dir| dir.count().saturating_sub(1))
}

/// The number of mappings of shared memory.
pub(crate) fn mappings() -> usize {
    fs::read_to_string("/proc/self/maps").map_or(0, |maps| {
        maps.lines()
            .filter(|line| line.contains("xmem-region") || line.contains("/dev/shm/xmem-"))
            .count()
    })
}

/// The time during which this thread could run but had no processor. Other processes of the rig do not cause it.
fn run_delay() -> Duration {
    fs::read_to_string("/proc/thread-self/schedstat")
        .ok()
        .and_then(|text| text.split_whitespace().nth(1)?.parse().ok())
        .map_or(Duration::ZERO, Duration::from_nanos)
}

/// Measures waits, without the time during which only a processor was missing.
#[derive(Debug)]
pub(crate) struct Stopwatch {
    start: Instant,
    delay: Duration,
}

impl Stopwatch {
    pub(crate) fn start() -> Self {
        Self {
            delay: run_delay(),
            start: Instant::now(),
        }
    }

    pub(crate) fn waited(&self) -> Duration {
        let elapsed = self.start.elapsed();
        elapsed.saturating_sub(run_delay().saturating_sub(self.delay))
    }

    /// The time since the start during which only a processor was missing.
    pub(crate) fn delayed(&self) -> Duration {
        run_delay().saturating_sub(self.delay)
    }
}

/// Forks a child that inherits everything, sleeps, and exits.
pub(crate) fn fork(life: Duration) {
    // SAFETY: the child calls only nanosleep and _exit, which are async-signal-safe.
    unsafe {
        if libc::fork() == 0 {
            let time = libc::timespec {
                tv_sec: life.as_secs().cast_signed(),
                tv_nsec: i64::from(life.subsec_nanos()),
            };
            libc::nanosleep(&raw const time, std::ptr::null_mut());
            libc::_exit(0);
        }
    }
}

/// Sets the limit of descriptors for this process. `None` sets the maximum.
pub(crate) fn limit_descriptors(limit: Option<u64>) {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let now = getrlimit(Resource::Nofile);
    let new = Rlimit {
        current: limit.or(now.maximum),
        maximum: now.maximum,
    };
    let _ = setrlimit(Resource::Nofile, new);
}

/// A temporary fault in this process: a failing system call, or a clock that jumps.
#[derive(Debug, Default)]
pub(crate) struct TemporaryFault(Option<Instant>);

impl TemporaryFault {
    /// Command "refuse CALL MILLIS": makes each such system call fail for this time.
    pub(crate) fn begin(&mut self, call: &str, millis: u64) {
        let (point, errno) = match call {
            "memfd" => (Point::MemfdCreate, libc::EMFILE),
            "fallocate" => (Point::Fallocate, libc::ENOSPC),
            "mmap" => (Point::Mmap, libc::ENOMEM),
            _ => (Point::Send, libc::ETOOMANYREFS),
        };
        arm(point, 1..u32::MAX, Action::Fail(errno));
        self.0 = Some(Instant::now() + Duration::from_millis(millis));
    }

    /// Sets the clock of this process ahead for a time.
    pub(crate) fn jump(&mut self, seconds: i64, millis: u64) {
        set_clock_offset(seconds * 1_000_000_000);
        self.0 = Some(Instant::now() + Duration::from_millis(millis));
    }

    /// Ends the fault if its time has passed.
    pub(crate) fn update(&mut self) {
        if self.0.is_some_and(|until| until <= Instant::now()) {
            self.end();
        }
    }

    pub(crate) fn end(&mut self) {
        self.0 = None;
        disarm();
        set_clock_offset(0);
    }
}

/// Lets the consumer wait for a descriptor instead of on its wake word, or not.
pub(crate) fn choose_wait(consumer: &mut Consumer, random: &mut fastrand::Rng) {
    if random.bool()
        // A fault may have taken the descriptors.
        && let Ok(ready) = ReadyFd::new()
    {
        let _ = consumer.notify(&ready);
    }
}

/// The lines of standard input. The channel closes at the end of input, so that a process without a rig ends.
pub(crate) fn commands() -> Receiver<String> {
    let (send, receive) = channel();
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines().map_while(Result::ok) {
            if send.send(line).is_err() {
                break;
            }
        }
    });
    receive
}

/// Prints a line for the rig with one write, so that a kill does not split it.
pub(crate) fn print_line(line: &str) {
    let _ = std::io::stdout().write_all(format!("{line}\n").as_bytes());
    let _ = std::io::stdout().flush();
}
