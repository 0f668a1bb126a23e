// SPDX-License-Identifier: MPL-2.0

//! The ring of published entries: one writer, any number of readers that may be lapped.
//!
//! Each entry is a sequence lock over plain relaxed words: a stamp that is odd while the entry is written, and a
//! payload. A reader that is lapped while it copies notices by the stamp.

use crate::fault::{self, Point};
use crate::sync::{AtomicU64, Ordering, fence};

/// Words in an entry: the stamp, then the payload.
pub const ENTRY_WORDS: usize = 64;
/// Words of payload in an entry.
pub const PAYLOAD_WORDS: usize = ENTRY_WORDS - 1;

fn writing(sequence: u64) -> u64 {
    sequence.wrapping_mul(2).wrapping_add(1)
}

fn written(sequence: u64) -> u64 {
    sequence.wrapping_mul(2).wrapping_add(2)
}

/// Writes an entry. Only the producer does, one at a time.
pub fn write(entry: &[AtomicU64], sequence: u64, payload: &[u64]) {
    let Some((stamp, words)) = entry.split_first() else {
        return;
    };
    stamp.store(writing(sequence), Ordering::Relaxed);
    fault::point(Point::EntryStamped);
    // A reader that sees any of the words below must see the odd stamp when it looks again.
    fence(Ordering::Release);
    for (word, value) in words.iter().zip(payload) {
        word.store(*value, Ordering::Relaxed);
    }
    fault::point(Point::EntryFilled);
    stamp.store(written(sequence), Ordering::Release);
    fault::point(Point::EntryWritten);
}

/// Copies the entry of `sequence` out. `false`: it was overwritten, or is not written yet.
pub fn read(entry: &[AtomicU64], sequence: u64, payload: &mut [u64]) -> bool {
    read_if(entry, payload, |stamp| stamp == written(sequence))
}

/// Copies the entry out, whatever its sequence. `false`: it is being written, or never was.
pub fn read_any(entry: &[AtomicU64], payload: &mut [u64]) -> bool {
    read_if(entry, payload, |stamp| stamp != 0 && stamp % 2 == 0)
}

fn read_if(entry: &[AtomicU64], payload: &mut [u64], wanted: impl FnOnce(u64) -> bool) -> bool {
    let Some((stamp, words)) = entry.split_first() else {
        return false;
    };
    let before = stamp.load(Ordering::Relaxed);
    if !wanted(before) {
        return false;
    }
    // Pairs with the release store of the stamp.
    fence(Ordering::Acquire);
    for (value, word) in payload.iter_mut().zip(words) {
        *value = word.load(Ordering::Relaxed);
    }
    // Pairs with the release fence in `write`.
    fence(Ordering::Acquire);
    stamp.load(Ordering::Relaxed) == before
}
