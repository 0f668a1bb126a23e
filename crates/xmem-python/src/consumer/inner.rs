// SPDX-License-Identifier: MPL-2.0

//! Receives frames over successive producers of the pool.

use std::borrow::Cow;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use pyo3::prelude::*;
use xmem_core::cuda::CudaError;
use xmem_core::follow::{self, FollowError, Follower, Lost, Taken};
use xmem_core::{ConnectError, ReadyFd, ReceiveError, SystemError};

use crate::about::MESSAGE;
use crate::errors::{IntoPyErr, Kind, errors};
use crate::event::Event;
use crate::frame::{Frame, Placement, Unusable};
use crate::lock;
use crate::pools::property;

/// The result of the search for a producer.
type Found = Arc<Mutex<Option<Result<xmem_core::Consumer, ConnectError>>>>;

#[derive(Debug)]
pub(super) struct Inner {
    pub(super) follower: Follower,
    /// Readable when something may be received. `None`: no caller requested a descriptor.
    ready: Option<ReadyFd>,
    /// A thread searches for a producer while a caller waits for the descriptor.
    looking: Option<Found>,
    /// The error of the last search for a producer.
    pub(super) last_look: Option<ConnectError>,
    /// The pool whose producer has ended. `None` once a warning has reported that no other producer came.
    left: Option<String>,
}

/// An item of a stream.
#[derive(Debug, IntoPyObject)]
pub(super) enum Item {
    Frame(Frame),
    Event(Event),
}

/// An item that was taken from the pool.
pub(super) enum Took {
    Frame(Result<(Frame, Placement), Unusable>),
    /// `None`: an event that has no meaning in Python.
    Event(Option<Event>),
}

/// The result of a wait for a frame.
pub(super) enum Step {
    Item(Item),
    Nothing,
    /// A warning before the next step.
    Warn(String),
    Failed(Failure),
}

#[derive(Debug)]
pub(super) enum Failure {
    Follow(FollowError),
    Unusable(Unusable),
}

errors! {
    FollowError {
        Self::End => Kind::EndOfStream,
        Self::Cancelled => Kind::Closed,
        Self::NoProducer(error) | Self::Connect(error) => error.kind(),
        Self::Lost(Lost { error, .. }) | Self::Receive(error) => error.kind(),
        _ => Kind::Error,
    };
}

impl Failure {
    pub(super) fn into_py_err(self) -> PyErr {
        match self {
            Self::Follow(error) => error.into_py_err(),
            Self::Unusable(Unusable::Invalid(reason)) => Kind::Error.error(reason),
            Self::Unusable(Unusable::Cuda(error)) => error.into_py_err(),
            Self::Unusable(Unusable::Unfinished) => CudaError::Unfinished.into_py_err(),
        }
    }
}

fn take(taken: Taken<'_>) -> Took {
    let lease = match &taken {
        Taken::Kept(lease) => lease,
        Taken::Lent(lease) => *lease,
    };
    if lease.meta().layout.content_type.as_str() == MESSAGE {
        return Took::Frame(Err(Unusable::Invalid(Cow::Borrowed(
            "this pool belongs to an xmem.Channel: join it with xmem.Channel.connect, and close this consumer, which also \
             receives messages",
        ))));
    }
    match taken {
        Taken::Kept(lease) if !lease.meta().event => Took::Frame(Frame::in_place(lease)),
        Taken::Lent(lease) if !lease.meta().event => Took::Frame(Frame::copied(lease)),
        Taken::Kept(event) => Took::Event(Event::of(&event)),
        Taken::Lent(event) => Took::Event(Event::of(event)),
    }
}

impl Inner {
    pub(super) fn new(follower: Follower) -> Self {
        Self {
            follower,
            ready: None,
            looking: None,
            last_look: None,
            left: None,
        }
    }

