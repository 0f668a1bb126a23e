// SPDX-License-Identifier: MPL-2.0

//! The pools that frames were forwarded from, and the answers of consumers whether they can hold frames of them.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard};

use xmem_shm::lock::lock;

/// The maximum number of pools of origin that are announced to consumers.
const MAX_ORIGINS: usize = 8;
/// The maximum number of answers that are remembered for one consumer.
const MAX_ANSWERS: usize = 16;

/// Pools of origin, each with its number and the path of its socket.
#[derive(Debug, Default)]
pub(in crate::producer) struct Origins(VecDeque<(u64, String)>);

impl Origins {
    /// Adds a pool of origin. Replaces an earlier one with the same socket. `false`: it is already known.
    pub(in crate::producer) fn add(&mut self, pool_id: u64, path: &str) -> bool {
        if self.path_of(pool_id).is_some() {
            return false;
        }
        // Of several pools that used a socket one after another, only the last exists.
        self.0.retain(|(_, known)| known != path);
        if self.0.len() == MAX_ORIGINS {
            self.0.pop_front();
        }
        self.0.push_back((pool_id, path.to_owned()));
        true
    }

    pub(in crate::producer) fn path_of(&self, pool_id: u64) -> Option<&str> {
        let found = self.0.iter().find(|(known, _)| *known == pool_id);
        found.map(|(_, path)| path.as_str())
    }

    /// All of them, the newest last.
    pub(in crate::producer) fn all(&self) -> Vec<(u64, String)> {
        self.0.iter().cloned().collect()
    }
}

/// Whether one consumer can hold frames of other pools, by its own answers.
#[derive(Debug, Default)]
pub(in crate::producer) struct Reach {
    /// The consumer has a lease page but no cursor yet, because answers are missing.
    is_awaited: AtomicBool,
    answers: Mutex<Answers>,
}

#[derive(Debug, Default)]
struct Answers {
    /// Whether it can hold frames of each pool. The newest answer is last.
    known: VecDeque<(u64, bool)>,
    /// The pools for which an answer is needed before its cursor is set.
    awaited: Vec<u64>,
}

impl Reach {
    fn answers(&self) -> MutexGuard<'_, Answers> {
        lock(&self.answers)
    }

    /// The consumer gets its cursor after it has answered for each of these pools.
    pub(in crate::producer) fn await_for(&self, pool_ids: Vec<u64>) {
        let is_awaited = !pool_ids.is_empty();
        self.is_awaited.store(is_awaited, Ordering::Release);
        self.answers().awaited = pool_ids;
    }

    pub(in crate::producer) fn is_awaited(&self) -> bool {
        self.is_awaited.load(Ordering::Acquire)
    }

    /// The consumer has got its cursor.
    pub(in crate::producer) fn settle(&self) {
        self.is_awaited.store(false, Ordering::Release);
    }

    /// Records an answer. Returns whether all that are needed have arrived.
    pub(in crate::producer) fn answer(&self, pool_id: u64, yes: bool) -> bool {
        let mut answers = self.answers();
        answers.known.retain(|(known, _)| *known != pool_id);
        if answers.known.len() == MAX_ANSWERS {
            answers.known.pop_front();
        }
        answers.known.push_back((pool_id, yes));
        answers.awaited.retain(|awaited| *awaited != pool_id);
        answers.awaited.is_empty()
    }

    /// The answer for a pool. `None`: not known yet.
    pub(in crate::producer) fn of(&self, pool_id: u64) -> Option<bool> {
        let answers = self.answers();
        let answer = answers.known.iter().find(|(known, _)| *known == pool_id);
        answer.map(|(_, yes)| *yes)
    }
}
