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

/// Whether a program can mean this time of CLOCK_MONOTONIC in nanoseconds, and not one of another clock, such as the wall clock, or in
/// another unit.
pub fn can_be_meant(time: i64) -> bool {
    /// A program that processes a file may be hours ahead.
    const AHEAD: i64 = 24 * 3600 * 1_000_000_000;
    let now = monotonic_ns();
    // The present time in microseconds is less, and so is that in milliseconds and in seconds.
    (now / 500..=now.saturating_add(AHEAD)).contains(&time)
}

/// The end of a wait, if it has one.
#[derive(Debug, Clone, Copy)]
pub struct Deadline(End);

#[derive(Debug, Clone, Copy)]
enum End {
    Never,
    At(Instant),
    /// The caller does not wait, so this reads no clock.
    Now,
}

impl Deadline {
    /// A wait that ends after `timeout`; `None`: never.
    pub fn after(timeout: Option<Duration>) -> Self {
        Self(match timeout {
            None => End::Never,
            Some(Duration::ZERO) => End::Now,
            // A time that `Instant` cannot represent counts as never.
            Some(timeout) => Instant::now()
                .checked_add(timeout)
                .map_or(End::Never, End::At),
        })
    }

    /// Whether the caller does not wait.
    pub fn is_now(self) -> bool {
        matches!(self.0, End::Now)
    }

    /// The remaining time; `None`: unlimited.
    pub fn left(self) -> Option<Duration> {
        match self.0 {
            End::Never => None,
            End::At(at) => Some(at.saturating_duration_since(Instant::now())),
            End::Now => Some(Duration::ZERO),
        }
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
