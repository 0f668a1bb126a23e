// SPDX-License-Identifier: MPL-2.0

//! Three threads for work that other threads must not do.
//!
//! Leases end on any thread, including threads of the driver in host functions, where calls of the driver are forbidden. So no
//! `drop` calls the driver. The first thread does that. The second thread ends leases if that runs code of the program or needs
//! polling, because the driver may be slow and no lease may wait for it. The third thread frees memory: the driver may wait for all
//! streams before it does, also for one that never continues, and meanwhile the first thread must end leases on the others.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Mutex, OnceLock};
use std::time::{Duration, Instant};

use xmem_shm::lock::lock;
use xmem_shm::os::fork::ProcessId;

/// The interval of checks of a device, which reports nothing by itself.
pub const CHECK_INTERVAL: Duration = Duration::from_millis(1);
/// The interval of checks of a context for errors.
pub const ERROR_CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// The longest interval of checks of an entry. The interval grows with time.
const MAX_CHECK_INTERVAL: Duration = Duration::from_millis(50);

enum Job {
    Once(Box<dyn FnOnce() + Send>),
    Again(Again),
}

/// A job that is repeated until it returns true.
struct Again {
    job: Box<dyn FnMut() -> bool + Send>,
    pause: Duration,
    due: Instant,
}

#[derive(Debug)]
struct Running {
    jobs: Mutex<Sender<Job>>,
    process: ProcessId,
}

/// One of the threads. It starts when it is needed.
#[derive(Debug)]
pub struct Reaper {
    name: &'static str,
    running: OnceLock<Option<Running>>,
}

/// Calls the driver.
pub static DRIVER: Reaper = Reaper::new("xmem-cuda");
/// Ends leases, and does not call the driver.
pub static LEASES: Reaper = Reaper::new("xmem-cuda-ends");
/// Frees, unmaps and closes memory. These calls of the driver may wait for a device.
static FREES: Reaper = Reaper::new("xmem-cuda-frees");

impl Reaper {
    const fn new(name: &'static str) -> Self {
        Self {
            name,
            running: OnceLock::new(),
        }
    }

    fn send(&self, job: Job) {
        let mut failed = None;
        let running = self.running.get_or_init(|| {
            let (jobs, inbox) = channel();
            let thread = std::thread::Builder::new().name(self.name.into());
            match thread.spawn(move || run(&inbox)) {
                Ok(_) => Some(Running {
                    jobs: Mutex::new(jobs),
                    process: ProcessId::current(),
                }),
                Err(error) => {
                    failed = Some(error);
                    None
                }
            }
        });
        if let Some(error) = failed {
            log::error!("memory on CUDA devices is no longer freed: {error}");
        }
        match running {
            Some(running) if running.process.is_current() => {
                let jobs = lock(&running.jobs);
                let _ = jobs.send(job);
            }
            // A forked child has neither the thread nor the driver. The memory belongs to the parent.
            _ => std::mem::forget(job),
        }
    }

    /// Runs a job soon.
    pub fn later(&self, job: impl FnOnce() + Send + 'static) {
        self.send(Job::Once(Box::new(job)));
    }

    /// Repeats a job until it returns true: first every `pause`, later less often.
    pub fn every(&self, pause: Duration, job: impl FnMut() -> bool + Send + 'static) {
        self.send(Job::Again(Again {
            job: Box::new(job),
            pause,
            due: Instant::now() + pause,
        }));
    }
}

/// Runs a job that calls the driver soon.
pub fn later(job: impl FnOnce() + Send + 'static) {
    DRIVER.later(job);
}

/// Runs a job that frees memory, after all earlier ones.
pub fn free(job: impl FnOnce() + Send + 'static) {
    FREES.later(job);
}

/// Runs a job soon on the thread that does not call the driver. The job may be code of the program, and take long.
pub fn elsewhere(job: impl FnOnce() + Send + 'static) {
    LEASES.later(job);
}

/// Checks a device every `pause` until `is_over` returns true.
pub fn watch(pause: Duration, is_over: impl FnMut() -> bool + Send + 'static) {
    DRIVER.every(pause, is_over);
}

/// Checks until `is_so` returns true, without calls of the driver.
pub fn until(is_so: impl FnMut() -> bool + Send + 'static) {
    LEASES.every(CHECK_INTERVAL, is_so);
}

/// Waits until all earlier jobs are done, at most `timeout`, because the driver may wait for a kernel.
pub fn flush(timeout: Duration) {
    let (done, is_done) = channel();
    // Several rounds, because a job may add further ones: the end of a lease may end its pool, and that frees the memory of its
    // regions.
    let say_so = move || {
        let _ = done.send(());
    };
    LEASES.later(move || {
        DRIVER.later(move || {
            LEASES.later(move || {
                DRIVER.later(move || DRIVER.later(move || FREES.later(move || FREES.later(say_so))))
            })
        });
    });
    let _ = is_done.recv_timeout(timeout);
}

/// Catches a panic of a job, which may be code of the program, so that the other jobs still run. The message was already
/// printed.
fn guarded<T>(job: impl FnOnce() -> T) -> Option<T> {
    catch_unwind(AssertUnwindSafe(job)).ok()
}

fn run(inbox: &Receiver<Job>) {
    let mut waiting: Vec<Again> = Vec::new();
    loop {
        let job = match waiting.iter().map(|again| again.due).min() {
            None => inbox.recv().map_err(|_| RecvTimeoutError::Disconnected),
            Some(due) => inbox.recv_timeout(due.saturating_duration_since(Instant::now())),
        };
        match job {
            Ok(Job::Once(job)) => {
                guarded(job);
            }
            Ok(Job::Again(again)) => waiting.push(again),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
        let now = Instant::now();
        waiting.retain_mut(|again| {
            if again.due > now {
                return true;
            }
            again.pause = (again.pause * 5 / 4).min(MAX_CHECK_INTERVAL.max(again.pause));
            again.due = now + again.pause;
            // A job that panicked is not repeated.
            guarded(|| (again.job)()) == Some(false)
        });
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::time::Duration;

    use super::Reaper;

    static TESTED: Reaper = Reaper::new("xmem-test");

    #[test]
    fn a_panic_ends_only_its_own_job() {
        let (say, hear) = channel();
        TESTED.later(|| panic!("on purpose"));
        TESTED.every(Duration::ZERO, || panic!("on purpose, too"));
        let mut left = 3;
        TESTED.every(Duration::from_millis(1), move || {
            left -= 1;
            let _ = say.send(left);
            left == 0
        });
        assert_eq!(hear.iter().collect::<Vec<_>>(), [2, 1, 0]);
    }
}
