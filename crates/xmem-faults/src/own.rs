// SPDX-License-Identifier: MPL-2.0

//! A process's figures about itself, and faults that it causes to itself.
#![allow(unsafe_code)] // fork without exec

use std::fs;
use std::io::{BufRead, Write};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use xmem_core::fault::{Action, Point, arm, disarm, set_clock_offset};

/// Open descriptors.
pub(crate) fn descriptors() -> usize {
    // The one that lists them is one too many.
    fs::read_dir("/proc/self/fd").map_or(0, |dir| dir.count().saturating_sub(1))
}

/// Mappings of shared frames.
pub(crate) fn mappings() -> usize {
    fs::read_to_string("/proc/self/maps").map_or(0, |maps| {
        maps.lines()
            .filter(|line| line.contains("xmem-region") || line.contains("/dev/shm/xmem-"))
            .count()
    })
}

/// How long this thread could run and did not get a core: no process of the rig causes that.
fn run_delay() -> Duration {
    fs::read_to_string("/proc/thread-self/schedstat")
        .ok()
        .and_then(|text| text.split_whitespace().nth(1)?.parse().ok())
        .map_or(Duration::ZERO, Duration::from_nanos)
}

/// Measures waits, less the time for which only a core was missing.
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

    /// The time since the start for which only a core was missing.
    pub(crate) fn delayed(&self) -> Duration {
        run_delay().saturating_sub(self.delay)
    }
}

/// A child that inherits everything, does nothing and goes away after a while.
pub(crate) fn fork(life: Duration) {
    // SAFETY: the child calls nothing but nanosleep and _exit, which are allowed there.
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

/// Lets the process have this many descriptors and no more; `None`: as many as it may.
pub(crate) fn limit_descriptors(limit: Option<u64>) {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let now = getrlimit(Resource::Nofile);
    let new = Rlimit {
        current: limit.or(now.maximum),
        maximum: now.maximum,
    };
    let _ = setrlimit(Resource::Nofile, new);
}

/// The resources that the system refuses this process for a while: memory, descriptors in flight.
#[derive(Debug, Default)]
pub(crate) struct Refusal(Option<Instant>);

impl Refusal {
    /// "refuse CALL MILLIS": from now on each such system call fails.
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

    /// This process's clock jumps by so many seconds, for a while.
    pub(crate) fn jump(&mut self, seconds: i64, millis: u64) {
        set_clock_offset(seconds * 1_000_000_000);
        self.0 = Some(Instant::now() + Duration::from_millis(millis));
    }

    /// Ends it when it is time.
    pub(crate) fn tend(&mut self) {
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

/// The lines of standard input, as they come. The channel closes at its end, so an orphan notices.
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

/// Prints a line for the rig. One write, so that a kill does not cut it in two.
pub(crate) fn print_line(line: &str) {
    let _ = std::io::stdout().write_all(format!("{line}\n").as_bytes());
    let _ = std::io::stdout().flush();
}
