// SPDX-License-Identifier: MPL-2.0

//! The few places where a producer waits. Only lossless delivery and `wait_for_consumer` do.

use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use xmem_shm::fault::{self, Point};
use xmem_shm::lock::lock;
use xmem_shm::os::clock::Deadline;

use super::pool::Pool;
use crate::cancel::{Bell, Canceller, Wake};
use crate::error::WaitError;

/// How often to look again without having been told to: for leases that a GPU ends, or a consumer that does not ring.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

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

    /// As `wait`, and gives up on the slowest consumers each time that nothing moved for `lossless_timeout`. Who waits in
    /// short turns, one after the other, waits as one who waits once.
    pub(super) fn wait_lossless<T>(
        &self,
        timeout: Option<Duration>,
        cancel: &Canceller,
        mut look: impl FnMut() -> Option<T>,
    ) -> Result<T, WaitError> {
        let patience = self.settings.lossless_timeout;
        self.wait(timeout, cancel, || {
            let found = look();
            if let Some(patience) = patience
                && self.is_still(found.is_some(), patience)
            {
                self.give_up_on_slowest();
            }
            found
        })
    }

    /// Whether nothing moved for this time while somebody waited in vain.
    fn is_still(&self, found: bool, patience: Duration) -> bool {
        let taken = (!found).then(|| self.taken());
        let mut standstill = lock(&self.standstill);
        let Some(taken) = taken else {
            *standstill = None;
            return false;
        };
        let (seen, since) = *standstill.get_or_insert_with(|| (taken, Instant::now()));
        let is_still = seen == taken && since.elapsed() >= patience;
        if is_still || seen != taken {
            *standstill = Some((taken, Instant::now()));
        }
        is_still
    }

    /// What the slowest consumers took so far; changes when they move.
    fn taken(&self) -> u64 {
        let state = self.lock();
        self.control.head() - self.backlog(&state).min(self.control.head())
    }
}
