// SPDX-License-Identifier: MPL-2.0

//! Work of one context: streams in order, each with a thread of its own, late on purpose.
//!
//! Between streams there is no order, except: work on the legacy default stream waits for what was queued before on all
//! streams but those made with CU_STREAM_NON_BLOCKING, and these wait for what was queued before on the legacy one.

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

/// The interval at which a waiter looks again.
const POLL: Duration = Duration::from_micros(100);

type Operation = Box<dyn FnOnce(&Work) -> Outcome + Send>;

struct Job {
    /// The operation to be completed first: its stream and number.
    after: Vec<(u64, u64)>,
    operation: Operation,
}

#[derive(Default)]
struct Stream {
    queue: VecDeque<Job>,
    /// Operations so far.
    accepted: u64,
    completed: u64,
    /// Ordered with the legacy default stream.
    blocking: bool,
    started: bool,
    /// Ends when it has nothing to do any more.
    closed: bool,
}

/// The streams of a context.
pub(crate) struct Work {
    /// Of the context.
    handle: u64,
    streams: Mutex<BTreeMap<u64, Stream>>,
    changed: Condvar,
    /// From the first error on nothing runs any more.
    failed: AtomicBool,
    ending: AtomicBool,
}

impl std::fmt::Debug for Work {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Work")
            .field("failed", &self.failed)
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
            failed: AtomicBool::new(false),
            ending: AtomicBool::new(false),
        })
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<u64, Stream>> {
        self.streams.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An error that stays: nothing of this context runs any more, and all its calls fail.
    pub(crate) fn check(&self) -> Outcome {
        if self.failed.load(Ordering::Acquire) {
            Err(CUresult::CUDA_ERROR_ILLEGAL_ADDRESS)
        } else {
            Ok(())
        }
    }

    fn fail(&self, id: u64, error: CUresult) {
        trace::log(
            "errors",
            &format!("an operation on stream {id:x} failed: {error:?}"),
        );
        self.failed.store(true, Ordering::Release);
        // A thread between its look at `failed` and its wait has the lock.
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

    /// No more work for this stream; what is queued still happens.
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

    /// Queue an operation.
    pub(crate) fn submit(
        self: &Arc<Self>,
        id: u64,
        operation: impl FnOnce(&Work) -> Outcome + Send + 'static,
    ) -> Outcome<Ticket> {
        self.check()?;
        if self.ending.load(Ordering::Acquire) {
            return Err(CUresult::CUDA_ERROR_CONTEXT_IS_DESTROYED);
        }
        if capture::takes(self.handle, id)? {
            // Done, as far as a caller can wait for it.
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

    /// Whether everything queued so far on a stream is done.
    pub(crate) fn is_idle(&self, id: u64) -> Outcome<bool> {
        self.check()?;
        let streams = self.lock();
        // The legacy stream is busy while any stream that it waits for is.
        let idle = streams
            .iter()
            .filter(|(other, stream)| **other == id || (id == LEGACY && stream.blocking))
            .all(|(_, stream)| stream.completed == stream.accepted);
        Ok(idle)
    }

    /// Wait for what was queued so far on one stream.
    pub(crate) fn wait_for_stream(&self, id: u64) -> Outcome {
        let tickets =
            self.tickets(|other, stream| other == id || (id == LEGACY && stream.blocking));
        self.wait(&tickets)
    }

    /// Wait for what was queued so far on all streams.
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
            self.check()?;
            if self.ending.load(Ordering::Acquire) {
                return Err(CUresult::CUDA_ERROR_CONTEXT_IS_DESTROYED);
            }
            streams = self
                .changed
                .wait(streams)
                .unwrap_or_else(PoisonError::into_inner);
        }
        drop(streams);
        self.check()
    }

    /// Inside an operation: wait until something outside happens. When the context ends, it gets a moment more.
    pub(crate) fn wait_until(&self, mut condition: impl FnMut() -> bool) -> Outcome {
        let mut patience = Duration::from_millis(100);
        while !condition() {
            self.check()?;
            if self.ending.load(Ordering::Acquire) {
                patience = patience
                    .checked_sub(POLL)
                    .ok_or(CUresult::CUDA_ERROR_CONTEXT_IS_DESTROYED)?;
            }
            std::thread::sleep(POLL);
        }
        Ok(())
    }

    /// The end of the context. What is queued still happens, except waiting for what may never come.
    pub(crate) fn end(&self) {
        self.ending.store(true, Ordering::Release);
        let mut streams = self.lock();
        while streams
            .values()
            .any(|stream| stream.completed < stream.accepted)
            && self.check().is_ok()
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

    /// The thread of one stream.
    fn run(&self, id: u64) {
        let mut random = Random::new(id);
        loop {
            let mut streams = self.lock();
            let job = loop {
                let Some(stream) = streams.get_mut(&id) else {
                    return;
                };
                if self.check().is_err() {
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
            while is_held() && self.check().is_ok() {
                std::thread::sleep(POLL);
            }
            if self.check().is_ok()
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

/// One operation of one stream.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ticket {
    stream: u64,
    number: u64,
}

/// A stream that is gone has completed all its work.
fn is_done(streams: &BTreeMap<u64, Stream>, id: u64, number: u64) -> bool {
    streams
        .get(&id)
        .is_none_or(|stream| stream.completed >= number)
}

/// Whether a test stops all streams, or those of this process, for now.
fn is_held() -> bool {
    !settings::ended() && crate::machine::is_held_in(&settings().dir)
}

/// Delays within the bounds of the settings (xorshift; from a seed, so that a run can be repeated).
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
