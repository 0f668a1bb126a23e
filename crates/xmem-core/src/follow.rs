// SPDX-License-Identifier: MPL-2.0

//! The frames of a pool over successive producers.
//!
//! A [`Consumer`] is a connection to one producer, and ends with it. A [`Follower`] makes a new connection each time, and
//! continues after the last frame.
//!
//! ```no_run
//! use xmem_core::Consumer;
//! use xmem_core::follow::OnEos;
//!
//! // For ever: over producers that stop, are killed, or end their stream.
//! for frame in Consumer::builder("cam0").follow().on_eos(OnEos::Wait) {
//!     let frame = frame?;
//!     println!("{} bytes", frame.size());
//! }
//! # Ok::<(), xmem_core::follow::FollowError>(())
//! ```
//!
//! [`Follower::step`] does the same with time limits, with frames past the budget, and with a report of events between frames.

use std::io;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use thiserror::Error;
use xmem_shm::abi::budget::BudgetLimit;
use xmem_shm::abi::entry::FrameInfo;
use xmem_shm::abi::meta::FrameMeta;
use xmem_shm::lock::lock;
use xmem_shm::os::fork::ProcessId;

use crate::consumer::{Consumer, ConsumerBuilder, ConsumerHandle, ReadyFd};
use crate::error::{ConnectError, ReceiveError, SystemError};
use crate::frame::lease::ReadLease;
use crate::stats::ReceiveStats;

/// The pause after an attempt that failed for lack of descriptors or memory, because such an attempt fails at once.
const PAUSE: Duration = Duration::from_millis(10);

/// The action of a follower at the end of the producer's stream.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Hash)]
pub enum OnEos {
    /// It ends too.
    #[default]
    End,
    /// It waits for the same producer's next stream, or for the next producer.
    Wait,
}

/// The action of a follower when its producer has ended, or has disconnected it by its lossless timeout.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Hash)]
pub enum OnLost {
    /// It joins the next producer, or the same one again, and continues after the last frame that it took.
    #[default]
    Wait,
    /// It ends. A disconnect is an error, because the stream has not ended.
    End,
    /// It is an error.
    Fail,
}

/// The action of a follower on a frame for which its budget has no room.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Hash)]
pub enum OverBudget {
    /// An error. The frame is not taken, and stays while the producer keeps it.
    #[default]
    Fail,
    /// The frame is [lent](Taken::Lent), so that it can be copied. With a budget of 0 each frame is lent.
    Copy,
    /// The frame is dropped. Events are lent. With a budget of 0 one frame at a time is kept, and until it is released all frames
    /// and events are dropped.
    Drop,
}

/// A frame, or an event, that was taken from the pool.
#[derive(Debug)]
pub enum Taken<'a> {
    /// It counts against the budget until the lease is dropped.
    Kept(ReadLease),
    /// It is beyond the budget: copy the bytes that you need.
    Lent(&'a ReadLease),
}

impl Taken<'_> {
    /// The lease of a frame that can be kept.
    pub fn kept(self) -> Option<ReadLease> {
        match self {
            Self::Kept(lease) => Some(lease),
            Self::Lent(_) => None,
        }
    }
}

/// The result of one step of a follower.
#[derive(Debug)]
#[non_exhaustive]
pub enum Step<T> {
    /// A frame or an event was taken; this is the result of the function.
    Took(T),
    /// A frame was dropped because the budget is used up ([`OverBudget::Drop`]); or an event, if the budget is 0.
    Dropped(FrameInfo, FrameMeta),
    /// No frame came before the timeout.
    Nothing,
    /// There is no producer yet. The next step tries again.
    NoProducer {
        /// The error of the last attempt.
        error: ConnectError,
        /// The time without a producer.
        waited: Duration,
    },
    /// There is a producer now.
    Joined {
        /// Whether there was one before.
        again: bool,
    },
    /// The producer is lost. The next step looks for the next one ([`OnLost::Wait`]).
    Lost(Lost),
    /// The stream has ended. The next step waits for the next stream ([`OnEos::Wait`]).
    Eos,
    /// The producer's limits keep the budget ([`Consumer::budget_limit`]) so small that frames must be copied or dropped.
    /// Returned once, before the first of these frames.
    SmallBudget,
    /// For two seconds all frames were dropped, because the frames that are held use up the budget. If the program releases a
    /// frame only when it gets a newer one, as a sink in GStreamer does with its last frame, no frame is delivered any more.
    /// Returned once, until a frame is delivered.
    AllHeld,
}

