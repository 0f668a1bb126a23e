// SPDX-License-Identifier: MPL-2.0

//! Reads CLOCK_TAI beside CLOCK_MONOTONIC, on a host whose clock is synchronised.
#![allow(unsafe_code)] // adjtimex, which rustix lacks

use std::ffi::{c_int, c_long};
use std::time::{Duration, Instant};

use rustix::time::{DynamicClockId, clock_gettime_dynamic};
use xmem_core::monotonic_ns;

use crate::wire::Tai;

/// A reading is used for this long, because credits are frequent, and each reading needs system calls.
const AGE: Duration = Duration::from_millis(100);
/// The growth of the error while a reading is used. The kernel adds 500 microseconds once a second, so its value and the reading
/// are together up to 1.1 s old.
const GROWTH: u64 = 550_000;
/// The kernel's limit for its error, in microseconds. It means that the error is unknown.
const UNKNOWN_ERROR: c_long = 16_000_000;
/// The pairs of clocks per reading. The closest pair is used, because the process may be interrupted inside of a pair.
const PAIRS: usize = 3;

/// CLOCK_TAI between two readings of CLOCK_MONOTONIC, in nanoseconds.
#[derive(Debug, Clone, Copy)]
struct Pair {
    before: i64,
    tai: i64,
    after: i64,
}

/// The state of the kernel's clock.
#[derive(Debug, Clone, Copy)]
struct Kernel {
    /// The result of adjtimex.
    state: c_int,
    status: c_int,
    /// In microseconds.
    max_error: c_long,
    /// TAI minus UTC in seconds. 0: it is not set, and CLOCK_TAI is UTC.
    tai: c_int,
}

/// Reads the clocks at most ten times a second.
#[derive(Debug, Default)]
pub struct Reader {
    at: Option<Instant>,
    last: Option<Tai>,
}

impl Reader {
    /// The present reading. `None`: the kernel's clock is not synchronised, or TAI is not set.
    pub fn read(&mut self, now: Instant) -> Option<Tai> {
        let is_new = |at| now.saturating_duration_since(at) < AGE;
        if !self.at.is_some_and(is_new) {
            (self.at, self.last) = (Some(now), read());
        }
        self.last
    }
}

/// Reads the clocks.
fn read() -> Option<Tai> {
    let pairs = std::iter::repeat_with(pair).take(PAIRS);
    let pairs = pairs.collect::<Option<Vec<_>>>()?;
    let pair = pairs
        .into_iter()
        .min_by_key(|it| it.after.saturating_sub(it.before))?;
    // Read the state after the pair: a clock that was set before or within the pair is then not synchronised.
    assess(pair, kernel()?)
}

fn pair() -> Option<Pair> {
    let before = monotonic_ns();
    // gVisor has no such clock.
    let tai = clock_gettime_dynamic(DynamicClockId::Tai).ok()?;
    let after = monotonic_ns();
    let seconds = tai.tv_sec.checked_mul(1_000_000_000)?;
    Some(Pair {
        before,
        tai: seconds.checked_add(tai.tv_nsec)?,
        after,
    })
}

/// `None` if the process may not call adjtimex.
fn kernel() -> Option<Kernel> {
    // SAFETY: it consists of integers, so zeros are a valid value.
    let mut timex: libc::timex = unsafe { std::mem::zeroed() };
    // SAFETY: the pointer is valid during the call. The modes are 0, so the call only reads the clock.
    let state = unsafe { libc::adjtimex(&mut timex) };
    (state >= 0).then_some(Kernel {
        state,
        status: timex.status,
        max_error: timex.maxerror,
        tai: timex.tai,
    })
}

/// The offset and its error. `None` if the clock is not synchronised, or TAI is not set. Reason for the latter: CLOCK_TAI is then
/// UTC, and the two hosts apply a leap second at different times.
fn assess(pair: Pair, kernel: Kernel) -> Option<Tai> {
    let is_synchronised = kernel.state != libc::TIME_ERROR
        && kernel.status & libc::STA_UNSYNC == 0
        && (0..UNKNOWN_ERROR).contains(&kernel.max_error);
    if !is_synchronised || kernel.tai <= 0 {
        return None;
    }
    let width = pair.after.checked_sub(pair.before)?;
    let half = u64::try_from(width).ok()?.div_ceil(2);
    let middle = pair.before.midpoint(pair.after);
    let max_error = u64::try_from(kernel.max_error).ok()?.checked_mul(1000)?;
    Some(Tai {
        offset: pair.tai.checked_sub(middle)?,
        error: max_error.checked_add(half)?.checked_add(GROWTH)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAIR: Pair = Pair {
        before: 1000,
        tai: 5_000_000,
        after: 1201,
    };
    const KERNEL: Kernel = Kernel {
        state: 0,
        status: 0,
        max_error: 2000,
        tai: 37,
    };

    #[test]
    fn the_error_is_that_of_the_kernel_and_of_the_pair() {
        let expected = Tai {
            offset: 5_000_000 - 1100,
            error: 2_000_000 + 101 + GROWTH,
        };
        assert_eq!(assess(PAIR, KERNEL), Some(expected));
        // A leap second is announced.
        let leap = Kernel {
            state: libc::TIME_INS,
            status: libc::STA_INS,
            ..KERNEL
        };
        assert_eq!(assess(PAIR, leap), Some(expected));
    }

    #[test]
    fn a_clock_that_is_not_synchronised_has_no_tai() {
        let (state, status) = (libc::TIME_ERROR, libc::STA_UNSYNC);
        for kernel in [
            Kernel { state, ..KERNEL },
            Kernel { status, ..KERNEL },
            Kernel { tai: 0, ..KERNEL },
            Kernel { tai: -1, ..KERNEL },
            Kernel {
                max_error: UNKNOWN_ERROR,
                ..KERNEL
            },
            Kernel {
                max_error: -1,
                ..KERNEL
            },
        ] {
            assert_eq!(assess(PAIR, kernel), None, "{kernel:?}");
        }
    }

    #[test]
    fn impossible_pairs_are_ignored() {
        for (before, tai, after) in [(2, 5, 1), (i64::MIN, 5, i64::MAX), (i64::MIN, 1, i64::MIN)] {
            let pair = Pair { before, tai, after };
            assert_eq!(assess(pair, KERNEL), None, "{pair:?}");
        }
    }

    #[test]
    fn this_kernel_can_be_read() {
        let mut reader = Reader::default();
        let now = Instant::now();
        let first = reader.read(now);
        assert_eq!(reader.read(now + AGE / 2), first);
        // Both readings have the same offset, within the error of the pairs, unless the clock is set now.
        let second = reader.read(now + AGE);
        if let (Some(first), Some(second)) = (first, second) {
            assert!(first.offset.abs_diff(second.offset) <= first.error + second.error);
        }
    }
}
