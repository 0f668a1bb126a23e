// SPDX-License-Identifier: MPL-2.0

//! A futex between processes.

use std::marker::PhantomData;
use std::time::Duration;

use crate::sync::AtomicU32;
use rustix::io::Errno;
use rustix::thread::futex::{self, Flags, Timespec, Wait, WaitFlags, WaitPtr, WaitvFlags};
use rustix::time::{ClockId, clock_gettime};

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

/// Linux takes no more.
const MOST_WORDS: usize = 128;

/// Words to sleep on together.
#[derive(Debug)]
pub struct Words<'a> {
    waits: [Wait; MOST_WORDS],
    count: usize,
    _words: PhantomData<&'a AtomicU32>,
}

impl Default for Words<'_> {
    fn default() -> Self {
        Self {
            waits: [Wait::new(); MOST_WORDS],
            count: 0,
            _words: PhantomData,
        }
    }
}

impl<'a> Words<'a> {
    /// Adds a word, and the value for which the thread sleeps. Returns false if Linux takes no more.
    pub fn add(&mut self, word: &'a AtomicU32, value: u32) -> bool {
        let Some(wait) = self.waits.get_mut(self.count) else {
            return false;
        };
        wait.val = value.into();
        wait.uaddr = WaitPtr::new(word.as_ptr().cast());
        wait.flags = WaitFlags::SIZE_U32;
        self.count += 1;
        true
    }

    /// Sleeps while all words have their values, at most for `timeout`. May return without a reason. Returns false if the kernel
    /// refuses to.
    pub fn wait(&self, timeout: Option<Duration>) -> bool {
        // No end that can be represented: never.
        let end = timeout.and_then(|timeout| {
            clock_gettime(ClockId::Monotonic).checked_add(timeout.try_into().ok()?)
        });
        let waits = self.waits.get(..self.count).unwrap_or_default();
        let waited = futex::waitv(waits, WaitvFlags::empty(), end.as_ref(), ClockId::Monotonic);
        // Linux before 5.16 does not have the call, filters of containers may refuse it, and without a word it is invalid.
        matches!(
            waited,
            Ok(_) | Err(Errno::AGAIN | Errno::INTR | Errno::TIMEDOUT)
        )
    }
}
