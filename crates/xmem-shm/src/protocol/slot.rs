// SPDX-License-Identifier: MPL-2.0

//! The slot word: how often a slot was reused, and its state.

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
