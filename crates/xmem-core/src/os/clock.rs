// SPDX-License-Identifier: MPL-2.0

use crate::fault;
use rustix::time::{ClockId, clock_gettime};

/// Nanoseconds on CLOCK_MONOTONIC, which all processes of a host share.
pub fn monotonic_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    (now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64)
        .saturating_add_signed(fault::clock_offset())
}
