// SPDX-License-Identifier: MPL-2.0

//! Received messages of all senders that the program has not received yet.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use xmem_core::{Canceller, ReadyFd};

use super::incoming::Incoming;
use super::names::MAKER;
use crate::lock;

/// The maximum number of messages of one sender that wait here. Further ones wait at the sender.
const AHEAD: usize = 2;
/// The maximum number of senders.
const MAX_SOURCES: usize = 1024;

/// Why no more messages of a sender will arrive.
#[derive(Debug, Clone)]
pub(super) struct End {
    pub(super) why: String,
    /// The sender did not close its end, so it may have sent messages that did not arrive.
    pub(super) is_lost: bool,
}

/// Why no message of a sender can be received now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Blocked {
    pub(super) why: String,
    /// The system's error. `None`: the budget of this process is used up.
    pub(super) errno: Option<i32>,
}

#[derive(Debug, Default)]
struct Source {
    queued: usize,
    blocked: Option<Blocked>,
}

#[derive(Debug, Default)]
struct State {
    queue: VecDeque<Incoming>,
    sources: BTreeMap<u64, Source>,
    threads: Vec<JoinHandle<()>>,
    /// Why the maker's messages ended.
    ended: Option<End>,
    /// The senders that were lost, oldest first.
    lost: VecDeque<u64>,
    closed: bool,
    refused: u64,
    why_refused: Option<String>,
    /// Readable while `take` would return at once. `None`: the program did not request it.
    ready: Option<ReadyFd>,
}

/// The result of `take`.
#[derive(Debug)]
pub(super) enum Taken {
    Message(Incoming),
    Blocked(Blocked),
    /// No more messages will arrive.
    Ended(End),
    /// This end was closed.
    Closed,
}

#[derive(Debug, Default)]
pub(super) struct Inbox {
    state: Mutex<State>,
    /// Notified when a message, or a reason why there is none, was added.
    arrived: Condvar,
    /// Notified when there is room for a message.
    went: Condvar,
    pub(super) canceller: Canceller,
}

impl Inbox {
    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Adds a sender. `false`: it is already listed, there are too many, or this end is closed.
    pub(super) fn add(&self, sender: u64) -> bool {
        let mut state = self.state();
        if state.closed || state.sources.contains_key(&sender) || state.sources.len() >= MAX_SOURCES
        {
            return false;
        }
        state.sources.insert(sender, Source::default());
        self.arrived.notify_all();
        true
    }

    /// Notifies that a message, or a reason why there is none, was added.
    fn notify(&self, state: &State) {
        self.arrived.notify_all();
        state.notify();
    }

    /// A descriptor that is readable while `take` would return at once.
    pub(super) fn ready(&self) -> io::Result<ReadyFd> {
        let mut state = self.state();
        if let Some(ready) = &state.ready {
            return Ok(ready.clone());
        }
        let ready = ReadyFd::new()?;
        state.ready = Some(ready.clone());
        state.notify();
        Ok(ready)
    }

    pub(super) fn keep_thread(&self, thread: JoinHandle<()>) {
        let mut state = self.state();
        state.threads.retain(|thread| !thread.is_finished());
        state.threads.push(thread);
    }

