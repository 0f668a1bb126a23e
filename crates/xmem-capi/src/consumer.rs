// SPDX-License-Identifier: MPL-2.0

//! Consumers, which follow a pool over restarts of its producer.
#![allow(unsafe_code)] // functions and pointers of C

use std::ffi::{c_char, c_int};
use std::mem;
use std::os::fd::AsRawFd;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, TryLockError};
use std::time::{Duration, Instant};

use xmem_core::follow::{Follower, FollowerHandle, OnEos, OnLost, OverBudget, Step, Taken};
use xmem_core::key_frame::KeyFrame;
use xmem_core::{Canceller, ReadyFd, RequestError, StartFrom};

use crate::border::{Out, Sized0, call, given, limit, limit_or_none, text};
use crate::error::{Code, Failure};
use crate::frame::{Common, FRAMES, Frame, Handle};
use crate::handles::{Table, give};

static CONSUMERS: Table<Consumer> = Table::new("consumer");

struct Consumer {
    receiving: Mutex<Receiving>,
    canceller: Canceller,
    handle: FollowerHandle,
    /// The descriptor for event loops, once it was asked for.
    ready: OnceLock<ReadyFd>,
}

struct Receiving {
    follower: Follower,
    /// Of the last frame.
    common: Option<Arc<Common>>,
}

/// `xmem_consumer_options` of xmem.h.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Options {
    struct_size: usize,
    name: *const c_char,
    max_held: u32,
    start_from: u32,
    over_budget: u32,
    on_eos: u32,
    on_producer_lost: u32,
    newest_only: u32,
    connect_timeout: i64,
    busy_poll: i64,
    max_rate: f64,
    dmabuf: u32,
    reserved: u32,
}

// SAFETY: numbers, and a pointer that may be null.
unsafe impl Sized0 for Options {}

/// `xmem_consumer_stats` of xmem.h.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Statistics {
    struct_size: usize,
    received: u64,
    missed: u64,
    copied: u64,
    dropped: u64,
    reconnects: u64,
    latency: u64,
    held: u32,
    budget: u32,
    is_connected: u32,
    reserved: u32,
    skipped: u64,
}

// SAFETY: numbers.
unsafe impl Sized0 for Statistics {}

/// The choice with this number.
fn choose<T: Copy>(what: &str, number: u32, choices: &[T]) -> Result<T, Failure> {
    let choice = choices.get(number as usize).copied();
    choice.ok_or_else(|| {
        let most = choices.len().saturating_sub(1);
        Failure::new(
            Code::Argument,
            format!("{what} is {number}, but must be from 0 to {most}"),
        )
    })
}

/// The time between two frames at this rate.
fn interval(rate: f64) -> Result<Duration, Failure> {
    let time = Duration::try_from_secs_f64(1.0 / rate).ok();
    time.filter(|time| !time.is_zero()).ok_or_else(|| {
        let text = format!("max_rate is {rate}: it is the most frames per second, such as 5 or 0.5, or 0 for all frames");
        Failure::new(Code::Argument, text)
    })
}

impl Consumer {
    fn new(pool: &std::ffi::OsStr, name: Option<&str>, options: &Options) -> Result<Self, Failure> {
        let canceller = Canceller::new();
        let start = [StartFrom::Next, StartFrom::Newest, StartFrom::Oldest];
        let mut builder = xmem_core::Consumer::builder(pool)
            .parts(true)
            .dmabuf(options.dmabuf != 0)
            .newest_only(options.newest_only != 0)
            .start_from(choose("start_from", options.start_from, &start)?)
            .busy_poll(limit(options.busy_poll).unwrap_or_default())
            .canceller(&canceller);
        if options.max_held > 0 {
            builder = builder.max_held(options.max_held);
        }
        if let Some(name) = name {
            builder = builder.name(name);
        }
        if options.max_rate != 0.0 {
            builder = builder.max_rate(1, interval(options.max_rate)?);
        }
        let lost = [OnLost::Wait, OnLost::End, OnLost::Fail];
        let over = [OverBudget::Copy, OverBudget::Drop, OverBudget::Fail];
        // A name that no pool can have is an error now, and not of each call.
        builder
            .socket_path()
            .map_err(|error| Failure::new(Code::Argument, error.to_string()))?;
        let follower = builder
            .follow()
            .connect_timeout(limit_or_none(options.connect_timeout))
            .on_eos(choose(
                "on_eos",
                options.on_eos,
                &[OnEos::End, OnEos::Wait],
            )?)
            .on_lost(choose("on_producer_lost", options.on_producer_lost, &lost)?)
            .over_budget(choose("over_budget", options.over_budget, &over)?);
        Ok(Self {
            canceller,
            handle: follower.handle(),
            receiving: Mutex::new(Receiving {
                follower,
                common: None,
            }),
            ready: OnceLock::new(),
        })
    }

    fn lock(&self) -> Result<MutexGuard<'_, Receiving>, Failure> {
        match self.receiving.try_lock() {
            Ok(receiving) => Ok(receiving),
            Err(TryLockError::Poisoned(error)) => Ok(error.into_inner()),
            Err(TryLockError::WouldBlock) => Err(Failure::new(
                Code::Busy,
                "another thread uses this consumer: use one for each thread, or take turns",
            )),
        }
    }

    /// Returns the handle of the next frame.
    fn next(&self, timeout: Option<Duration>) -> Result<u64, Failure> {
        let mut receiving = self.lock()?;
        match (receiving.take(timeout), self.ready.get()) {
            (Err(failure), Some(ready)) if failure.is_timeout() => {
                // A frame may come between the wait and the clearing. The descriptor stays readable after it, since there may be more.
                ready.clear();
                let frame = receiving.take(Some(Duration::ZERO))?;
                ready.signal();
                Ok(frame)
            }
            (taken, _) => taken,
        }
    }
}

