// SPDX-License-Identifier: MPL-2.0

//! The ring of published entries: one writer, any number of readers that may be lapped.
//!
//! Each entry is a sequence lock over relaxed words: a stamp, which is odd while the entry is written, and a payload. A reader
//! that is lapped while it copies detects that by the stamp. Few entries have an extension. It is stored separately and covered
//! by the same stamp.

use crate::fault::{self, Point};
use crate::sync::{AtomicU64, Ordering, fence};

/// The number of words of an entry: the stamp, then the payload. They fill two cache lines.
pub const ENTRY_WORDS: usize = 16;
/// Words of payload in an entry.
pub const PAYLOAD_WORDS: usize = ENTRY_WORDS - 1;

fn writing(sequence: u64) -> u64 {
    sequence.wrapping_mul(2).wrapping_add(1)
}

fn written(sequence: u64) -> u64 {
    sequence.wrapping_mul(2).wrapping_add(2)
}

/// Writes values to as many words.
pub(crate) fn store(words: &[AtomicU64], values: &[u64]) {
    for (word, value) in words.iter().zip(values) {
        word.store(*value, Ordering::Relaxed);
    }
}

/// Writes an entry and its extension. Only one thread of the producer at a time calls this.
pub fn write(
    entry: &[AtomicU64],
    sequence: u64,
    payload: &[u64],
    extension: Option<(&[AtomicU64], &[u64])>,
) {
    let Some((stamp, words)) = entry.split_first() else {
        return;
    };
    stamp.store(writing(sequence), Ordering::Relaxed);
    fault::point(Point::EntryStamped);
    // A reader that sees any of the words below must see the odd stamp when it checks again.
    fence(Ordering::Release);
    store(words, payload);
    if let Some((words, extension)) = extension {
        store(words, extension);
    }
    fault::point(Point::EntryFilled);
    stamp.store(written(sequence), Ordering::Release);
    fault::point(Point::EntryWritten);
}

/// Whether the entry with `sequence`, or a later one, is written.
pub fn is_written(entry: &[AtomicU64], sequence: u64) -> bool {
    let stamp = entry.first().map_or(0, |it| it.load(Ordering::Relaxed));
    stamp >= written(sequence)
}

/// Copies the entry with `sequence`. `false`: it was overwritten, or is not written yet.
pub fn read(entry: &[AtomicU64], sequence: u64, payload: &mut [u64]) -> bool {
    match entry.split_first() {
        Some((stamp, words)) => read_if(stamp, words, payload, |it| it == written(sequence)),
        None => false,
    }
}

/// Copies the extension of the entry with `sequence`. `false`: the entry was overwritten.
pub fn read_extension(
    entry: &[AtomicU64],
    extension: &[AtomicU64],
    sequence: u64,
    payload: &mut [u64],
) -> bool {
    match entry.first() {
        Some(stamp) => read_if(stamp, extension, payload, |it| it == written(sequence)),
        None => false,
    }
}

/// Copies the entry with any sequence, and returns the sequence. `None`: it is being written, or never was.
pub fn read_any(entry: &[AtomicU64], payload: &mut [u64]) -> Option<u64> {
    let (stamp, words) = entry.split_first()?;
    let mut sequence = 0;
    let is_read = read_if(stamp, words, payload, |stamp| {
        sequence = stamp.wrapping_sub(2) / 2;
        stamp != 0 && stamp % 2 == 0
    });
    is_read.then_some(sequence)
}

fn read_if(
    stamp: &AtomicU64,
    words: &[AtomicU64],
    payload: &mut [u64],
    wanted: impl FnOnce(u64) -> bool,
) -> bool {
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
