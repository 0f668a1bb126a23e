// SPDX-License-Identifier: MPL-2.0

//! A thread that does what other threads may not: call the driver to free something.
//!
//! Leases end on any thread, also on the driver's own, in host functions, where a call of the driver is forbidden. So
//! nothing that is dropped calls the driver; it leaves that to this thread.

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use super::result;
use crate::os::fork::ProcessId;

/// What is looked at again and again gets looked at less often with time, but not less than this.
const SELDOM: Duration = Duration::from_millis(50);

enum Job {
    Once(Box<dyn FnOnce() + Send>),
    Again(Again),
}

/// What is done again and again, until it says that it is done.
struct Again {
    job: Box<dyn FnMut() -> bool + Send>,
    pause: Duration,
    due: Instant,
}

struct Reaper {
    jobs: Mutex<Sender<Job>>,
    process: ProcessId,
}

static REAPER: OnceLock<Option<Reaper>> = OnceLock::new();

fn send(job: Job) {
    let reaper = REAPER.get_or_init(|| {
        let (jobs, inbox) = channel();
        let thread = std::thread::Builder::new().name("xmem-cuda".into());
        match thread.spawn(move || run(&inbox)) {
            Ok(_) => Some(Reaper {
                jobs: Mutex::new(jobs),
                process: ProcessId::current(),
            }),
            Err(error) => {
                log::error!("what lies on CUDA devices is not freed any more: {error}");
                None
            }
        }
    });
    match reaper {
        Some(reaper) if reaper.process.is_current() => {
            let jobs = reaper.jobs.lock().unwrap_or_else(PoisonError::into_inner);
            let _ = jobs.send(job);
        }
        // In a forked child the thread is not there, nor is the driver. The memory is the parent's.
        _ => std::mem::forget(job),
    }
}

/// Has something done soon.
pub(super) fn later(job: impl FnOnce() + Send + 'static) {
    send(Job::Once(Box::new(job)));
}

/// Has something done again and again, until it says that it is done: soon every `pause`, later less often.
pub(super) fn every(pause: Duration, job: impl FnMut() -> bool + Send + 'static) {
    send(Job::Again(Again {
        job: Box::new(job),
        pause,
        due: Instant::now() + pause,
    }));
}

/// Waits until what was to be done before is done, but not for ever: the driver may wait for a kernel.
pub(super) fn flush(timeout: Duration) {
    let (done, is_done) = channel();
    // Three rounds: what is done may leave something to be done, such as the regions of a pool their memory.
    let say_so = move || {
        let _ = done.send(());
    };
    later(move || later(move || later(say_so)));
    let _ = is_done.recv_timeout(timeout);
}

/// cuda.h: what other threads capture is not disturbed by this thread, nor this thread by them.
const RELAXED: u32 = 2;

fn run(inbox: &Receiver<Job>) {
    let mut mode = RELAXED;
    // SAFETY: a place for the mode there was. Otherwise what is freed here would fail while the program captures a graph, and
    // spoil that graph.
    #[allow(unsafe_code)]
    if let Err(error) = unsafe { result::capture_mode(&raw mut mode) } {
        log::debug!("what lies on CUDA devices is not freed while streams are captured: {error}");
    }
    let mut waiting: Vec<Again> = Vec::new();
    loop {
        let job = match waiting.iter().map(|again| again.due).min() {
            None => inbox.recv().map_err(|_| RecvTimeoutError::Disconnected),
            Some(due) => inbox.recv_timeout(due.saturating_duration_since(Instant::now())),
        };
        match job {
            Ok(Job::Once(job)) => job(),
            Ok(Job::Again(again)) => waiting.push(again),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
        let now = Instant::now();
        waiting.retain_mut(|again| {
            if again.due > now {
                return true;
            }
            again.pause = (again.pause * 5 / 4).min(SELDOM.max(again.pause));
            again.due = now + again.pause;
            !(again.job)()
        });
    }
}
