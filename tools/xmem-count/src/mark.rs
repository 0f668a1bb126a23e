// SPDX-License-Identifier: MPL-2.0

//! The marks between the stages of a frame.

use std::sync::atomic::{AtomicU8, Ordering::Relaxed};

use clap::ValueEnum;

/// The prefix of the line that has the address of the marks.
pub(crate) const MARKS_AT: &str = "marks";

/// The beginning of a stage of a frame. In the trace, a mark is a store to an address that is reserved for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Mark {
    Acquire,
    Push,
    Loop,
    Take,
    Release,
    /// Nothing is counted after this mark.
    Rest,
}

impl Mark {
    pub(crate) fn set(self) {
        MARKS[self as usize].store(1, Relaxed);
    }

    /// The address of the first mark.
    pub(crate) fn all_at() -> usize {
        MARKS.as_ptr().addr()
    }
}

static MARKS: [AtomicU8; Mark::Rest as usize + 1] = [const { AtomicU8::new(0) }; _];
