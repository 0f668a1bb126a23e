// SPDX-License-Identifier: MPL-2.0

//! Events of a pool and its consumers, for the program, and commands from other threads to the control thread.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};
use std::time::Instant;
use std::{fmt, io};

use xmem_shm::abi::budget::BudgetLimit;
use xmem_shm::fault::{self, Point};
use xmem_shm::lock::lock;
use xmem_shm::os::eventfd;

use crate::error::AcquireError;
use crate::stats::ConsumerStats;

/// An event of a pool or of its consumers.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum PoolEvent {
    /// A consumer has joined.
    Connected(ConsumerStats),
    /// A consumer is not connected any more.
    Disconnected {
        /// Its last figures.
        consumer: ConsumerStats,
        /// The reason.
        reason: Departure,
    },
    /// Each consumer may hold fewer slots than it asked for, and copies frames beyond that. Reported the first time, and
    /// when the budget is 0.
    BudgetsCut {
        /// The budget of each consumer.
        budget: u32,
        /// The number of consumers.
        consumers: u32,
        /// The limit that caused it.
        limit: BudgetLimit,
    },
    /// It has taken no frame for two seconds, and a lossless producer waits for it. Reported once for each consumer.
    HoldsUp(ConsumerStats),
    /// The pool cannot grow to its limits, because memory or descriptors are lacking. While consumers hold all slots, frames are
    /// dropped, or a lossless producer waits. Reported again only after the pool has grown.
    CannotGrow(Arc<AcquireError>),
    /// A request to the program that feeds the pool ([`Consumer::request`](crate::Consumer::request)). Its content is not
    /// to be trusted, and a consumer may send any number of requests.
    Request {
        /// Its figures.
        consumer: ConsumerStats,
        /// The name of the request.
        name: String,
        /// The data of the request, at most [`MAX_REQUEST`](crate::MAX_REQUEST) bytes.
        data: Vec<u8>,
    },
    /// A buffer was emptied at its timeout, because readers did not come.
    Unread(Unread),
}

/// A buffer that was emptied at its timeout, because readers did not take it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Unread {
    /// The buffer's number.
    pub index: u32,
    /// The number of readers that it was for.
    pub count: u32,
    /// The number of readers that did not take it.
    pub missing: u32,
    /// The connected processes that did not take it, as text.
    pub readers: Vec<String>,
}

impl fmt::Display for Unread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            index,
            count,
            missing,
            readers,
        } = self;
        write!(
            f,
            "buffer {index} is empty: at its timeout {missing} of its {count} readers had not come"
        )?;
        if readers.is_empty() {
            write!(f, ", and each process that is connected had got it")
        } else {
            write!(
                f,
                "; these are connected and did not get it: {}",
                readers.join(", ")
            )
        }
    }
}

/// Consumers may hold fewer slots than they asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::producer) struct Cut {
    pub(in crate::producer) budget: u32,
    pub(in crate::producer) consumers: u32,
    pub(in crate::producer) limit: BudgetLimit,
}

impl Cut {
    pub(super) fn warn(self, pool: &str) {
        let Self {
            budget,
            consumers,
            limit,
        } = self;
        log::warn!(
            "pool {pool:?}: {limit} leaves a budget of {budget} to each consumer ({consumers} connected), which copies frames \
             beyond that: raise {limit}"
        );
    }
}

/// Why a consumer is not connected any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Departure {
    /// It sent a leave message.
    Left,
    /// Its process ended, or closed the connection without that message.
    Died,
    /// Its lease page or its messages broke the protocol.
    CutOff,
    /// It held a lossless pool up for longer than `lossless-timeout`.
    TimedOut,
    /// The pool was closed.
    Closed,
}

/// A command to the control thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::producer) enum Command {
    Stop,
    /// Wake the consumer by its socket.
    Wake(u64),
    /// The consumer's page violates the protocol for this reason, and was removed from the list; report it and close its connection.
    CutOff(u64, &'static str),
    /// The producer stopped waiting for the consumer; report it.
    TimedOut(u64),
    /// The budgets of consumers are smaller than requested; report it.
    BudgetsCut(Cut),
    /// Memory or descriptors are lacking; report it.
    CannotGrow,
    /// The consumer holds the producer up; report it.
    HoldsUp(u64),
    /// Send the newest sticky state to all consumers.
    PushSticky,
    /// Announce a pool of origin to all consumers.
    Introduce(u64),
    /// The region is retired. Announce it to the consumers that have it mapped, including those that take no frames now.
    RegionGone(u32),
    /// Empty a slot at this time, if its readers have not taken the frame of this generation.
    GiveUpAt {
        slot: u32,
        generation: u32,
        /// The buffer's number, for the report.
        index: u32,
        until: Instant,
    },
}

#[derive(Debug)]
pub(in crate::producer) struct Commands {
    queue: Mutex<Vec<Command>>,
    event: OwnedFd,
}

impl Commands {
    pub(in crate::producer) fn new() -> io::Result<Self> {
        Ok(Self {
            queue: Mutex::default(),
            event: eventfd::new()?,
        })
    }

    /// Readable while there are commands.
    pub(in crate::producer) fn event(&self) -> &OwnedFd {
        &self.event
    }

    pub(in crate::producer) fn send(&self, command: Command) {
        lock(&self.queue).push(command);
        eventfd::ring(&self.event);
        fault::point(Point::CommandSent);
    }

    pub(in crate::producer) fn take(&self) -> Vec<Command> {
        eventfd::silence(&self.event);
        std::mem::take(&mut *lock(&self.queue))
    }
}
