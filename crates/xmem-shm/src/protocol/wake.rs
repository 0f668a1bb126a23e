// SPDX-License-Identifier: MPL-2.0

//! The wake word: a wake-up costs a system call only when the consumer sleeps.
//!
//! Bit 0 is set while the consumer sleeps or is about to. It sleeps on the word as a futex, or, if bit 1 is set too, until its wake
//! socket is readable. The other bits count wake-ups. Every waker changes the word before it wakes the consumer, and a consumer that
//! uses the futex sleeps on the value that it read before it looked for work. Without either, a wake-up between the check and the
//! sleep would be lost. A socket stays readable, so that the consumer only empties it before it looks for work.
//!
//! The producer clears bits 0 and 1, so that it makes one system call for each sleep. Wakers in the consumer's process do not rely
//! on bit 0: they also wake the consumer from a sleep that a killed producer was about to end.

use crate::fault::{self, Point};
use crate::sync::{AtomicU32, Ordering, fence};

const SLEEPS: u32 = 1;
const BY_SOCKET: u32 = 2;
const ONE: u32 = 4;

/// How to wake a consumer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sleeper {
    /// It sleeps on the word.
    Futex,
    /// It sleeps until its wake socket is readable.
    Socket,
}

/// Marks that the consumer is about to sleep on the word. Check for work after this call. If there is none, sleep while the word has
/// the returned value.
pub fn prepare(word: &AtomicU32) -> u32 {
    let mut value = word.fetch_or(SLEEPS, Ordering::Relaxed) | SLEEPS;
    if value & BY_SOCKET != 0 {
        // It waited by its socket before, and was not woken. Together with the bit a wake-up may have ended this announcement.
        word.fetch_and(!BY_SOCKET, Ordering::Relaxed);
        value = word.fetch_or(SLEEPS, Ordering::Relaxed) | SLEEPS;
    }
    fault::point(Point::SleepAnnounced);
    announced();
    value
}

/// Marks that the consumer is about to wait for its wake socket. Call [`announced`] after this, also for several words at once, and
/// then check for work. A word that is marked since an earlier wait is not written again: a wake-up would have cleared the mark.
pub fn announce_by_socket(word: &AtomicU32) {
    const MARK: u32 = SLEEPS | BY_SOCKET;
    if word.load(Ordering::Relaxed) & MARK != MARK {
        mark_by_socket(word);
    }
    fault::point(Point::SleepAnnounced);
}

/// Marks that the consumer waits for its wake socket. The producer calls this if it could not send a wake-up, so that the next frame
/// wakes the consumer.
pub fn mark_by_socket(word: &AtomicU32) {
    word.fetch_or(SLEEPS | BY_SOCKET, Ordering::Relaxed);
}

/// Ends the announcement of a sleep.
pub fn announced() {
    // Pairs with the fence in `wake`: either this thread sees the work, or the waker sees that it sleeps.
    fence(Ordering::SeqCst);
}

/// The value for a sleep on the word that only wakers in the consumer's process end. Check for work after this call.
pub fn current(word: &AtomicU32) -> u32 {
    let value = word.load(Ordering::Relaxed);
    // Pairs with the fence in `change`.
    fence(Ordering::SeqCst);
    value
}

/// Marks that the consumer is awake.
pub fn awake(word: &AtomicU32) {
    word.fetch_and(!SLEEPS, Ordering::Relaxed);
    fault::point(Point::SleepEnded);
}

/// Called after work was added. Returns how a sleeper must be woken. Makes one attempt, even if the other side changes the word.
pub fn wake(word: &AtomicU32) -> Option<Sleeper> {
    // Pairs with the fence in `announced`.
    fence(Ordering::SeqCst);
    let value = word.load(Ordering::Relaxed);
    if value & SLEEPS == 0 {
        return None;
    }
    let next = value.wrapping_add(ONE) & !(SLEEPS | BY_SOCKET);
    let exchange = word.compare_exchange(value, next, Ordering::Relaxed, Ordering::Relaxed);
    // A failed exchange means that the word changed, so no consumer sleeps on the old value any more: either another thread of this
    // process changed it and wakes the consumer, or the consumer woke up and checks for work before it sleeps.
    exchange.ok().map(|value| match value & BY_SOCKET {
        0 => Sleeper::Futex,
        _ => Sleeper::Socket,
    })
}

/// Called after work was added, by the consumer's own process. Wake the consumer after this call, whether or not bit 0 is set: a
/// producer that was killed or stopped may have cleared it without waking the consumer.
pub fn change(word: &AtomicU32) {
    // Pairs with the fence in `announced`.
    fence(Ordering::SeqCst);
    word.fetch_add(ONE, Ordering::Relaxed);
}
