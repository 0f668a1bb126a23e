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

/// The sizes from which all `Offsets` are computed.
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

    pub(super) fn records(self) -> usize {
        if self.by_number { self.slots() } else { 0 }
    }

    pub(super) fn page_len(self) -> usize {
        PAGE_HEADER_WORDS * 8 + self.slots() * 2 * 4 + self.records() * 8
    }
}

/// The offsets of the parts of control memory, in words. All parts after the IDs of regions begin at a cache line.
#[derive(Debug, Clone, Copy)]
pub(super) struct Offsets {
    pub(super) regions: usize,
    pub(super) places: usize,
    pub(super) layouts: usize,
    pub(super) ring: usize,
    pub(super) extensions: usize,
    pub(super) records: usize,
    end: usize,
}

impl Offsets {
    pub(super) fn of(shape: Shape) -> Self {
        let slots = shape.slots();
        let ring_len = shape.ring_len as usize;
        let regions = HEADER_WORDS + slots;
        let places = (regions + shape.max_regions() / 2).next_multiple_of(8);
        let layouts = (places + slots * PLACE_STRIDE).next_multiple_of(8);
        let ring = layouts + MAX_LAYOUTS * LAYOUT_STRIDE;
        let extensions = ring + ring_len * ENTRY_WORDS;
        let records = extensions + ring_len * EXTENSION_STRIDE;
        Self {
            regions,
            places,
            layouts,
            ring,
            extensions,
            records,
            end: records + shape.records() * RECORD_WORDS,
        }
    }

    /// The size of control memory in bytes.
    pub(super) fn len(&self) -> usize {
        self.end * 8
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
            let at = Offsets::of(shape);
            let ends = [
                (HEADER_WORDS + slots, at.regions),
                (at.regions + slots, at.places),
                (at.places + slots * PLACE_STRIDE, at.layouts),
                (at.layouts + MAX_LAYOUTS * LAYOUT_STRIDE, at.ring),
                (at.ring + 64 * ENTRY_WORDS, at.extensions),
                (at.extensions + 64 * EXTENSION_STRIDE, at.records),
            ];
            for (end, next) in ends {
                assert!(end <= next && next < end + 8);
            }
            for line in [at.places, at.layouts, at.ring, at.records] {
                assert!(line.is_multiple_of(8));
            }
        }
    }
}
