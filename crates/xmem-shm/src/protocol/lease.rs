// SPDX-License-Identifier: MPL-2.0

//! Holding and claiming: how a reader and the writer of a slot exclude each other.
//!
//! The reader announces (its lease word), then validates (the slot word). The writer announces (`CLAIMED` in the
//! slot word), then validates (all lease words). Each side has a full fence between its store and its loads, so at
//! least one of them sees the other: either the reader finds the slot claimed and withdraws, or the writer finds the
//! lease and takes another slot. The other order, validate and then announce, tears frames.

use crate::fault::{self, Point};
use crate::sync::{AtomicU32, AtomicU64, Ordering, fence, spin_loop};

/// The result of a read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hold {
    /// The frame is held until [`release`].
    Held,
    /// The slot has another frame, or none.
    Gone,
    /// The writer is checking this frame, and may publish it again.
    Claimed,
}

/// Takes a lease on the frame of `generation` in a slot. The lease word must be 0 before; it is 0 after, unless held.
pub fn hold(slot: &AtomicU64, lease: &AtomicU32, generation: u32) -> Hold {
    // Release: it takes the place of the 0 of the lease before, which a device may have stored, so a writer that sees this
    // word instead must see the reads of that lease done too.
    lease.store(generation, Ordering::Release);
    fault::point(Point::HoldAnnounced);
    // Pairs with the fence in `claim`: announce before validate.
    fence(Ordering::SeqCst);
    let word = SlotWord(slot.load(Ordering::Relaxed));
    if word.generation() == generation && word.state() == Some(SlotState::Published) {
        // Pairs with the release store of the word in `publish`: the frame's bytes are visible from here on.
        fence(Ordering::Acquire);
        fault::point(Point::HoldGained);
        return Hold::Held;
    }
    // Nothing was read, so no ordering is needed.
    lease.store(0, Ordering::Relaxed);
    fault::point(Point::HoldWithdrawn);
    if word.generation() == generation && word.state() == Some(SlotState::Claimed) {
        Hold::Claimed
    } else {
        Hold::Gone
    }
}

/// How often a slot is read again while the writer checks it.
const LOOKS: u32 = 1000;

/// Whether a slot still has the frame of `generation`, for a reader without a lease. If so, all bytes that were read from the
/// slot before belonged to that frame.
pub fn is_there(slot: &AtomicU64, generation: u32) -> bool {
    // Pairs with the fence in `claim`: a reader that saw bytes written after that fence finds the slot claimed, or with another
    // generation.
    fence(Ordering::Acquire);
    for _ in 0..LOOKS {
        let word = SlotWord(slot.load(Ordering::Relaxed));
        if word.generation() != generation {
            return false;
        }
        match word.state() {
            Some(SlotState::Published) => {
                // As in `hold`.
                fence(Ordering::Acquire);
                return true;
            }
            // The writer is checking the slot, and publishes it again if it is held.
            Some(SlotState::Claimed) => spin_loop(),
            _ => return false,
        }
    }
    false
}

/// Ends a lease. Returns whether the producer requested a notification for this frame.
pub fn release(slot: &AtomicU64, lease: &AtomicU32) -> bool {
    // Release: all reads of the frame are done before the writer can see the word cleared.
    lease.store(0, Ordering::Release);
    fault::point(Point::ReleaseCleared);
    // Pairs with the fence in `ask_to_ring`: either this thread sees the flag, or the producer sees that the lease has ended.
    fence(Ordering::SeqCst);
    SlotWord(slot.load(Ordering::Relaxed)).rings()
}

/// How many of these leases are still held, each with the generation that was read. That many were held at one moment, although
/// the words were not read at one.
pub fn still_held(seen: &[(&AtomicU32, u32)]) -> usize {
    // Pairs with the release store in `hold`: the consumer that took a lease that was read had already ended its earlier ones.
    // So this check happens after all reads of the first.
    fence(Ordering::Acquire);
    let is_held =
        |(lease, generation): &&(&AtomicU32, u32)| lease.load(Ordering::Relaxed) == *generation;
    seen.iter().filter(is_held).count()
}

/// Claims a slot for writing, unless `held` finds a lease on the generation in it.
///
/// `held` is called after the announcement and must check all consumers that exist *then*. A list that was read before would
/// lack a consumer that joined meanwhile.
pub fn claim(slot: &AtomicU64, held: impl FnOnce(u32) -> bool) -> Option<SlotWord> {
    // Only the producer writes slot words, so this is its own last store.
    let word = SlotWord(slot.load(Ordering::Relaxed));
    slot.store(word.looked_at().0, Ordering::Relaxed);
    fault::point(Point::ClaimAnnounced);
    // Pairs with the fence in `hold`: announce before validate.
    fence(Ordering::SeqCst);
    if word.state() == Some(SlotState::Published) && held(word.generation()) {
        // Release: a reader that finds the word again must find the frame's bytes with it.
        slot.store(word.0, Ordering::Release);
        fault::point(Point::ClaimPutBack);
        return None;
    }
    // Pairs with the release store in `release`: all reads of the old frame are over.
    fence(Ordering::Acquire);
    let next = word.next(SlotState::Claimed);
    slot.store(next.0, Ordering::Relaxed);
    fault::point(Point::ClaimGained);
    Some(next)
}

