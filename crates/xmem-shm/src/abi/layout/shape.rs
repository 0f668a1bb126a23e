// SPDX-License-Identifier: MPL-2.0

//! The constants of a pool: the sizes of its memory, and the offsets of its parts.

use crate::abi::extension::EXTENSION_WORDS;
use crate::abi::frame_layout::LAYOUT_WORDS;
use crate::abi::limits::{MAX_LAYOUTS, MAX_SLOTS};
use crate::abi::place::PLACE_WORDS;
use crate::protocol::ring::ENTRY_WORDS;

pub(super) const HEADER_WORDS: usize = 32;

pub(super) const PAGE_HEADER_WORDS: usize = 16;

const MAX_RING_LEN: u32 = 1 << 18;

/// Words from one place to the next. A place has fewer, so that it is in one cache line.
pub(super) const PLACE_STRIDE: usize = 4;
/// Words from one layout to the next: whole cache lines.
pub(super) const LAYOUT_STRIDE: usize = 40;
/// Words from one extension to the next.
pub(super) const EXTENSION_STRIDE: usize = 48;
/// Words of a record: an entry and its extension.
pub(super) const RECORD_WORDS: usize = ENTRY_WORDS + EXTENSION_STRIDE;

const _: () = {
    assert!(PLACE_WORDS <= PLACE_STRIDE);
    assert!(LAYOUT_WORDS <= LAYOUT_STRIDE);
    assert!(EXTENSION_WORDS <= EXTENSION_STRIDE);
};

/// The sizes from which all offsets are computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// The largest number of slots: 1 to [`MAX_SLOTS`].
    pub max_slots: u32,
    /// Entries of the ring, a power of two.
    pub ring_len: u32,
    /// Slots are also found by number, so each has a record of its newest entry.
    pub by_number: bool,
}

impl Shape {
    /// Whether these sizes are valid.
    pub(super) fn is_valid(self) -> bool {
        (1..=MAX_SLOTS).contains(&self.max_slots)
            && self.ring_len.is_power_of_two()
            && (1..=MAX_RING_LEN).contains(&self.ring_len)
    }

    pub(super) fn slots(self) -> usize {
        self.max_slots as usize
    }

    /// The largest number of regions: one for each slot, and as many with memory that other code allocated.
    pub fn max_regions(self) -> usize {
        2 * self.slots()
    }

    pub(super) fn ring_entries(self) -> usize {
        self.ring_len as usize
    }

    pub(super) fn records(self) -> usize {
        if self.by_number { self.slots() } else { 0 }
    }

    // The offsets of the parts of control memory, in words. All parts after the IDs of regions begin at a cache line.

    pub(super) fn regions_at(self) -> usize {
        HEADER_WORDS + self.slots()
    }

    pub(super) fn places_at(self) -> usize {
        (self.regions_at() + self.max_regions() / 2).next_multiple_of(8)
    }

    pub(super) fn layouts_at(self) -> usize {
        (self.places_at() + self.slots() * PLACE_STRIDE).next_multiple_of(8)
    }

    pub(super) fn ring_at(self) -> usize {
        self.layouts_at() + MAX_LAYOUTS * LAYOUT_STRIDE
    }

    pub(super) fn extensions_at(self) -> usize {
        self.ring_at() + self.ring_entries() * ENTRY_WORDS
    }

    pub(super) fn records_at(self) -> usize {
        self.extensions_at() + self.ring_entries() * EXTENSION_STRIDE
    }

    pub(super) fn control_len(self) -> usize {
        (self.records_at() + self.records() * RECORD_WORDS) * 8
    }

    pub(super) fn page_len(self) -> usize {
        PAGE_HEADER_WORDS * 8 + self.slots() * 2 * 4 + self.records() * 8
    }
}

/// The values that never change in a pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Constants {
    /// The sizes of the control memory.
    pub shape: Shape,
    /// A random number that identifies the pool.
    pub pool_id: u64,
    /// Whether the producer waits for consumers instead of overwriting frames.
    pub lossless: bool,
    /// The number of frames that the producer keeps for consumers that join later. At least 1.
    pub history: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_do_not_overlap() {
        for (max_slots, by_number) in [(1, true), (2, false), (3, true), (255, false), (256, true)]
        {
            let shape = Shape {
                max_slots,
                ring_len: 64,
                by_number,
            };
            assert!(shape.is_valid());
            let slots = shape.slots();
            let ends = [
                (HEADER_WORDS + slots, shape.regions_at()),
                (shape.regions_at() + slots, shape.places_at()),
                (shape.places_at() + slots * PLACE_STRIDE, shape.layouts_at()),
                (
                    shape.layouts_at() + MAX_LAYOUTS * LAYOUT_STRIDE,
                    shape.ring_at(),
                ),
                (shape.ring_at() + 64 * ENTRY_WORDS, shape.extensions_at()),
                (
                    shape.extensions_at() + 64 * EXTENSION_STRIDE,
                    shape.records_at(),
                ),
            ];
            for (end, next) in ends {
                assert!(end <= next && next < end + 8);
            }
            for line in [
                shape.places_at(),
                shape.layouts_at(),
                shape.ring_at(),
                shape.records_at(),
            ] {
                assert!(line.is_multiple_of(8));
            }
        }
    }
}
