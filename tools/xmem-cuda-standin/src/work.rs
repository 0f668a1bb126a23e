// SPDX-License-Identifier: MPL-2.0

//! The work of a context: a thread for each stream, which executes its operations in order, with delays.
//!
//! Streams are not ordered with one another, with one exception: work on the legacy default stream waits for work that was queued
//! before on all streams that were created without CU_STREAM_NON_BLOCKING, and they wait for work that was queued before on the
//! legacy default stream.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use cudarc::driver::sys::CUresult;

use crate::capture;
use crate::entry::Outcome;
use crate::settings::{self, settings};
use crate::trace;

/// The legacy default stream of each context.
pub(crate) const LEGACY: u64 = 0;

/// The polling interval of waits.
const POLL: Duration = Duration::from_micros(100);

type Operation = Box<dyn FnOnce(&Work) -> Outcome + Send>;

struct Job {
    /// The operations that must be completed first: their streams and numbers.
    after: Vec<(u64, u64)>,
    operation: Operation,
}

#[derive(Default)]
struct Stream {
    queue: VecDeque<Job>,
    /// The number of queued operations.
    accepted: u64,
    completed: u64,
    /// Whether the stream is ordered with the legacy default stream.
    blocking: bool,
    started: bool,
    /// The thread ends when the queue is empty.
    closed: bool,
}

/// Set at the first error. No operation of this process is executed afterwards, in any context (cuda.h: "This leaves the process in
/// an inconsistent state and any further CUDA work will return the same error").
static FAILED: AtomicBool = AtomicBool::new(false);

/// Returns the error of the process, which is permanent: all calls fail, and nothing is executed.
pub(crate) fn check() -> Outcome {
    if FAILED.load(Ordering::Acquire) {
        Err(CUresult::CUDA_ERROR_ILLEGAL_ADDRESS)
    } else {
        Ok(())
    }
}

/// The streams of a context.
pub(crate) struct Work {
    /// The handle of the context.
    handle: u64,
    streams: Mutex<BTreeMap<u64, Stream>>,
    changed: Condvar,
    ending: AtomicBool,
}

impl std::fmt::Debug for Work {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Work")
            .field("ending", &self.ending)
            .finish_non_exhaustive()
    }
}