    /// Waits until another message of this sender may wait here. `false`: this end is closed.
    pub(super) fn wait_for_room(&self, sender: u64) -> bool {
        let mut state = self.state();
        loop {
            let Some(source) = state.sources.get(&sender) else {
                return false;
            };
            if state.closed || source.queued < AHEAD {
                return !state.closed;
            }
            state = self
                .went
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }

    pub(super) fn deliver(&self, message: Incoming) {
        let mut state = self.state();
        if state.closed {
            // Dropped without the lock, because the message has a lease.
            drop(state);
            return;
        }
        if let Some(source) = state.sources.get_mut(&message.sender) {
            source.queued += 1;
            source.blocked = None;
        }
        state.queue.push_back(message);
        self.notify(&state);
    }

    pub(super) fn set_blocked(&self, sender: u64, blocked: Option<Blocked>) {
        let mut state = self.state();
        if let Some(source) = state.sources.get_mut(&sender)
            && source.blocked != blocked
        {
            source.blocked = blocked;
            self.notify(&state);
        }
    }

    /// Records that no more messages of this sender will arrive.
    pub(super) fn end(&self, sender: u64, end: End) {
        let mut state = self.state();
        state.sources.remove(&sender);
        if sender == MAKER {
            state.ended = Some(end);
        } else if end.is_lost {
            state.lost.push_back(sender);
            if state.lost.len() > MAX_SOURCES {
                state.lost.pop_front();
            }
        }
        self.notify(&state);
    }

    pub(super) fn note_refused(&self, why: String) {
        let mut state = self.state();
        state.refused += 1;
        state.why_refused = Some(why);
    }

    pub(super) fn refused(&self) -> (u64, Option<String>) {
        let state = self.state();
        (state.refused, state.why_refused.clone())
    }

    /// Why the maker's messages ended, if they have.
    pub(super) fn ended(&self) -> Option<String> {
        self.state().ended.as_ref().map(|end| end.why.clone())
    }

    pub(super) fn senders(&self) -> Vec<u64> {
        self.state().sources.keys().copied().collect()
    }

    /// Waits until there are this many senders.
    pub(super) fn wait_for_senders(&self, count: usize, time: Duration) -> bool {
        let (state, _) = self
            .arrived
            .wait_timeout_while(self.state(), time, |state| {
                !state.closed && state.sources.len() < count
            })
            .unwrap_or_else(PoisonError::into_inner);
        state.sources.len() >= count
    }

    pub(super) fn has(&self, sender: u64) -> bool {
        self.state().sources.contains_key(&sender)
    }

    pub(super) fn waiting(&self) -> usize {
        self.state().queue.len()
    }

    /// The next message, of any sender or of this one. `None`: none arrived in time.
    pub(super) fn take(&self, sender: Option<u64>, time: Duration) -> Option<Taken> {
        self.wait_for(time, |state| {
            let taken = state.check(sender);
            state.notify();
            if taken.is_some() {
                self.went.notify_all();
            }
            taken
        })
    }

    /// Waits until `take` would return at once.
    pub(super) fn poll(&self, sender: Option<u64>, time: Duration) -> bool {
        let found = self.wait_for(time, |state| state.has_any(sender).then_some(()));
        found.is_some()
    }

    /// Waits until `check` returns a value. Calls it again after each notification.
    fn wait_for<T>(
        &self,
        time: Duration,
        mut check: impl FnMut(&mut State) -> Option<T>,
    ) -> Option<T> {
        let until = Instant::now() + time;
        let mut state = self.state();
        loop {
            let found = check(&mut state);
            let left = until.saturating_duration_since(Instant::now());
            if found.is_some() || left.is_zero() {
                return found;
            }
            let waited = self.arrived.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    pub(super) fn is_closed(&self) -> bool {
        self.state().closed
    }

    /// Ends and joins all threads, and drops the messages.
    pub(super) fn close(&self) {
        let mut state = self.state();
        state.closed = true;
        let threads = std::mem::take(&mut state.threads);
        let queue = std::mem::take(&mut state.queue);
        state.sources.clear();
        self.notify(&state);
        self.went.notify_all();
        drop(state);
        self.canceller.cancel();
        drop(queue);
        for thread in threads {
            let _ = thread.join();
        }
    }
}

impl State {
    /// Makes the descriptor readable if `take` would return at once.
    fn notify(&self) {
        match &self.ready {
            Some(ready) if self.has_any(None) => ready.signal(),
            Some(ready) => ready.clear(),
            None => {}
        }
    }

    /// Whether `check` would return a value.
    fn has_any(&self, sender: Option<u64>) -> bool {
        let is_wanted = |id: u64| sender.is_none_or(|sender| sender == id);
        self.closed
            || self.ended.is_some()
            || self.queue.iter().any(|it| is_wanted(it.sender))
            || self.blocked(sender).is_some()
            || sender.is_some_and(|sender| !self.sources.contains_key(&sender))
    }

    /// Why no message of these senders can be received now.
    fn blocked(&self, sender: Option<u64>) -> Option<&Blocked> {
        self.sources
            .iter()
            .filter(|(id, _)| sender.is_none_or(|sender| sender == **id))
            .find_map(|(_, source)| source.blocked.as_ref())
    }

    fn check(&mut self, sender: Option<u64>) -> Option<Taken> {
        if self.closed {
            return Some(Taken::Closed);
        }
        let wanted = |message: &Incoming| sender.is_none_or(|s| s == message.sender);
        if let Some(at) = self.queue.iter().position(wanted) {
            let message = self.queue.remove(at)?;
            if let Some(source) = self.sources.get_mut(&message.sender) {
                source.queued -= 1;
            }
            return Some(Taken::Message(message));
        }
        if let Some(blocked) = self.blocked(sender) {
            return Some(Taken::Blocked(blocked.clone()));
        }
        if let Some(end) = &self.ended {
            return Some(Taken::Ended(end.clone()));
        }
        let sender = sender.filter(|sender| !self.sources.contains_key(sender))?;
        let is_lost = self.lost.contains(&sender);
        let why = if is_lost {
            "ended without closing its end"
        } else {
            "is not connected"
        };
        let why = format!("process {sender} of the channel {why}");
        Some(Taken::Ended(End { why, is_lost }))
    }
}
