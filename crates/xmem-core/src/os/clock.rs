// SPDX-License-Identifier: MPL-2.0

use crate::fault;
use rustix::time::{ClockId, clock_gettime};

/// Nanoseconds on CLOCK_MONOTONIC, which all processes of a host share.
pub fn monotonic_ns() -> i64 {
    let now = clock_gettime(ClockId::Monotonic);
    (now.tv_sec * 1_000_000_000 + now.tv_nsec).saturating_add(fault::clock_offset())
}
