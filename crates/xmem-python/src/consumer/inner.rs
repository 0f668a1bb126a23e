// SPDX-License-Identifier: MPL-2.0

//! What a consumer takes, over all producers that the pool has one after another.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use pyo3::prelude::*;
use xmem_core::cuda::CudaError;
use xmem_core::{
    BudgetLimit, ConnectError, ConsumerBuilder, ConsumerHandle, ReadLease, ReceiveError,
    ReceiveStats,
};

use crate::bell::Bell;
use crate::errors::{IntoPyErr, Kind};
use crate::event::Event;
use crate::frame::{Frame, Unusable, Way};
use crate::lock::lock;

/// What to do at the end of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum OnEos {
    End,
    Wait,
}

/// What to do when the producer is gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum OnLost {
    Wait,
    End,
    Raise,
}

/// What to do with a frame when as many are held as may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum OverBudget {
    Copy,
    Drop,
    Raise,
}

/// Figures over all connections.
#[derive(Debug, Default, Clone)]
pub(super) struct Figures {
    /// Of connections that are over.
    pub(super) before: ReceiveStats,
    /// Those that frames may still be held of.
    past: Vec<ConsumerHandle>,
    pub(super) now: Option<ConsumerHandle>,
    pub(super) copied: u64,
    pub(super) dropped: u64,
    pub(super) reconnects: u64,
}

impl Figures {
    /// How many slots are held, of all connections.
    pub(super) fn held(&mut self) -> u32 {
        let mut held = 0;
        let held_of = |handle: &ConsumerHandle| handle.stats().map_or(0, |stats| stats.held);
        self.past.retain(|handle| {
            let still = held_of(handle);
            held += still;
            still > 0
        });
        held + self.now.as_ref().map_or(0, held_of)
    }

    /// A connection is over, and had these figures.
    fn add(&mut self, stats: ReceiveStats) {
        self.before.received += stats.received;
        self.before.missed += stats.missed;
        self.before.budget = stats.budget;
        self.before.budget_limit = stats.budget_limit;
        self.before.latency_ns = stats.latency_ns;
        // Who loses many producers does not keep a list of all of them.
        self.held();
        self.past.extend(self.now.take());
    }
}

/// What looks for a producer puts here what it found.
type Found = Arc<Mutex<Option<Result<xmem_core::Consumer, ConnectError>>>>;

#[derive(Debug)]
pub(super) struct Inner {
    pub(super) builder: ConsumerBuilder,
    /// `None`: there is no producer now.
    pub(super) connected: Option<xmem_core::Consumer>,
    /// When the producer was lost.
    pub(super) lost_at: Option<Instant>,
    /// How long to wait for a producer.
    pub(super) patience: Option<Duration>,
    pub(super) on_eos: OnEos,
    pub(super) on_lost: OnLost,
    pub(super) over_budget: OverBudget,
    pub(super) figures: Arc<Mutex<Figures>>,
    /// Rung when there may be something to receive. `None`: nobody asked for it.
    pub(super) bell: Option<Bell>,
    /// A thread looks for a producer, for who waits for the bell.
    pub(super) looking: Option<Found>,
    /// The number of what was taken last.
    pub(super) last: Option<u64>,
    /// It was warned of a budget that is smaller than what was asked for.
    pub(super) warned_of_budget: bool,
    /// What became of the last look, if there is a producer that does not answer.
    pub(super) no_answer: Option<ConnectError>,
}

/// What a stream consists of.
#[derive(Debug, IntoPyObject)]
pub(super) enum Item {
    Frame(Frame),
    Event(Event),
}

/// What was taken from the pool.
pub(super) enum Took {
    Frame(Result<(Frame, Way), Unusable>),
    /// `None`: nothing that anybody has to know of.
    Event(Option<Event>),
}

/// What became of a wait for a frame.
pub(super) enum Step {
    Item(Item),
    Nothing,
    /// There is something to warn of before the next step.
    Warn(String),
    Failed(Failure),
}

#[derive(Debug)]
pub(super) enum Failure {
    Receive(ReceiveError),
    Connect(ConnectError),
    /// The stream is over, or counts as over.
    End,
    Unusable(Unusable),
}

impl Failure {
    pub(super) fn into_py_err(self) -> PyErr {
        match self {
            Self::Receive(error) => error.into_py_err(),
            Self::Connect(error) => error.into_py_err(),
            Self::End => ReceiveError::Eos.into_py_err(),
            Self::Unusable(Unusable::Nonsense(reason)) => Kind::Error.error(reason),
            Self::Unusable(Unusable::Cuda(error)) => error.into_py_err(),
            Self::Unusable(Unusable::Unfinished) => CudaError::Unfinished.into_py_err(),
        }
    }
}

