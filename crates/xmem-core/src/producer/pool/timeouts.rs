// SPDX-License-Identifier: MPL-2.0

//! Timeouts of published frames.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Instant;

/// A buffer that was emptied at its timeout, because readers did not take it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Unread {
    /// The buffer's number.
    pub index: u32,
    /// The number of readers that it was for.
    pub count: u32,
    /// The number of readers that did not take it.
    pub missing: u32,
    /// The connected processes that did not take it, as text.
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

/// A published slot with a timeout.
#[derive(Debug)]
struct Timeout {
    until: Instant,
    generation: u32,
    /// The buffer's number, for the report.
    index: u32,
}

/// The timeouts, by slot.
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

    /// The time of the next timeout.
    pub(in crate::producer) fn next(&self) -> Option<Instant> {
        self.0.values().map(|timeout| timeout.until).min()
    }

    /// Removes the timeouts that have passed: slot, generation, and the buffer's number.
    pub(in crate::producer) fn take_over(&mut self, now: Instant) -> Vec<(u32, u32, u32)> {
        let over = self.0.extract_if(.., |_, timeout| timeout.until <= now);
        over.map(|(slot, timeout)| (slot, timeout.generation, timeout.index))
            .collect()
    }
}
