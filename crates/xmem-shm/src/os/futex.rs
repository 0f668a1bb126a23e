// SPDX-License-Identifier: MPL-2.0

//! A futex between processes.

use std::time::Duration;

use crate::sync::AtomicU32;
use rustix::thread::futex::{self, Flags, Timespec};

/// Sleeps while the word has this value, at most for `timeout`. May return without a reason.
pub fn wait(word: &AtomicU32, value: u32, timeout: Option<Duration>) {
    let timeout = timeout.map(|t| Timespec {
        tv_sec: i64::try_from(t.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: t.subsec_nanos().into(),
    });
    // All results (woken, changed word, signal, timeout) are treated alike: the caller checks its condition again.
    let _ = futex::wait(word, Flags::empty(), value, timeout.as_ref());
}

/// Wakes one sleeper.
pub fn wake_one(word: &AtomicU32) {
    let _ = futex::wake(word, Flags::empty(), 1);
}