/// How a producer was lost.
#[derive(Debug)]
#[non_exhaustive]
pub struct Lost {
    /// [`ReceiveError::ProducerLost`], or [`ReceiveError::TimedOut`].
    pub error: ReceiveError,
    /// The name of the pool, from its producer.
    pub pool: String,
    /// As [`Consumer::producer_pid`].
    pub producer_pid: u32,
    /// The sequence of the last frame or event that was taken, of any producer.
    pub last: Option<u64>,
}

/// The reason why a follower has stopped.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum FollowError {
    /// The stream has ended ([`OnEos::End`]), or the producer has ([`OnLost::End`]).
    #[error("the stream has ended")]
    End,
    /// The wait was cancelled.
    #[error("the wait was cancelled")]
    Cancelled,
    /// No producer was found within [`Follower::connect_timeout`].
    #[error(transparent)]
    NoProducer(ConnectError),
    /// The producer cannot be joined.
    #[error(transparent)]
    Connect(ConnectError),
    /// The producer is lost ([`OnLost::Fail`], [`OnLost::End`]).
    #[error("{}", .0.error)]
    Lost(Lost),
    /// A frame cannot be received, for another reason.
    #[error(transparent)]
    Receive(ReceiveError),
}

/// Figures of a follower, over all its producers.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct FollowerStats {
    /// `received`, `missed`, `skipped` and `held` are sums. The others are those of the last connection.
    pub receive: ReceiveStats,
    /// Frames that were copied: [`Follower::note_copied`].
    pub copied: u64,
    /// Frames that were taken and dropped: [`Follower::note_dropped`], [`Step::Dropped`].
    pub dropped: u64,
    /// The number of joins after the first.
    pub reconnects: u64,
    /// As [`Consumer::device`], of the last connection.
    pub device: String,
}

impl FollowerStats {
    fn add(&mut self, mut connection: ReceiveStats, device: String) {
        // The producer can write to these counts.
        let sum = |count: &mut u64, before| *count = count.saturating_add(before);
        sum(&mut connection.received, self.receive.received);
        sum(&mut connection.missed, self.receive.missed);
        sum(&mut connection.skipped, self.receive.skipped);
        if connection.latency_ns == 0 {
            connection.latency_ns = self.receive.latency_ns;
        }
        self.receive = connection;
        self.device = device;
    }
}

#[derive(Debug, Default)]
struct Figures {
    /// Without the figures of the present connection.
    total: FollowerStats,
    /// Ended connections of which frames may still be held.
    past: Vec<ConsumerHandle>,
    now: Option<ConsumerHandle>,
}

impl Figures {
    /// The number of held slots over all connections. Removes ended connections without held slots.
    fn held(&mut self) -> u32 {
        let held = |handle: &ConsumerHandle| handle.stats().map_or(0, |stats| stats.held);
        self.past.retain(|handle| held(handle) > 0);
        self.past.iter().chain(&self.now).map(held).sum()
    }
}

/// A handle to a follower for other threads. It keeps no connection alive.
#[derive(Debug, Clone)]
pub struct FollowerHandle {
    figures: Arc<Mutex<Figures>>,
    process: ProcessId,
}

impl FollowerHandle {
    /// `None`: this is a forked child, where the lock may be held by a thread that exists only in the parent.
    fn with<T>(&self, f: impl FnOnce(&mut Figures) -> T) -> Option<T> {
        if self.process.is_current() {
            return Some(f(&mut lock(&self.figures)));
        }
        self.figures.try_lock().ok().map(|mut it| f(&mut it))
    }

    /// The connection to the present producer. `None`: there is no producer.
    pub fn consumer(&self) -> Option<ConsumerHandle> {
        self.with(|figures| figures.now.clone())?
    }

    /// [`FollowerStats::dropped`] alone, for each frame.
    pub fn dropped(&self) -> u64 {
        self.with(|figures| figures.total.dropped).unwrap_or(0)
    }

