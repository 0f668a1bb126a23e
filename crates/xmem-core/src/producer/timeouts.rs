// SPDX-License-Identifier: MPL-2.0

//! Published frames that are given up at some time.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Instant;

/// A buffer that was emptied at its timeout, because readers did not come.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Unread {
    /// The buffer's number.
    pub index: u32,
    /// How many readers it was for.
    pub count: u32,
    /// How many of them did not come.
    pub missing: u32,
    /// The processes that are connected and did not get it, in words.
    pub readers: Vec<String>,
}

impl fmt::Display for Unread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            index,
            count,
            missing,
            readers,
        } = self;
        write!(
            f,
            "buffer {index} is empty: at its timeout {missing} of its {count} readers had not come"
        )?;
        if readers.is_empty() {
            write!(f, ", and each process that is connected had got it")
        } else {
            write!(
                f,
                "; these are connected and did not get it: {}",
                readers.join(", ")
            )
        }
    }
}

/// When published slots are given up: a time and a generation for each.
#[derive(Debug, Default)]
pub(super) struct Timeouts(BTreeMap<u32, (Instant, u32)>);

impl Timeouts {
    pub(super) fn add(&mut self, slot: u32, generation: u32, until: Instant) {
        self.0.insert(slot, (until, generation));
    }

    /// When the next one is over.
    pub(super) fn next(&self) -> Option<Instant> {
        self.0.values().map(|(until, _)| *until).min()
    }

    /// Takes out those that are over: slot and generation.
    pub(super) fn take_over(&mut self, now: Instant) -> Vec<(u32, u32)> {
        let is_over = |_: &u32, (until, _): &mut (Instant, u32)| *until <= now;
        let over = self.0.extract_if(.., is_over);
        over.map(|(slot, (_, generation))| (slot, generation))
            .collect()
    }
}
