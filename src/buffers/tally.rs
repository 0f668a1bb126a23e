// SPDX-License-Identifier: MPL-2.0

//! Counters of the memories of one element.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counts copies of slots. Each slot in use holds a reference to it.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    copies: AtomicU64,
}

impl Tally {
    /// Restarts the count at 0.
    pub(crate) fn reset(&self) {
        self.copies.store(0, Ordering::Relaxed);
    }

    /// Counts a copy that GStreamer made of the memory of a slot.
    pub(crate) fn note_copy(&self) {
        self.copies.fetch_add(1, Ordering::Relaxed);
    }

    /// How often GStreamer copied the memory of a slot, for an element that wanted to write it.
    pub(crate) fn copies(&self) -> u64 {
        self.copies.load(Ordering::Relaxed)
    }
}