    /// The figures, also after the follower was dropped.
    pub fn stats(&self) -> FollowerStats {
        // Under the lock, so that each connection is either in the total or the present one.
        let stats = self.with(|figures| {
            let mut stats = figures.total.clone();
            if let Some(now) = &figures.now
                && let Some(connection) = now.stats()
            {
                stats.add(connection, now.device().unwrap_or_default());
            }
            stats.receive.held = figures.held();
            stats
        });
        stats.unwrap_or_default()
    }
}

impl ConsumerBuilder {
    /// Makes a [`Follower`], which joins the pool with its first step.
    pub fn follow(self) -> Follower {
        Follower {
            next: self.clone(),
            begin: self,
            consumer: None,
            connect_timeout: None,
            on_eos: OnEos::default(),
            on_lost: OnLost::default(),
            over_budget: OverBudget::default(),
            waiting_since: None,
            joined: false,
            last: None,
            hinted: false,
            starving: None,
            ready: None,
            handle: FollowerHandle {
                figures: Arc::default(),
                process: ProcessId::current(),
            },
        }
    }
}

/// Receives the frames of a pool over successive producers.
///
/// As an iterator it waits for each frame, and returns errors as items, after which it can continue. It ends with
/// [`FollowError::End`]. The iterator drops the frames and events that are [lent](Taken::Lent), because it cannot copy them.
///
/// The builder's [canceller](ConsumerBuilder::canceller) cancels its waits. A drop leaves the pool; frames that are still held stay
/// valid. In a forked child each step is an error.
#[derive(Debug)]
#[must_use]
pub struct Follower {
    /// How it joins first.
    begin: ConsumerBuilder,
    /// How it joins next.
    next: ConsumerBuilder,
    /// `None`: there is no producer now.
    consumer: Option<Consumer>,
    connect_timeout: Option<Duration>,
    on_eos: OnEos,
    on_lost: OnLost,
    over_budget: OverBudget,
    /// `None`: there is a producer, or no step has looked for one yet.
    waiting_since: Option<Instant>,
    /// It has joined a producer before.
    joined: bool,
    last: Option<u64>,
    /// [`Step::SmallBudget`] was returned.
    hinted: bool,
    starving: Option<Starving>,
    ready: Option<ReadyFd>,
    handle: FollowerHandle,
}

impl Follower {
    /// The longest wait for a producer, at the start and after each loss. Default: no limit.
    pub fn connect_timeout(mut self, timeout: Option<Duration>) -> Self {
        self.connect_timeout = timeout;
        self
    }

    /// The action at the end of the stream. Default: [`OnEos::End`].
    pub fn on_eos(mut self, on_eos: OnEos) -> Self {
        self.on_eos = on_eos;
        self
    }

    /// The action when a producer is lost. Default: [`OnLost::Wait`].
    pub fn on_lost(mut self, on_lost: OnLost) -> Self {
        self.on_lost = on_lost;
        self
    }

    /// The action on frames for which the budget has no room. Default: [`OverBudget::Fail`].
    pub fn over_budget(mut self, over_budget: OverBudget) -> Self {
        self.over_budget = over_budget;
        self
    }

    /// The connection to the present producer. `None`: there is no producer.
    pub fn consumer(&self) -> Option<&Consumer> {
        self.consumer.as_ref()
    }

    /// A handle for other threads while this one waits.
    pub fn handle(&self) -> FollowerHandle {
        self.handle.clone()
    }

