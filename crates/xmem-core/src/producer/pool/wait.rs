// SPDX-License-Identifier: MPL-2.0

//! The waits of a producer: lossless delivery, and `wait_for_consumers`.

use std::time::Duration;

use xmem_shm::fault::{self, Point};
use xmem_shm::os::clock::Deadline;
use xmem_shm::sync::{AtomicU64, Ordering, fence};

use super::Pool;
use super::consumer::ConsumerRecord;
use super::event::Command;
use super::guard::Guard;
use super::settings::MAX_BACKLOG;
use crate::cancel::{Canceller, Wait};
use crate::error::WaitError;

/// The interval of checks without a notification, for leases that a GPU ends and for consumers that send no message.
pub(in crate::producer) const CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// If a consumer of a lossless pool takes no frame for this time, it is reported.
const NAMED_AFTER: Duration = Duration::from_secs(2);

/// Counts a waiting thread in control memory. Consumers check that before they send a message.
struct Waiting<'a>(&'a AtomicU64);

impl<'a> Waiting<'a> {
    fn new(word: &'a AtomicU64) -> Self {
        word.fetch_add(1, Ordering::Relaxed);
        fault::point(Point::WaitCounted);
        // Pairs with the fence in `lease::release`: either a consumer sees this waiting thread, or the thread sees the release.
        fence(Ordering::SeqCst);
        Self(word)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Waits until `check` returns a value.
pub(in crate::producer) fn wait<T>(
    pool: &Pool,
    wait: Wait<'_>,
    mut check: impl FnMut() -> Option<T>,
) -> Result<T, WaitError> {
    if !pool.is_of_this_process() {
        return Err(WaitError::Forked);
    }
    if let Some(found) = check() {
        return Ok(found);
    }
    let deadline = Deadline::after(wait.timeout());
    let canceller = wait.canceller();
    let _registration = canceller.map(|canceller| canceller.register(pool.notifier()));
    let _waiting = Waiting::new(pool.control().waiting());
    loop {
        let seen = pool.notifier().count();
        if canceller.is_some_and(Canceller::is_cancelled) {
            return Err(WaitError::Cancelled);
        }
        if pool.is_closed() {
            return Err(WaitError::Closed);
        }
        if let Some(found) = check() {
            return Ok(found);
        }
        if deadline.is_over() {
            return Err(WaitError::Timeout);
        }
        pool.notifier()
            .wait(seen, deadline.left_up_to(CHECK_INTERVAL));
    }
}

/// Like `wait`. If the pool is lossless, stops waiting for the slowest consumers whenever nothing changed for `lossless_timeout`.
pub(in crate::producer) fn wait_lossless<T>(
    pool: &Pool,
    wait: Wait<'_>,
    mut check: impl FnMut() -> Option<T>,
) -> Result<T, WaitError> {
    self::wait(pool, wait, || {
        let found = check();
        match found {
            _ if !pool.lossless() => {}
            None => note_slowest(pool),
            Some(_) => {
                pool.waits_ended.fetch_add(1, Ordering::Relaxed);
            }
        }
        found
    })
}

/// Waits until the slowest consumer is less than this many entries behind.
pub(in crate::producer) fn wait_for_backlog(
    pool: &Pool,
    below: u64,
    wait: Wait<'_>,
) -> Result<(), WaitError> {
    wait_lossless(pool, wait, || {
        (pool.lock()?.backlog() < below).then_some(())
    })
}

/// Waits until there is room for a frame, and every consumer has got the end of the stream, if it had ended.
pub(in crate::producer) fn wait_for_room(pool: &Pool, wait: Wait<'_>) -> Result<(), WaitError> {
    wait_lossless(pool, wait, || {
        let behind = pool.lock()?.consumers.most_behind(pool.control());
        (behind < max_behind(pool)).then_some(())
    })
}

/// How many entries consumers of a lossless pool may be behind before the producer waits.
pub(in crate::producer) fn max_behind(pool: &Pool) -> u64 {
    if pool.control().eos_at().is_some() {
        return 1;
    }
    let settings = pool.settings();
    // At most the number of slots, minus those reserved for other uses.
    let room = settings.max_slots.saturating_sub(2).max(1);
    u64::from(MAX_BACKLOG.max(settings.history).min(room))
}

/// Counts the time for which the slowest consumers hold the producer up. Reports those that do so for too long, once each, and with a
/// `lossless_timeout` waits for them no longer. Their leases stay valid.
fn note_slowest(pool: &Pool) {
    let Some(guard) = pool.lock() else {
        return;
    };
    let ended = pool.waits_ended.load(Ordering::Relaxed);
    let (mut named, mut given_up) = (Vec::new(), Vec::new());
    for consumer in guard.consumers.slowest(pool.control()).1 {
        let waited = consumer.note_awaited(ended, CHECK_INTERVAL);
        let patience = pool.settings().lossless_timeout;
        if patience.is_some_and(|patience| waited >= patience) {
            consumer.mark_timed_out();
            given_up.push(consumer.clone());
        }
        if waited >= NAMED_AFTER && consumer.note_named() {
            named.push(consumer);
        }
    }
    drop(guard);
    for consumer in named {
        log::warn!(
            "pool {:?}: {consumer} has taken no frame for {} s, and the producer waits for it: lossless-timeout bounds that",
            pool.name(),
            NAMED_AFTER.as_secs()
        );
        pool.commands().send(Command::HoldsUp(consumer.id()));
    }
    if !given_up.is_empty() {
        pool.notifier().notify();
    }
    for consumer in given_up {
        pool.counters().timed_out.fetch_add(1, Ordering::Relaxed);
        pool.commands().send(Command::TimedOut(consumer.id()));
        log::warn!(
            "pool {:?}: {consumer} held it up for longer than lossless-timeout",
            pool.name()
        );
    }
}

/// For how long the producer has waited for this consumer.
pub(super) fn waits_for(guard: &Guard<'_>, consumer: &ConsumerRecord) -> Duration {
    let pool = guard.pool();
    if !pool.lossless() || pool.control().waiting().load(Ordering::Relaxed) == 0 {
        return Duration::ZERO;
    }
    let (_, slowest) = guard.consumers.slowest(pool.control());
    if slowest.iter().any(|slow| slow.id() == consumer.id()) {
        consumer.awaited(pool.waits_ended.load(Ordering::Relaxed))
    } else {
        Duration::ZERO
    }
}