    pub(super) fn step(&mut self, timeout: Duration) -> Step {
        let step = match self.ready.clone() {
            Some(ready) if self.follower.consumer().is_none() => {
                let Some(found) = self.look_for_producer(&ready, timeout) else {
                    return Step::Nothing;
                };
                self.follower.found(found)
            }
            _ => self.follower.step(Some(timeout), take),
        };
        match step {
            Ok(follow::Step::Took(Took::Frame(Ok((frame, placement))))) => {
                if placement == Placement::Copied {
                    self.follower.note_copied();
                }
                Step::Item(Item::Frame(frame))
            }
            Ok(follow::Step::Took(Took::Frame(Err(Unusable::Unfinished)))) => {
                self.follower.note_dropped();
                Step::Nothing
            }
            Ok(follow::Step::Took(Took::Frame(Err(reason)))) => {
                Step::Failed(Failure::Unusable(reason))
            }
            Ok(follow::Step::Took(Took::Event(Some(event)))) => Step::Item(Item::Event(event)),
            Ok(follow::Step::SmallBudget) => {
                let consumer = self.follower.consumer();
                consumer.map_or(Step::Nothing, |it| Step::Warn(small_budget(it)))
            }
            Ok(follow::Step::AllHeld) => {
                let consumer = self.follower.consumer();
                consumer.map_or(Step::Nothing, |it| Step::Warn(all_held(it)))
            }
            Ok(follow::Step::Joined { .. }) => {
                self.left = None;
                Step::Nothing
            }
            Ok(follow::Step::Lost(lost)) if matches!(lost.error, ReceiveError::TimedOut) => {
                Step::Warn(left_behind(&lost))
            }
            Ok(follow::Step::NoProducer { error, .. }) if error.is_shortage() => {
                Step::Failed(Failure::Follow(FollowError::Connect(error)))
            }
            Ok(follow::Step::NoProducer { waited, .. })
                if waited >= SAY_AFTER && self.left.is_some() =>
            {
                Step::Warn(left_alone(&self.left.take().unwrap_or_default()))
            }
            Ok(follow::Step::NoProducer { error, .. }) => {
                if let Some(ready) = &self.ready {
                    // The caller that waits for it returns, and another thread searches.
                    ready.signal();
                }
                self.last_look = Some(error);
                Step::Nothing
            }
            Ok(follow::Step::Lost(lost)) => {
                self.left = Some(lost.pool);
                Step::Nothing
            }
            Ok(_) => Step::Nothing,
            Err(error) => Step::Failed(Failure::Follow(error)),
        }
    }

    /// The result of the thread that searches for a producer, because a caller that waits for the descriptor cannot search
    /// itself. `None`: there is none yet.
    fn look_for_producer(
        &mut self,
        ready: &ReadyFd,
        timeout: Duration,
    ) -> Option<Result<xmem_core::Consumer, ConnectError>> {
        // Before the check, so that a later result makes it readable again.
        ready.clear();
        if let Some(found) = &self.looking {
            let result = lock(found).take();
            if result.is_none() {
                // A caller that waits here must check for signals anyway.
                ready.wait(Some(timeout));
                return None;
            }
            self.looking = None;
            return result;
        }
        let found = Found::default();
        let thread = std::thread::Builder::new().name("xmem-look".into());
        let spawned = thread.spawn({
            let (builder, ready, found) = (
                self.follower.next_join().clone(),
                ready.clone(),
                found.clone(),
            );
            move || {
                // With a limit, so that the thread ends when no caller waits any more.
                let result = builder.connect_wait(Some(PATIENCE_OF_THREAD));
                *lock(&found) = Some(result);
                ready.signal();
            }
        });
        match spawned {
            Ok(_) => {
                self.looking = Some(found);
                None
            }
            Err(error) => Some(Err(SystemError::at("start a thread")(error).into())),
        }
    }

    /// From now on the descriptor is readable when something may be received.
    pub(super) fn notify(&mut self, ready: &ReadyFd) -> std::io::Result<()> {
        self.follower.notify(ready)?;
        // The first wait ends at once, so that the caller checks before it waits.
        ready.signal();
        self.ready = Some(ready.clone());
        Ok(())
    }
}

fn small_budget(consumer: &xmem_core::Consumer) -> String {
    let limit = consumer.budget_limit();
    format!(
        "consumer of pool {:?}: you can hold only {} frame(s) at once, and further frames are copied or dropped: raise {} of \
         the Producer, or {limit} on xmemsink",
        consumer.pool(),
        consumer.budget(),
        property(limit)
    )
}

fn all_held(consumer: &xmem_core::Consumer) -> String {
    format!(
        "consumer of pool {:?}: all frames were dropped for two seconds, because you hold your whole budget of {} frame(s): \
         release frames before you receive the next, raise max_held, or set over_budget=\"copy\"",
        consumer.pool(),
        consumer.budget()
    )
}

fn left_behind(lost: &Lost) -> String {
    let pool = &lost.pool;
    let when = lost.last.map_or_else(
        || "before the first frame".to_owned(),
        |last| format!("after frame {last}"),
    );
    format!(
        "consumer of pool {pool:?}: too slow for the producer's lossless_timeout, and disconnected {when}. It connects \
         again, and misses the frames in between: receive frames faster, or raise lossless_timeout"
    )
}

fn left_alone(pool: &str) -> String {
    format!(
        "consumer of pool {pool:?}: the producer is gone, and this consumer got no end of the stream from it \
         (Producer.end_stream()), so it waits for the next producer. To end the loop instead, use xmem.Consumer with \
         on_producer_lost=\"end\""
    )
}

/// A warning is emitted after a wait of this time, as in `_waiting.py`.
const SAY_AFTER: Duration = Duration::from_secs(2);

/// How long a thread searches for a producer.
const PATIENCE_OF_THREAD: Duration = Duration::from_secs(1);