    /// Looks for a producer if there is none, otherwise waits for a frame, at most for `timeout` (`None`: no limit).
    ///
    /// `take` is called with the frame. If a [lent](Taken::Lent) frame was lost during the call, it is called again with the next
    /// frame: see [`Consumer::receive_with`].
    ///
    /// A search may return before the timeout. A producer that exists has at least half a second to answer: see
    /// [`ConsumerBuilder::connect_wait`].
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let pool = dir.path().join("p.sock");
    /// # let pool = pool.to_str().unwrap();
    /// # use xmem_core::{Consumer, FrameMeta, Producer};
    /// use xmem_core::follow::{OverBudget, Step, Taken};
    ///
    /// # let producer = Producer::builder(pool).build()?;
    /// let follower = Consumer::builder(pool).max_held(1).follow();
    /// let mut follower = follower.over_budget(OverBudget::Copy);
    /// let (mut kept, mut copies) = (Vec::new(), Vec::new());
    /// while copies.is_empty() {
    ///     let step = follower.step(None, |taken| match taken {
    ///         Taken::Kept(lease) => kept.push(lease),
    ///         Taken::Lent(lease) => copies.extend(lease.bytes().map(<[u8]>::to_vec)),
    ///     })?;
    ///     match step {
    ///         Step::Joined { again } => println!("a producer is there (again: {again})"),
    ///         Step::Lost(lost) => println!("{}", lost.error),
    ///         _ => {}
    ///     }
    /// #   producer.acquire(3)?.publish(FrameMeta::new(3))?;
    /// }
    /// # assert_eq!(kept.len(), 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// See [`FollowError`]. A later step tries again. An error about the connection to a producer, such as [`FollowError::Lost`],
    /// repeats until [`leave`](Self::leave) ends that connection.
    pub fn step<T>(
        &mut self,
        timeout: Option<Duration>,
        mut take: impl FnMut(Taken<'_>) -> T,
    ) -> Result<Step<T>, FollowError> {
        if !self.handle.process.is_current() {
            return Err(FollowError::Receive(ReceiveError::Forked));
        }
        let Some(consumer) = &mut self.consumer else {
            return self.find_producer(timeout);
        };
        let received = if self.over_budget == OverBudget::Copy {
            // With a budget of 0, a frame must be dropped soon. Only a copy ensures that.
            consumer.receive_within_budget(timeout)
        } else if !self.hinted && consumer.budget() == 0 && is_cut(consumer) {
            self.hinted = true;
            return Ok(Step::SmallBudget);
        } else {
            consumer.receive(timeout)
        };
        match received {
            Ok(lease) => {
                self.last = Some(lease.info().sequence);
                Ok(Step::Took(take(Taken::Kept(lease))))
            }
            Err(error) => self.go_on_after(error, timeout, take),
        }
    }

    /// Continues after a frame past the budget, or after another reason why no frame was received.
    #[cold]
    fn go_on_after<T>(
        &mut self,
        error: ReceiveError,
        timeout: Option<Duration>,
        mut take: impl FnMut(Taken<'_>) -> T,
    ) -> Result<Step<T>, FollowError> {
        let Some(consumer) = &mut self.consumer else {
            return Err(FollowError::Receive(error));
        };
        let received = match error {
            ReceiveError::OverBudget { .. } if self.over_budget != OverBudget::Fail => {
                if !self.hinted && is_cut(consumer) {
                    self.hinted = true;
                    return Ok(Step::SmallBudget);
                }
                let stats = consumer.stats();
                let delivered = stats.received.wrapping_sub(self.handle.dropped());
                if Starving::is_due(&mut self.starving, delivered) {
                    return Ok(Step::AllHeld);
                }
                let received = consumer.receive_with(timeout, |lease| {
                    self.last = Some(lease.info().sequence);
                    if self.over_budget == OverBudget::Drop && !lease.meta().event {
                        Step::Dropped(*lease.info(), lease.meta().clone())
                    } else {
                        Step::Took(take(Taken::Lent(lease)))
                    }
                });
                match received {
                    // With a budget of 0 the frame that is held has the lease that is past the budget.
                    Err(ReceiveError::OverBudget { .. })
                        if self.over_budget == OverBudget::Drop =>
                    {
                        let skipped = consumer.skip_next();
                        Ok(skipped.map_or(Step::Nothing, |(info, meta)| {
                            self.last = Some(info.sequence);
                            Step::Dropped(info, meta)
                        }))
                    }
                    received => received,
                }
            }
            error => Err(error),
        };
        match received {
            Ok(step) => {
                if matches!(&step, Step::Dropped(_, meta) if !meta.event) {
                    self.note_dropped();
                }
                Ok(step)
            }
            Err(ReceiveError::Timeout) => Ok(Step::Nothing),
            Err(ReceiveError::Cancelled) => Err(FollowError::Cancelled),
            Err(ReceiveError::Eos) if self.on_eos == OnEos::Wait => {
                consumer.pass_eos();
                Ok(Step::Eos)
            }
            Err(ReceiveError::Eos) => Err(FollowError::End),
            Err(error @ (ReceiveError::ProducerLost | ReceiveError::TimedOut)) => self.lost(error),
            Err(error) => Err(FollowError::Receive(error)),
        }
    }

    #[cold]
    fn find_producer<T>(&mut self, timeout: Option<Duration>) -> Result<Step<T>, FollowError> {
        let waited = self.waited();
        let left = self.connect_timeout.map(|most| most.saturating_sub(waited));
        let time = timeout.into_iter().chain(left).min();
        let found = self.next.connect_wait(time);
        if found.as_ref().is_err_and(ConnectError::is_shortage) {
            // The pause keeps a caller that tries again at once from a busy loop.
            std::thread::sleep(time.map_or(PAUSE, |time| time.min(PAUSE)));
        }
        self.found(found)
    }

    fn waited(&mut self) -> Duration {
        self.waiting_since
            .get_or_insert_with(Instant::now)
            .elapsed()
    }

    /// How it joins next, for a search on another thread. Pass the result to [`found`](Self::found).
    pub fn next_join(&self) -> &ConsumerBuilder {
        &self.next
    }

    /// Continues with the result of another thread's search.
    ///
    /// # Errors
    ///
    /// As [`step`](Self::step).
    pub fn found<T>(
        &mut self,
        found: Result<Consumer, ConnectError>,
    ) -> Result<Step<T>, FollowError> {
        // The end of the last connection has made it readable.
        self.ready.iter().for_each(ReadyFd::clear);
        let error = match found {
            Ok(consumer) => return self.join(consumer),
            Err(ConnectError::Cancelled) => {
                self.waiting_since = None;
                return Err(FollowError::Cancelled);
            }
            Err(error) => error,
        };
        self.next.note_failure(&error);
        // At the start a shortage is an error. Later it is waited for, like a restart of the producer.
        let may_pass = error.may_pass() || self.joined && error.is_shortage();
        if !may_pass {
            return Err(FollowError::Connect(error));
        }
        let waited = self.waited();
        if self.connect_timeout.is_some_and(|most| waited >= most) {
            return Err(FollowError::NoProducer(error));
        }
        Ok(Step::NoProducer { error, waited })
    }

    fn join<T>(&mut self, mut consumer: Consumer) -> Result<Step<T>, FollowError> {
        if let Some(ready) = &self.ready {
            let notify = consumer.notify(ready);
            let notify = notify.map_err(SystemError::at("watch a socket"));
            notify.map_err(|error| FollowError::Connect(error.into()))?;
        }
        drop(self.disconnect());
        self.waiting_since = None;
        let again = std::mem::replace(&mut self.joined, true);
        self.handle.with(|figures| {
            figures.total.reconnects += u64::from(again);
            figures.now = Some(consumer.handle());
        });
        self.consumer = Some(consumer);
        Ok(Step::Joined { again })
    }

    fn lost<T>(&mut self, error: ReceiveError) -> Result<Step<T>, FollowError> {
        let is_gone = matches!(error, ReceiveError::ProducerLost);
        if self.on_lost == OnLost::End && is_gone {
            return Err(FollowError::End);
        }
        let consumer = self.consumer.as_ref();
        let lost = Lost {
            error,
            pool: consumer.map_or_else(String::new, |it| it.pool().to_owned()),
            producer_pid: consumer.map_or(0, Consumer::producer_pid),
            last: self.last,
        };
        if self.on_lost != OnLost::Wait {
            return Err(FollowError::Lost(lost));
        }
        if let Some(consumer) = self.disconnect() {
            self.next = self.next.clone().resume(&consumer);
        }
        self.waiting_since = Some(Instant::now());
        Ok(Step::Lost(lost))
    }

    /// Ends the connection, and updates the figures.
    fn disconnect(&mut self) -> Option<Consumer> {
        let consumer = self.consumer.take()?;
        let (stats, device) = (consumer.stats(), consumer.device());
        self.handle.with(|figures| {
            figures.total.add(stats, device);
            // Keeps the list of ended connections short.
            figures.held();
            figures.past.extend(figures.now.take());
        });
        Some(consumer)
    }

    /// Leaves the pool, if it has joined one. A later step starts again. The connection ends when the returned consumer is
    /// dropped, which waits for a thread to end.
    pub fn leave(&mut self) -> Option<Consumer> {
        self.next = self.begin.clone();
        self.joined = false;
        self.waiting_since = None;
        self.disconnect()
    }

    /// Like [`Consumer::notify`], for each connection. Without a producer the descriptor reports nothing: call a step to look
    /// for one. The end of a connection is reported once, until the next step.
    ///
    /// # Errors
    ///
    /// As [`Consumer::notify`].
    pub fn notify(&mut self, ready: &ReadyFd) -> io::Result<()> {
        if let Some(consumer) = &mut self.consumer {
            consumer.notify(ready)?;
        }
        self.ready = Some(ready.clone());
        Ok(())
    }

    /// As [`Consumer::note_copied`], and for [`FollowerStats::copied`].
    pub fn note_copied(&self) {
        // The producer's figures are updated first, so they are never lower.
        self.consumer.iter().for_each(Consumer::note_copied);
        self.handle.with(|figures| figures.total.copied += 1);
    }

    /// As [`Consumer::note_dropped`], and for [`FollowerStats::dropped`].
    pub fn note_dropped(&self) {
        self.consumer.iter().for_each(Consumer::note_dropped);
        self.handle.with(|figures| figures.total.dropped += 1);
    }
}

/// The time without a delivered frame after which [`Step::AllHeld`] is returned.
const STARVING: Duration = Duration::from_secs(2);

/// The budget is used up, and no frame is delivered.
#[derive(Debug, Clone, Copy)]
struct Starving {
    since: Instant,
    /// Taken frames less dropped ones: the same number as long as none is delivered.
    delivered: u64,
    is_reported: bool,
}

impl Starving {
    /// Called for each frame that the budget has no room for. Returns whether it is time to report that none is delivered.
    fn is_due(this: &mut Option<Self>, delivered: u64) -> bool {
        let begun = Self {
            since: Instant::now(),
            delivered,
            is_reported: false,
        };
        let this = this.get_or_insert(begun);
        if this.delivered != delivered {
            *this = begun;
        }
        this.since.elapsed() >= STARVING && !std::mem::replace(&mut this.is_reported, true)
    }
}

/// Whether a consumer's budget is smaller than requested.
fn is_cut(consumer: &Consumer) -> bool {
    consumer.budget_limit() != BudgetLimit::Asked
}

impl Iterator for Follower {
    type Item = Result<ReadLease, FollowError>;

    fn next(&mut self) -> Option<Self::Item> {
        let take = |taken: Taken<'_>| match taken {
            Taken::Kept(lease) => Ok(lease),
            Taken::Lent(lease) => Err(lease.meta().event),
        };
        loop {
            match self.step(None, take) {
                Ok(Step::Took(Ok(lease))) => return Some(Ok(lease)),
                Ok(Step::Took(Err(is_event))) if !is_event => self.note_dropped(),
                Ok(_) => {}
                Err(FollowError::End) => return None,
                Err(error) => return Some(Err(error)),
            }
        }
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        if self.handle.process.is_current() {
            drop(self.disconnect());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Producer;
    use xmem_shm::testing::is_so_in_a_child_without;

    #[test]
    fn a_forked_child_does_not_wait_for_locks_of_other_threads() {
        let dir = tempfile::tempdir().unwrap();
        let pool = dir.path().join("p.sock");
        let producer = Producer::builder(&pool).build().unwrap();
        for is_joined in [false, true] {
            let mut follower = Consumer::builder(producer.pool()).follow();
            if is_joined {
                follower.step(None, |_| ()).unwrap();
            }
            let handle = follower.handle();
            let lock = || lock(&handle.figures);
            let is_refused = || {
                let step = follower.step(None, |_| ());
                follower.note_dropped();
                let is_refused = matches!(step, Err(FollowError::Receive(ReceiveError::Forked)));
                is_refused
                    && handle.stats() == FollowerStats::default()
                    && handle.consumer().is_none()
            };
            assert!(is_so_in_a_child_without(lock, is_refused), "it hung");
        }
    }
}
