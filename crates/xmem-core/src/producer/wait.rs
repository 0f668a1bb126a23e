// SPDX-License-Identifier: MPL-2.0

//! The few places where a producer waits. Only lossless delivery and `wait_for_consumer` do.

use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use xmem_shm::fault::{self, Point};
use xmem_shm::lock::lock;
use xmem_shm::os::clock::Deadline;

use super::commands::Command;
use super::peer::Peer;
use super::pool::Pool;
use super::state::State;
use crate::cancel::{Bell, Canceller, Wake};
use crate::error::WaitError;

/// How often to look again without having been told to: for leases that a GPU ends, or a consumer that does not ring.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// How long a consumer may take no frame of a lossless pool before it is named.
const NAMED_AFTER: Duration = Duration::from_secs(2);

/// Counts a waiting thread in control memory, where consumers look before they ring.
struct Waiting<'a>(&'a AtomicU64);

impl<'a> Waiting<'a> {
    fn new(word: &'a AtomicU64) -> Self {
        word.fetch_add(1, Ordering::Relaxed);
        fault::point(Point::WaitCounted);
        // Pairs with the fence in `lease::release`: either a consumer sees that we wait, or we see what it gave back.
        fence(Ordering::SeqCst);
        Self(word)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Pool {
    /// Waits until `look` finds what is waited for.
    pub(super) fn wait<T>(
        &self,
        timeout: Option<Duration>,
        cancel: &Canceller,
        mut look: impl FnMut() -> Option<T>,
    ) -> Result<T, WaitError> {
        if !self.process.is_current() {
            return Err(WaitError::Forked);
        }
        if let Some(found) = look() {
            return Ok(found);
        }
        let deadline = Deadline::after(timeout);
        let sleeper: Weak<Bell> = Arc::downgrade(&self.bell);
        let sleeper: Weak<dyn Wake> = sleeper;
        let _registration = cancel.register(sleeper);
        let _waiting = Waiting::new(self.control.waiting());
        loop {
            let rings = self.bell.rings();
            if cancel.is_cancelled() {
                return Err(WaitError::Cancelled);
            }
            if self.closed.load(Ordering::Acquire) {
                return Err(WaitError::Closed);
            }
            if let Some(found) = look() {
                return Ok(found);
            }
            if deadline.is_over() {
                return Err(WaitError::Timeout);
            }
            self.bell.wait(rings, deadline.left_up_to(LOOK_AGAIN));
        }
    }

    /// As `wait`, and gives up on the slowest consumers each time that nothing moved for `lossless_timeout`. Waits in short turns,
    /// one after the other, count as one wait.
    pub(super) fn wait_lossless<T>(
        &self,
        timeout: Option<Duration>,
        cancel: &Canceller,
        mut look: impl FnMut() -> Option<T>,
    ) -> Result<T, WaitError> {
        let patience = self.settings.lossless_timeout;
        self.wait(timeout, cancel, || {
            let found = look();
            let still = self.stands_still(found.is_some());
            if still >= NAMED_AFTER {
                self.name_slowest();
            }
            if patience.is_some_and(|patience| still >= patience) {
                self.give_up_on_slowest();
                *lock(&self.standstill) = None;
            }
            found
        })
    }

    /// For how long nothing moved while somebody waited in vain.
    fn stands_still(&self, found: bool) -> Duration {
        let taken = (!found).then(|| self.taken());
        let mut standstill = lock(&self.standstill);
        let before = standstill.filter(|(seen, _)| Some(*seen) == taken);
        *standstill = before.or(taken.map(|taken| (taken, Instant::now())));
        before.map_or(Duration::ZERO, |(_, since)| since.elapsed())
    }

    /// Names the consumers that somebody has waited for too long, each of them once.
    fn name_slowest(&self) {
        let (_, slowest) = self.slowest(&self.lock());
        for peer in slowest {
            if peer.was_named.swap(true, Ordering::Relaxed) {
                continue;
            }
            log::warn!(
                "pool {:?}: consumer {} ({:?}, process {}) has taken no frame for {} s, and the producer waits for it: \
                 lossless-timeout bounds that",
                self.name,
                peer.id,
                peer.name,
                peer.pid,
                NAMED_AFTER.as_secs()
            );
            self.commands.send(Command::HoldsUp(peer.id));
        }
    }

    /// For how long the producer has been waiting for this consumer.
    pub(super) fn waits_for(&self, state: &State, peer: &Peer) -> Duration {
        let since = match *lock(&self.standstill) {
            Some((_, since)) if self.control.waiting().load(Ordering::Relaxed) > 0 => since,
            _ => return Duration::ZERO,
        };
        let (_, slowest) = self.slowest(state);
        let is_slowest = slowest.iter().any(|slow| slow.id == peer.id);
        if is_slowest {
            since.elapsed()
        } else {
            Duration::ZERO
        }
    }

    /// What the slowest consumers took so far; changes when they move.
    fn taken(&self) -> u64 {
        let state = self.lock();
        self.control.head() - self.backlog(&state).min(self.control.head())
    }
}
