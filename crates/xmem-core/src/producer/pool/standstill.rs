// SPDX-License-Identifier: MPL-2.0

//! How long a lossless producer has waited without progress.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use xmem_shm::lock::lock;

/// The position of the slowest consumers and its time, while a thread waits without progress.
#[derive(Debug, Default)]
pub(super) struct Standstill(Mutex<Option<(u64, Instant)>>);

impl Standstill {
    /// Records the position of the slowest consumers; `None`: the wait is over. Returns for how long it has not changed.
    pub(super) fn note(&self, taken: Option<u64>) -> Duration {
        let mut standstill = lock(&self.0);
        let before = standstill.filter(|(seen, _)| Some(*seen) == taken);
        *standstill = before.or(taken.map(|taken| (taken, Instant::now())));
        before.map_or(Duration::ZERO, |(_, since)| since.elapsed())
    }

    /// The next wait starts its own measurement.
    pub(super) fn reset(&self) {
        *lock(&self.0) = None;
    }

    /// The time without progress. `None`: no thread waits without progress.
    pub(super) fn elapsed(&self) -> Option<Duration> {
        lock(&self.0).map(|(_, since)| since.elapsed())
    }
}
