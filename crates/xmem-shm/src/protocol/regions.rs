// SPDX-License-Identifier: MPL-2.0

//! The list of the regions in use: one writer, any number of readers.
//!
//! IDs are ascending, and each new ID is larger than all earlier ones. So an ID that stays in the list only moves towards the
//! beginning, into words that are written before the word that it leaves. A reader that reads the list backwards therefore
//! finds it. So a region in use is never mistaken for a removed one.

use crate::fault::{self, Point};
use crate::sync::{AtomicU32, AtomicU64, Ordering, fence};

/// Stores the IDs, ascending, and a version that changes when one of them is removed.
pub fn show(words: &[AtomicU32], version: &AtomicU64, ids: impl Iterator<Item = u32>, now: u32) {
    let ids = ids.chain(std::iter::repeat(0));
    for (word, id) in words.iter().zip(ids) {
        // Release: a reader that sees this word sees the previous ones.
        word.store(id, Ordering::Release);
    }
    fault::point(Point::RegionsListed);
    // Release: a reader that sees the version sees the list of that version, or a newer one.
    version.store(now.into(), Ordering::Release);
}

/// The version. A later call of `list` returns the list of this version, or a newer one.
pub fn version(version: &AtomicU64) -> u32 {
    let now = version.load(Ordering::Relaxed) as u32;
    // Pairs with the release store of the version in `show`.
    fence(Ordering::Acquire);
    now
}

/// The ids; 0 means none.
pub fn list(words: &[AtomicU32]) -> impl Iterator<Item = u32> {
    words.iter().rev().map(|word| {
        let id = word.load(Ordering::Relaxed);
        // Pairs with the release stores in `show`: the words before this one are at least as new.
        fence(Ordering::Acquire);
        id
    })
}
