// SPDX-License-Identifier: MPL-2.0

//! Warnings that peers can cause. Any number of peers can connect again and again, so their number is limited.

use std::fmt;
use std::time::{Duration, Instant};

/// The time after a warning in which further ones are only counted.
const PAUSE: Duration = Duration::from_secs(1);

#[derive(Debug, Default)]
pub(super) struct Warnings {
    last: Option<Instant>,
    omitted: u64,
}

impl Warnings {
    /// Writes a warning to the log, unless there was one a short time ago.
    pub(super) fn warn(&mut self, pool: &str, text: fmt::Arguments<'_>) {
        if self.last.is_some_and(|last| last.elapsed() < PAUSE) {
            self.omitted += 1;
            return;
        }
        self.last = Some(Instant::now());
        match std::mem::take(&mut self.omitted) {
            0 => log::warn!("pool {pool:?}: {text}"),
            omitted => log::warn!("pool {pool:?}: {text} ({omitted} warnings before were omitted)"),
        }
    }
}
