// SPDX-License-Identifier: MPL-2.0

//! The offset of each word in the two kinds of shared control memory. Accessors only; the rules are in `protocol`.
//!
//! Control memory (written by the producer, read-only for consumers), in 64-bit words:
//!
//! | words | content |
//! |---|---|
//! | `0..16` | constants: magic, version, sizes |
//! | `16..32` | words that change with every frame |
//! | `max_slots` | slot words |
//! | `max_slots × 2` in 32 bits each | ids of the regions that are in use |
//! | `max_slots × 4` | the location of each slot |
//! | `64 × 40` | the table of layouts |
//! | `ring_len × 16` | the ring of entries |
//! | `ring_len × 48` | their extensions |
//! | `max_slots × 64` | only with buffers by number: the newest entry of each slot, with its extension |
//!
//! Lease page (one per consumer, written by both sides): 16 words of 64 bits, then a lease word and a `taken` word of
//! 32 bits per slot. With buffers by number, then a word of reads of 64 bits per slot.

mod control;
mod page;
mod shape;

use std::io;

pub use control::Control;
pub use page::{CURSOR_LEFT, FLAG_CUT_OFF, FLAG_TIMED_OUT, LeasePage, REGIONS_LET_GO, Reads};
pub use shape::{Constants, Shape};

/// Increased with each change of the shared memory, of the messages, or of the meaning of either.
pub const VERSION: u32 = 16;

/// Memory that a producer sent cannot be used.
#[derive(Debug)]
pub enum OpenError {
    /// The memory, and why it is invalid.
    Invalid(&'static str, &'static str),
    /// This process could not map it.
    System(io::Error),
}
