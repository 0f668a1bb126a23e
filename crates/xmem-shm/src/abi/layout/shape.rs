// SPDX-License-Identifier: MPL-2.0

//! What does not change in a pool's life: the sizes of its memory, and where its parts begin.

use super::control::HEADER_WORDS;
use super::page::PAGE_HEADER_WORDS;
use crate::abi::limits::MAX_SLOTS;
use crate::protocol::ring::ENTRY_WORDS;

const MAX_RING_LEN: u32 = 1 << 18;

/// The sizes from which all places are computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// The largest number of slots: 1 to [`MAX_SLOTS`].
    pub max_slots: u32,
    /// Entries of the ring, a power of two.
    pub ring_len: u32,
}

impl Shape {
    /// The shape of a pool of at most `max_slots` slots. The same slot may be published more than once, so the ring
    /// is longer than there are slots.
    pub fn new(max_slots: u32) -> Self {
        Self {
            max_slots,
            ring_len: (max_slots * 2).next_power_of_two().max(64),
        }
    }

    pub(super) fn valid(self) -> bool {
        (1..=MAX_SLOTS).contains(&self.max_slots)
            && self.ring_len.is_power_of_two()
            && (1..=MAX_RING_LEN).contains(&self.ring_len)
    }

    pub(super) fn slots(self) -> usize {
        self.max_slots as usize
    }

    pub(super) fn regions_at(self) -> usize {
        HEADER_WORDS + self.slots()
    }

    pub(super) fn records_at(self) -> usize {
        // Whole cache lines, so that entries do not share one with what lies before.
        (self.regions_at() + self.slots().div_ceil(2)).next_multiple_of(8)
    }

    pub(super) fn ring_at(self) -> usize {
        self.records_at() + self.slots() * ENTRY_WORDS
    }

    pub(super) fn control_len(self) -> usize {
        (self.ring_at() + self.ring_len as usize * ENTRY_WORDS) * 8
    }

    pub(super) fn page_len(self) -> usize {
        PAGE_HEADER_WORDS * 8 + self.slots() * 2 * 4
    }
}

/// What does not change in a pool's life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Constants {
    /// The sizes of the control memory.
    pub shape: Shape,
    /// A random number that identifies the pool.
    pub pool_id: u64,
    /// Whether the producer waits for consumers instead of overtaking them.
    pub lossless: bool,
    /// How many frames the producer keeps for consumers that join later. At least 1.
    pub history: u32,
}
