// SPDX-License-Identifier: MPL-2.0

//! The wake word: a futex that costs a system call only when the consumer sleeps.
//!
//! Bit 0 is set while the consumer sleeps, or is about to. The other bits count wake-ups. Every waker changes the word
//! before it wakes, and the sleeper sleeps on the value it read before it looked for work; without either, wake-ups
//! get lost between the look and the sleep.

use crate::fault::{self, Point};
use crate::sync::{AtomicU32, Ordering, fence};

const SLEEPS: u32 = 1;
const ONE: u32 = 2;

/// Marks that the consumer is about to sleep. Look for work after this; if there is none, sleep while the word still
/// has the value returned here.
pub fn prepare(word: &AtomicU32) -> u32 {
    let value = word.fetch_or(SLEEPS, Ordering::Relaxed) | SLEEPS;
    fault::point(Point::SleepAnnounced);
    // Pairs with the fence in `wake`: either we see the work, or the waker sees that we sleep.
    fence(Ordering::SeqCst);
    value
}

/// Marks that the consumer is awake.
pub fn awake(word: &AtomicU32) {
    word.fetch_and(!SLEEPS, Ordering::Relaxed);
    fault::point(Point::SleepEnded);
}

/// After there is work: whether a sleeper has to be woken. One attempt, whatever the other side does to the word.
pub fn wake(word: &AtomicU32) -> bool {
    // Pairs with the fence in `prepare`.
    fence(Ordering::SeqCst);
    let value = word.load(Ordering::Relaxed);
    // A failed exchange means that the word changed, so the old value has no sleeper any more: either another
    // waker changed it, and wakes, or the consumer woke up, and looks for work again before it sleeps.
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
