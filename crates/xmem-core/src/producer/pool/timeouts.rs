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

/// A published slot that is given up at a time.
#[derive(Debug)]
struct Timeout {
    until: Instant,
    generation: u32,
    /// The buffer's number, for the report.
    index: u32,
}

/// When published slots are given up, by slot.
#[derive(Debug, Default)]
pub(in crate::producer) struct Timeouts(BTreeMap<u32, Timeout>);

impl Timeouts {
    pub(in crate::producer) fn add(
        &mut self,
        slot: u32,
        generation: u32,
        index: u32,
        until: Instant,
    ) {
        let timeout = Timeout {
            until,
            generation,
            index,
        };
        self.0.insert(slot, timeout);
    }

    /// When the next one is over.
    pub(in crate::producer) fn next(&self) -> Option<Instant> {
        self.0.values().map(|timeout| timeout.until).min()
    }

    /// Takes out those that are over: slot, generation, and the buffer's number.
    pub(in crate::producer) fn take_over(&mut self, now: Instant) -> Vec<(u32, u32, u32)> {
        let over = self.0.extract_if(.., |_, timeout| timeout.until <= now);
        over.map(|(slot, timeout)| (slot, timeout.generation, timeout.index))
            .collect()
    }
}