impl Inner {
    fn figures(&self) -> MutexGuard<'_, Figures> {
        lock(&self.figures)
    }

    pub(super) fn connect(&mut self, timeout: Duration) -> Step {
        let result = match self.bell.clone() {
            None => self.builder.connect_wait(Some(timeout)),
            Some(bell) => match self.look_for_producer(&bell, timeout) {
                Some(result) => result,
                None => return Step::Nothing,
            },
        };
        match result {
            Ok(consumer) => self.connected(consumer),
            Err(error @ (ConnectError::NotFound { .. } | ConnectError::NoAnswer { .. })) => {
                let waited = self.lost_at.map_or(Duration::ZERO, |at| at.elapsed());
                if self.lost_at.is_some() && self.patience.is_some_and(|most| waited >= most) {
                    return Step::Failed(Failure::Connect(error));
                }
                if let Some(bell) = &self.bell {
                    // So that whoever waits for it comes back, and another thread looks.
                    bell.ring();
                }
                self.no_answer =
                    Some(error).filter(|error| matches!(error, ConnectError::NoAnswer { .. }));
                Step::Nothing
            }
            Err(error) => Step::Failed(Failure::Connect(error)),
        }
    }

    /// What the thread found that looks for a producer; who waits for the bell cannot do so himself. `None`: nothing yet.
    fn look_for_producer(
        &mut self,
        bell: &Bell,
        timeout: Duration,
    ) -> Option<Result<xmem_core::Consumer, ConnectError>> {
        // Before the look: what is found after it makes it readable again.
        bell.silence();
        if let Some(found) = &self.looking {
            let result = lock(found).take();
            if result.is_none() {
                // Who waits here instead has to come back to look at signals anyway.
                bell.wait(timeout);
                return None;
            }
            self.looking = None;
            return result;
        }
        let found = Found::default();
        let thread = std::thread::Builder::new().name("xmem-look".into());
        let spawned = thread.spawn({
            let (builder, bell, found) = (self.builder.clone(), bell.clone(), found.clone());
            move || {
                // Not for ever, so that it is noticed when nobody looks any more.
                let result = builder.connect_wait(Some(PATIENCE_OF_THREAD));
                *lock(&found) = Some(result);
                bell.ring();
            }
        });
        match spawned {
            Ok(_) => {
                self.looking = Some(found);
                None
            }
            Err(error) => Some(Err(no_thread(error))),
        }
    }

    fn connected(&mut self, mut consumer: xmem_core::Consumer) -> Step {
        if let Some(bell) = &self.bell
            && let Err(error) = consumer.notify(bell.fd().clone())
        {
            return Step::Failed(Failure::Connect(no_thread(error)));
        }
        let reconnected = self.lost_at.take().is_some();
        let mut figures = self.figures();
        figures.reconnects += u64::from(reconnected);
        figures.now = Some(consumer.handle());
        drop(figures);
        self.connected = Some(consumer);
        Step::Nothing
    }

    /// From here on the bell says when there may be something to receive.
    pub(super) fn notify(&mut self, bell: Bell) -> std::io::Result<()> {
        if let Some(consumer) = &mut self.connected {
            consumer.notify(bell.fd().clone())?;
        }
        // Who waits for it looks once, and waits then for what that found missing.
        bell.ring();
        self.bell = Some(bell);
        Ok(())
    }

    pub(super) fn step(&mut self, timeout: Duration) -> Step {
        let Some(consumer) = &mut self.connected else {
            return self.connect(timeout);
        };
        let limit = consumer.budget_limit();
        let is_warned = limit == BudgetLimit::Asked || self.warned_of_budget;
        if !is_warned && consumer.budget() == 0 {
            self.warned_of_budget = true;
            return Step::Warn(small_budget(consumer));
        }
        let last = &mut self.last;
        let copies = self.over_budget == OverBudget::Copy;
        let mut frame = |lease: ReadLease, budget| {
            *last = Some(lease.meta().sequence);
            if lease.meta().event {
                Took::Event(Event::of(&lease))
            } else if budget == 0 && copies {
                // It was given to be let go of soon, which nobody promises here.
                Took::Frame(Frame::copied(&lease))
            } else {
                Took::Frame(Frame::in_place(lease))
            }
        };
        let received = consumer.receive(Some(timeout));
        let received = match received.map(|lease| frame(lease, consumer.budget())) {
            Err(ReceiveError::OverBudget { .. }) if self.over_budget != OverBudget::Raise => {
                if !is_warned {
                    self.warned_of_budget = true;
                    return Step::Warn(small_budget(consumer));
                }
                let drop = self.over_budget == OverBudget::Drop;
                let copy = |lease: &ReadLease| {
                    *last = Some(lease.meta().sequence);
                    if lease.meta().event {
                        return Some(Took::Event(Event::of(lease)));
                    }
                    (!drop).then(|| Took::Frame(Frame::copied(lease)))
                };
                match consumer.receive_with(Some(timeout), copy) {
                    Ok(Some(took)) => Ok(took),
                    Ok(None) => {
                        consumer.note_dropped();
                        lock(&self.figures).dropped += 1;
                        return Step::Nothing;
                    }
                    Err(error) => Err(error),
                }
            }
            received => received,
        };
        match received {
            Ok(Took::Frame(Ok((frame, way)))) => {
                if way == Way::Copied {
                    consumer.note_copied();
                    lock(&self.figures).copied += 1;
                }
                Step::Item(Item::Frame(frame))
            }
            Ok(Took::Frame(Err(Unusable::Unfinished))) => {
                consumer.note_dropped();
                lock(&self.figures).dropped += 1;
                Step::Nothing
            }
            Ok(Took::Frame(Err(reason))) => Step::Failed(Failure::Unusable(reason)),
            Ok(Took::Event(Some(event))) => Step::Item(Item::Event(event)),
            Ok(Took::Event(None)) | Err(ReceiveError::Timeout) => Step::Nothing,
            Err(ReceiveError::Eos) => {
                if self.on_eos == OnEos::Wait {
                    consumer.pass_eos();
                    return Step::Nothing;
                }
                Step::Failed(Failure::End)
            }
            Err(error @ (ReceiveError::ProducerLost | ReceiveError::TimedOut)) => self.lost(error),
            Err(error) => Step::Failed(Failure::Receive(error)),
        }
    }

    /// Leaves the pool, if it is in one.
    pub(super) fn leave(&mut self) {
        if let Some(consumer) = self.connected.take() {
            self.figures().add(consumer.stats());
        }
    }

    fn lost(&mut self, error: ReceiveError) -> Step {
        match self.on_lost {
            OnLost::Raise => return Step::Failed(Failure::Receive(error)),
            // That a stream goes on without this consumer is not its end.
            OnLost::End if matches!(error, ReceiveError::TimedOut) => {
                return Step::Failed(Failure::Receive(error));
            }
            OnLost::End => return Step::Failed(Failure::End),
            OnLost::Wait => {}
        }
        let mut said = None;
        if let Some(consumer) = &self.connected {
            if matches!(error, ReceiveError::TimedOut) {
                said = Some(left_behind(consumer.pool(), self.last));
            }
            self.builder = self.builder.clone().resume(consumer);
        }
        self.leave();
        if let Some(bell) = &self.bell {
            bell.ring();
        }
        self.lost_at = Some(Instant::now());
        said.map_or(Step::Nothing, Step::Warn)
    }
}

/// The producer's property that keeps a budget small, by its name in Python.
pub(super) fn property(limit: BudgetLimit) -> String {
    limit.to_string().replace('-', "_")
}

fn small_budget(consumer: &xmem_core::Consumer) -> String {
    let limit = consumer.budget_limit();
    format!(
        "consumer of pool {:?}: only {} frames may be held at once, and all further ones are copied or dropped: raise {} of the \
         Producer, or {limit} on xmemsink",
        consumer.pool(),
        consumer.budget(),
        property(limit)
    )
}

fn left_behind(pool: &str, last: Option<u64>) -> String {
    let when = last.map_or_else(
        || "before any frame came".to_owned(),
        |last| format!("after number {last}"),
    );
    format!(
        "consumer of pool {pool:?}: the producer waited longer than its lossless_timeout for it, and went on without it \
         {when}: it joins again, and frames in between are missed; take them faster, or raise lossless_timeout"
    )
}

/// How long a thread looks for a producer.
const PATIENCE_OF_THREAD: Duration = Duration::from_secs(1);

fn no_thread(error: std::io::Error) -> ConnectError {
    ConnectError::System {
        what: "start a thread",
        error,
    }
}