/// The handle of a frame that is being taken. The core takes the next frame if this one vanishes while it is copied.
struct Added(u64);

impl Added {
    fn keep(self) -> u64 {
        let number = self.0;
        mem::forget(self);
        number
    }
}

impl Drop for Added {
    fn drop(&mut self) {
        let _ = FRAMES.remove(self.0);
    }
}

impl Receiving {
    /// Takes the next frame, of whatever producer, and returns its handle.
    fn take(&mut self, timeout: Option<Duration>) -> Result<u64, Failure> {
        let Self { follower, common } = self;
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let left = || deadline.map(|it| it.saturating_duration_since(Instant::now()));
        let mut last = None;
        loop {
            let is_over = || left().is_some_and(|left| left.is_zero());
            // Added here, because each move of a frame would cost as much as the lookup of a handle.
            let add = |taken: Taken<'_>| {
                let is_copied = matches!(taken, Taken::Lent(_));
                let frame = Frame::new(taken, common)?;
                let added = FRAMES.add(Handle::First(frame));
                Some((is_copied, added.map(Added)))
            };
            match follower.step(left(), add) {
                Ok(Step::Took(Some((is_copied, added)))) => {
                    if is_copied {
                        follower.note_copied();
                    }
                    return added.map(Added::keep);
                }
                Ok(Step::Took(None)) => follower.note_dropped(),
                Ok(Step::NoProducer { error, .. }) if is_over() => {
                    return Err(Failure::new(Code::Timeout, error.to_string()));
                }
                Ok(Step::NoProducer { error, .. }) => last = Some(error),
                Ok(Step::Nothing | Step::Dropped(..)) if is_over() => {
                    let text = last.map_or_else(
                        || "no frame came before the timeout".to_owned(),
                        |error| error.to_string(),
                    );
                    return Err(Failure::new(Code::Timeout, text));
                }
                Ok(_) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn xmem_consumer_open(
    pool: *const c_char,
    options: *const Options,
    consumer: *mut u64,
) -> c_int {
    give(consumer, "consumer", || {
        // SAFETY: xmem.h asks for texts, and for a structure that begins with its size.
        let (pool, options) = unsafe { (given(pool, "pool")?, Options::read(options, "options")?) };
        // SAFETY: as above.
        let name = unsafe { text(options.name, "name") }?;
        CONSUMERS.add(Consumer::new(pool, name, &options)?)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn xmem_consumer_next(consumer: u64, timeout: i64, frame: *mut u64) -> c_int {
    give(frame, "frame", || {
        CONSUMERS.get(consumer)?.next(limit(timeout))
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn xmem_consumer_fd(consumer: u64, fd: *mut c_int) -> c_int {
    call(|| {
        let fd = Out::new(fd, "fd")?;
        fd.set(-1);
        let consumer = CONSUMERS.get(consumer)?;
        let mut receiving = consumer.lock()?;
        let ready = match consumer.ready.get() {
            Some(ready) => ready,
            None => {
                let made = ReadyFd::new()?;
                receiving.follower.notify(&made)?;
                let ready = consumer.ready.get_or_init(|| made);
                // Whatever came before the notification was set up.
                ready.signal();
                ready
            }
        };
        fd.set(ready.as_raw_fd());
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn xmem_consumer_cancel(consumer: u64) -> c_int {
    call(|| {
        CONSUMERS.get(consumer)?.canceller.cancel();
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn xmem_consumer_request_key_frame(consumer: u64) -> c_int {
    call(|| {
        let consumer = CONSUMERS.get(consumer)?.handle.consumer();
        let consumer = consumer.ok_or(RequestError::ProducerLost)?;
        consumer.request(KeyFrame::NAME, &KeyFrame::NOW.encode())?;
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn xmem_consumer_get_stats(consumer: u64, stats: *mut Statistics) -> c_int {
    call(|| {
        let handle = CONSUMERS.get(consumer)?.handle.clone();
        let now = handle.stats();
        let describe = |out: &mut Statistics| {
            out.received = now.receive.received;
            out.missed = now.receive.missed;
            out.skipped = now.receive.skipped;
            out.copied = now.copied;
            out.dropped = now.dropped;
            out.reconnects = now.reconnects;
            out.latency = now.receive.latency_ns;
            out.held = now.receive.held;
            out.budget = now.receive.budget;
            out.is_connected = handle.consumer().is_some().into();
        };
        // SAFETY: xmem.h asks for a structure that begins with its size.
        unsafe { Statistics::fill(stats, "stats", describe) }
    })
}

#[unsafe(no_mangle)]
extern "C" fn xmem_consumer_close(consumer: u64) -> c_int {
    call(|| {
        let consumer = CONSUMERS.remove(consumer)?;
        // A thread that waits in `xmem_consumer_next` drops the consumer then.
        consumer.canceller.cancel();
        Ok(())
    })
}
