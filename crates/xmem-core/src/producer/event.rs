// SPDX-License-Identifier: MPL-2.0

//! Events of a pool's consumers, for the program.

use xmem_shm::abi::budget::BudgetLimit;

use crate::stats::ConsumerStats;

/// What happened to a pool's consumers.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum ConsumerEvent {
    /// It is connected.
    Connected(ConsumerStats),
    /// It is not connected any more.
    Disconnected {
        /// Its last figures.
        consumer: ConsumerStats,
        /// Why.
        reason: Departure,
    },
    /// Consumers may hold fewer slots than they asked for, and copy frames beyond that. The first time, and when they may hold
    /// none.
    BudgetsCut {
        /// How many each may hold.
        budget: u32,
        /// How many consumers there are.
        consumers: u32,
        /// What has room for no more.
        limit: BudgetLimit,
    },
    /// It has taken no frame for two seconds, for which a lossless producer waits. Once for each consumer.
    HoldsUp(ConsumerStats),
    /// It asks whoever feeds the pool for something ([`Consumer::request`](crate::Consumer::request)). What it says is
    /// not to be trusted, and it may ask as often as it likes.
    Request {
        /// Its figures.
        consumer: ConsumerStats,
        /// What it asks for.
        name: String,
        /// What it says to that, at most [`MAX_REQUEST`](crate::MAX_REQUEST) bytes.
        data: Vec<u8>,
    },
}

/// Why a consumer is not connected any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Departure {
    /// It said goodbye.
    Left,
    /// Its process ended, or closed the connection without a word.
    Died,
    /// Its lease page or its messages made no sense.
    CutOff,
    /// It held a lossless pool up for longer than `lossless-timeout`.
    TimedOut,
    /// The pool was closed.
    Closed,
}