/// Publishes a claimed slot.
pub fn publish(slot: &AtomicU64, claimed: SlotWord, ring: bool) -> SlotWord {
    let mut word = claimed.with_state(SlotState::Published);
    if ring {
        word = word.ringing();
    }
    // Release: the frame's bytes are visible first.
    slot.store(word.0, Ordering::Release);
    fault::point(Point::SlotPublished);
    word
}

/// Requests a notification from the consumers that release the published frame. Check the leases only after this call.
pub fn ask_to_ring(slot: &AtomicU64) {
    let word = SlotWord(slot.load(Ordering::Relaxed));
    if !word.rings() {
        slot.store(word.ringing().0, Ordering::Release);
    }
    fault::point(Point::RingAsked);
    // Pairs with the fence in `release`.
    fence(Ordering::SeqCst);
}

/// The state of a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SlotState {
    /// It has no frame.
    Free,
    /// The producer writes it, or checks whether it may.
    Claimed,
    /// It has a frame.
    Published,
}

/// The parts of a slot word: 32 bits of generation, then flags, then the state.
///
/// Only the producer writes slot words. A generation is never 0, so that 0 in a lease word means "none".
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SlotWord(pub u64);

const STATE_MASK: u64 = 0xff;
const FREE: u64 = 0;
const CLAIMED: u64 = 1;
const PUBLISHED: u64 = 2;
/// A consumer that releases this frame must notify the producer.
const RING: u64 = 1 << 8;

impl SlotWord {
    /// Builds a word from its parts.
    pub fn new(generation: u32, state: SlotState) -> Self {
        let state = match state {
            SlotState::Free => FREE,
            SlotState::Claimed => CLAIMED,
            SlotState::Published => PUBLISHED,
        };
        Self(u64::from(generation) << 32 | state)
    }

    /// How often the slot was reused.
    pub fn generation(self) -> u32 {
        (self.0 >> 32) as u32
    }

    /// The generation of the frame that is published in the slot.
    pub fn published(self) -> Option<u32> {
        (self.state() == Some(SlotState::Published)).then(|| self.generation())
    }

    /// The slot's state; `None`: invalid.
    pub fn state(self) -> Option<SlotState> {
        match self.0 & STATE_MASK {
            FREE => Some(SlotState::Free),
            CLAIMED => Some(SlotState::Claimed),
            PUBLISHED => Some(SlotState::Published),
            _ => None,
        }
    }

    /// The same generation in another state, without flags.
    pub fn with_state(self, state: SlotState) -> Self {
        Self::new(self.generation(), state)
    }

    /// The same frame while the producer checks whether it may claim the slot. Keeps the request for a notification.
    pub fn looked_at(self) -> Self {
        Self(self.0 & !STATE_MASK | CLAIMED)
    }

    /// The next generation. Skips 0.
    pub fn next(self, state: SlotState) -> Self {
        Self::new(self.generation().checked_add(1).unwrap_or(1), state)
    }

    /// The same word with a request that a consumer that releases the frame notifies the producer.
    pub fn ringing(self) -> Self {
        Self(self.0 | RING)
    }

    /// Whether a consumer that releases the frame must notify the producer.
    pub fn rings(self) -> bool {
        self.0 & RING != 0
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn parts_round_trip(generation in any::<u32>(), state in 0..3) {
            let state = [SlotState::Free, SlotState::Claimed, SlotState::Published][state as usize];
            let word = SlotWord::new(generation, state);
            prop_assert_eq!((word.generation(), word.state(), word.rings()), (generation, Some(state), false));
            let ringing = word.ringing();
            prop_assert_eq!((ringing.generation(), ringing.state(), ringing.rings()), (generation, Some(state), true));
            prop_assert_ne!(word.next(state).generation(), 0);
            prop_assert!(!ringing.next(state).rings());
            prop_assert!(ringing.looked_at().rings());
            prop_assert_eq!(ringing.looked_at().state(), Some(SlotState::Claimed));
        }

        #[test]
        fn any_word_can_be_read(word in any::<u64>()) {
            let word = SlotWord(word);
            let _ = (word.state(), word.generation(), word.rings());
        }
    }
}
