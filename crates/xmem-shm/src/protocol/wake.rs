// SPDX-License-Identifier: MPL-2.0

//! The wake word: a futex that costs a system call only when the consumer sleeps.
//!
//! Bit 0 is set while the consumer sleeps or is about to. The other bits count wake-ups. Every waker changes the word before it
//! wakes the consumer, and the consumer sleeps on the value that it read before it looked for work. Without either, a wake-up
//! between the check and the sleep would be lost.
//!
//! The producer clears bit 0, so that it makes one system call for each sleep. Wakers in the consumer's process do not rely on bit 0:
//! they also wake the consumer from a sleep that a killed producer was about to end.

use crate::fault::{self, Point};
use crate::sync::{AtomicU32, Ordering, fence};

const SLEEPS: u32 = 1;
const ONE: u32 = 2;

/// Marks that the consumer is about to sleep. Check for work after this call. If there is none, sleep while the word has the
/// returned value.
pub fn prepare(word: &AtomicU32) -> u32 {
    let value = mark(word);
    announced();
    value
}

fn mark(word: &AtomicU32) -> u32 {
    let value = word.fetch_or(SLEEPS, Ordering::Relaxed) | SLEEPS;
    fault::point(Point::SleepAnnounced);
    value
}

/// As [`prepare`], for one of several words. Call [`announced`] after the last of them, and then check for work. A word that still has
/// bit 0 from an earlier sleep is not written again: its waker would have cleared the bit.
pub fn announce(word: &AtomicU32) -> u32 {
    let value = word.load(Ordering::Relaxed);
    if value & SLEEPS == 0 {
        mark(word)
    } else {
        value
    }
}

/// Ends the announcement on several words.
pub fn announced() {
    // Pairs with the fence in `wake`: either this thread sees the work, or the waker sees that it sleeps.
    fence(Ordering::SeqCst);
}

/// The value for a sleep that only wakers in the consumer's process end. Check for work after this call.
pub fn current(word: &AtomicU32) -> u32 {
    let value = present(word);
    // Pairs with the fence in `change`.
    fence(Ordering::SeqCst);
    value
}

/// As [`current`], for one of several words. Call [`announced`] after the last of them.
pub fn present(word: &AtomicU32) -> u32 {
    word.load(Ordering::Relaxed)
}

/// Marks that the consumer is awake.
pub fn awake(word: &AtomicU32) {
    word.fetch_and(!SLEEPS, Ordering::Relaxed);
    fault::point(Point::SleepEnded);
}

/// Called after work was added. Returns whether a sleeper must be woken. Makes one attempt, even if the other side changes the
/// word.
pub fn wake(word: &AtomicU32) -> bool {
    // Pairs with the fence in `prepare`.
    fence(Ordering::SeqCst);
    let value = word.load(Ordering::Relaxed);
    // A failed exchange means that the word changed, so no consumer sleeps on the old value any more: either another thread of this
    // process changed it and wakes the consumer, or the consumer woke up and checks for work before it sleeps.
    value & SLEEPS != 0
        && word
            .compare_exchange(
                value,
                value.wrapping_add(ONE) & !SLEEPS,
                Ordering::Relaxed,
                Ordering::Relaxed,
            )
            .is_ok()
}

/// Called after work was added, by the consumer's own process. Wake the consumer after this call, whether or not bit 0 is set: a
/// producer that was killed or stopped may have cleared it without waking the consumer.
pub fn change(word: &AtomicU32) {
    // Pairs with the fence in `prepare`.
    fence(Ordering::SeqCst);
    word.fetch_add(ONE, Ordering::Relaxed);
}
