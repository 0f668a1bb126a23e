// SPDX-License-Identifier: MPL-2.0

//! The clock that all processes of a host share, and deadlines.

use std::time::{Duration, Instant};

use crate::fault;
use rustix::time::{ClockId, clock_gettime};

/// Nanoseconds on CLOCK_MONOTONIC, which all processes of a host share.
pub fn monotonic_ns() -> i64 {
    let now = clock_gettime(ClockId::Monotonic);
    (now.tv_sec * 1_000_000_000 + now.tv_nsec).saturating_add(fault::clock_offset())
}

/// The end of a wait, if it has one.
#[derive(Debug, Clone, Copy)]
pub struct Deadline(Option<Instant>);

impl Deadline {
    /// A wait that ends after `timeout`; `None`: never.
    pub fn after(timeout: Option<Duration>) -> Self {
        // A time that `Instant` cannot represent counts as never.
        Self(timeout.and_then(|timeout| Instant::now().checked_add(timeout)))
    }

    /// The remaining time; `None`: unlimited.
    pub fn left(self) -> Option<Duration> {
        self.0
            .map(|at| at.saturating_duration_since(Instant::now()))
    }

    /// Whether no time is left.
    pub fn is_over(self) -> bool {
        self.left() == Some(Duration::ZERO)
    }

    /// The remaining time, limited to `limit`.
    pub fn left_up_to(self, limit: Duration) -> Duration {
        self.left().map_or(limit, |left| left.min(limit))
    }
}
