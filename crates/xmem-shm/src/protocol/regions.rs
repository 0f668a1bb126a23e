// SPDX-License-Identifier: MPL-2.0

//! The list of the regions in use: one writer, any number of readers.
//!
//! Ids are ascending, and new ones are larger than all before. So an id that stays in the list only ever moves towards
//! its beginning, into words that are written before the one it leaves; and a reader that goes through the list
//! backwards meets it. A region that is in use is never taken for one that went.

use crate::fault::{self, Point};
use crate::sync::{AtomicU32, AtomicU64, Ordering, fence};

/// Shows the ids, ascending, and a version that changes when one of them goes.
pub fn show(words: &[AtomicU32], version: &AtomicU64, ids: impl Iterator<Item = u32>, now: u32) {
    let ids = ids.chain(std::iter::repeat(0));
    for (word, id) in words.iter().zip(ids) {
        // Release: a reader that sees this word sees those before it.
        word.store(id, Ordering::Release);
    }
    fault::point(Point::RegionsListed);
    // Release: a reader that sees the version sees the list that belongs to it, or a newer one.
    version.store(now.into(), Ordering::Release);
}

/// The version. A list that `list` returns after this belongs to it, or is newer.
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
        // Pairs with the release stores in `show`: the words before this one are as new.
        fence(Ordering::Acquire);
        id
    })
}