impl Work {
    pub(crate) fn new(handle: u64) -> Arc<Self> {
        let legacy = Stream {
            blocking: true,
            ..Stream::default()
        };
        Arc::new(Self {
            handle,
            streams: Mutex::new(BTreeMap::from([(LEGACY, legacy)])),
            changed: Condvar::new(),
            ending: AtomicBool::new(false),
        })
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<u64, Stream>> {
        self.streams.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn fail(&self, id: u64, error: CUresult) {
        trace::log(
            "errors",
            &format!("an operation on stream {id:x} failed: {error:?}"),
        );
        FAILED.store(true, Ordering::Release);
        // Synchronises with threads between their check and their wait: they hold the lock.
        drop(self.lock());
        self.changed.notify_all();
    }

    pub(crate) fn open(&self, id: u64, blocking: bool) {
        self.lock().insert(
            id,
            Stream {
                blocking,
                ..Stream::default()
            },
        );
    }

    /// Closes a stream for new work. Queued operations are still executed.
    pub(crate) fn close(&self, id: u64) {
        let mut streams = self.lock();
        if let Some(stream) = streams.get_mut(&id) {
            stream.closed = true;
            if !stream.started {
                streams.remove(&id);
            }
        }
        self.changed.notify_all();
    }

    /// Queues an operation.
    pub(crate) fn submit(
        self: &Arc<Self>,
        id: u64,
        operation: impl FnOnce(&Work) -> Outcome + Send + 'static,
    ) -> Outcome<Ticket> {
        check()?;
        if self.ending.load(Ordering::Acquire) {
            return Err(CUresult::CUDA_ERROR_CONTEXT_IS_DESTROYED);
        }
        if capture::takes(self.handle, id)? {
            // The operation is captured. A wait for it returns at once.
            return Ok(Ticket {
                stream: id,
                number: 0,
            });
        }
        let mut streams = self.lock();
        let blocking = streams
            .get(&id)
            .ok_or(CUresult::CUDA_ERROR_INVALID_HANDLE)?
            .blocking;
        let after = streams
            .iter()
            .filter(|(other, stream)| match id {
                LEGACY => **other != LEGACY && stream.blocking,
                _ => **other == LEGACY && blocking,
            })
            .map(|(other, stream)| (*other, stream.accepted))
            .collect();
        let stream = streams
            .get_mut(&id)
            .ok_or(CUresult::CUDA_ERROR_INVALID_HANDLE)?;
        stream.queue.push_back(Job {
            after,
            operation: Box::new(operation),
        });
        stream.accepted += 1;
        let ticket = Ticket {
            stream: id,
            number: stream.accepted,
        };
        if !stream.started {
            stream.started = true;
            let work = Arc::clone(self);
            std::thread::Builder::new()
                .name(format!("stand-in {id:x}"))
                .spawn(move || work.run(id))
                .map_err(|_| CUresult::CUDA_ERROR_OPERATING_SYSTEM)?;
        }
        self.changed.notify_all();
        Ok(ticket)
    }

    /// Whether all queued operations of a stream are completed.
    pub(crate) fn is_idle(&self, id: u64) -> Outcome<bool> {
        check()?;
        let streams = self.lock();
        // The legacy stream is busy while any stream that it waits for is busy.
        let idle = streams
            .iter()
            .filter(|(other, stream)| **other == id || (id == LEGACY && stream.blocking))
            .all(|(_, stream)| stream.completed == stream.accepted);
        Ok(idle)
    }

    /// Waits for the queued operations of one stream.
    pub(crate) fn wait_for_stream(&self, id: u64) -> Outcome {
        let tickets =
            self.tickets(|other, stream| other == id || (id == LEGACY && stream.blocking));
        self.wait(&tickets)
    }

    /// Waits for the queued operations of all streams.
    pub(crate) fn wait_for_all(&self) -> Outcome {
        let tickets = self.tickets(|_, _| true);
        self.wait(&tickets)
    }

    fn tickets(&self, wanted: impl Fn(u64, &Stream) -> bool) -> Vec<Ticket> {
        let streams = self.lock();
        streams
            .iter()
            .filter(|(id, stream)| wanted(**id, stream))
            .map(|(id, stream)| Ticket {
                stream: *id,
                number: stream.accepted,
            })
            .collect()
    }

    pub(crate) fn wait(&self, tickets: &[Ticket]) -> Outcome {
        let mut streams = self.lock();
        while !tickets
            .iter()
            .all(|ticket| is_done(&streams, ticket.stream, ticket.number))
        {
            check()?;
            if self.ending.load(Ordering::Acquire) {
                return Err(CUresult::CUDA_ERROR_CONTEXT_IS_DESTROYED);
            }
            // An error of another context does not notify this one.
            let waited = self.changed.wait_timeout(streams, 10 * POLL);
            streams = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        drop(streams);
        check()
    }

    /// Waits for a condition, inside an operation. Gives up 100 ms after the context begins to end.
    pub(crate) fn wait_until(&self, mut condition: impl FnMut() -> bool) -> Outcome {
        let mut patience = Duration::from_millis(100);
        while !condition() {
            check()?;
            if self.ending.load(Ordering::Acquire) {
                patience = patience
                    .checked_sub(POLL)
                    .ok_or(CUresult::CUDA_ERROR_CONTEXT_IS_DESTROYED)?;
            }
            std::thread::sleep(POLL);
        }
        Ok(())
    }

    /// Ends the context. Queued operations are still executed, except for waits that may never end.
    pub(crate) fn end(&self) {
        self.ending.store(true, Ordering::Release);
        let mut streams = self.lock();
        while streams
            .values()
            .any(|stream| stream.completed < stream.accepted)
            && check().is_ok()
        {
            streams = self
                .changed
                .wait(streams)
                .unwrap_or_else(PoisonError::into_inner);
        }
        for stream in streams.values_mut() {
            stream.closed = true;
        }
        self.changed.notify_all();
    }

    /// The thread of a stream.
    fn run(&self, id: u64) {
        let mut random = Random::new(id);
        loop {
            let mut streams = self.lock();
            let job = loop {
                let Some(stream) = streams.get_mut(&id) else {
                    return;
                };
                if check().is_err() {
                    stream.queue.clear();
                    stream.completed = stream.accepted;
                    self.changed.notify_all();
                }
                if stream.queue.is_empty() && stream.closed {
                    streams.remove(&id);
                    return;
                }
                let ready = |job: &Job| {
                    job.after
                        .iter()
                        .all(|(other, number)| is_done(&streams, *other, *number))
                };
                if streams[&id].queue.front().is_some_and(ready) {
                    let job = streams
                        .get_mut(&id)
                        .and_then(|stream| stream.queue.pop_front());
                    break job.expect("looked at just now");
                }
                streams = self
                    .changed
                    .wait(streams)
                    .unwrap_or_else(PoisonError::into_inner);
            };
            drop(streams);
            random.delay();
            while is_held() && check().is_ok() {
                std::thread::sleep(POLL);
            }
            if check().is_ok()
                && let Err(error) = (job.operation)(self)
                && error != CUresult::CUDA_ERROR_CONTEXT_IS_DESTROYED
            {
                self.fail(id, error);
            }
            let mut streams = self.lock();
            if let Some(stream) = streams.get_mut(&id) {
                stream.completed = (stream.completed + 1).min(stream.accepted);
            }
            self.changed.notify_all();
        }
    }
}

/// An operation of a stream.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ticket {
    stream: u64,
    number: u64,
}

/// A destroyed stream has completed its work.
fn is_done(streams: &BTreeMap<u64, Stream>, id: u64, number: u64) -> bool {
    streams
        .get(&id)
        .is_none_or(|stream| stream.completed >= number)
}

/// Whether a test has stopped all streams, or those of this process.
fn is_held() -> bool {
    !settings::ended() && crate::machine::is_held_in(&settings().dir)
}

/// Random delays within the limits of the settings (xorshift; a seed makes runs reproducible).
#[derive(Debug)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(salt: u64) -> Self {
        Self((settings().seed ^ salt.wrapping_mul(0x9e37_79b9_7f4a_7c15)) | 1)
    }

    pub(crate) fn delay(&mut self) {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        let (least, most) = settings().delay;
        let time = least + self.0 % (most - least + 1);
        if time > 0 {
            std::thread::sleep(Duration::from_micros(time));
        }
    }
}
