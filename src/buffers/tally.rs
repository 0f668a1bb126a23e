// SPDX-License-Identifier: MPL-2.0

//! Counters of the memories of one element.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counts copies out of slots. Each slot that is out holds a reference.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    copies: AtomicU64,
}

impl Tally {
    /// Counts from 0 again.
    pub(crate) fn reset(&self) {
        self.copies.store(0, Ordering::Relaxed);
    }

    /// GStreamer has copied the memory of a slot.
    pub(crate) fn note_copy(&self) {
        self.copies.fetch_add(1, Ordering::Relaxed);
    }

    /// How often GStreamer copied the memory of a slot, for an element that wanted to write it.
    pub(crate) fn copies(&self) -> u64 {
        self.copies.load(Ordering::Relaxed)
    }
}
