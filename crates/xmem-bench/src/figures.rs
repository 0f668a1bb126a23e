// SPDX-License-Identifier: MPL-2.0

//! What one process measures of itself.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use hdrhistogram::Histogram;
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

use crate::Error;

/// Between two moments.
#[derive(Debug, Default, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct Figures {
    pub(crate) frames: u64,
    pub(crate) cpu_ns: u64,
    pub(crate) page_faults: u64,
    /// From the stamp to the frame's arrival; 0 on the producer's side.
    pub(crate) p50_ns: u64,
    pub(crate) p99_ns: u64,
}

/// Counts frames from any thread.
#[derive(Debug)]
pub(crate) struct Meter {
    frames: AtomicU64,
    latencies: Mutex<Histogram<u64>>,
}

/// A moment.
#[derive(Debug)]
pub(crate) struct Start {
    frames: u64,
    cpu_ns: u64,
    page_faults: u64,
}

impl Meter {
    pub(crate) fn new() -> Result<Self, Error> {
        Ok(Self {
            frames: AtomicU64::new(0),
            // Two significant digits of anything up to ten seconds.
            latencies: Mutex::new(Histogram::new_with_bounds(1, 10_000_000_000, 2)?),
        })
    }

    /// Counts a frame and says whether it was the first.
    pub(crate) fn count(&self) -> bool {
        self.frames.fetch_add(1, Ordering::Relaxed) == 0
    }

    pub(crate) fn latency(&self, ns: u64) {
        self.histogram().saturating_record(ns.max(1));
    }

    pub(crate) fn start(&self) -> Result<Start, Error> {
        self.histogram().reset();
        Ok(Start {
            frames: self.frames.load(Ordering::Relaxed),
            cpu_ns: now(ClockId::ProcessCPUTime),
            page_faults: page_faults()?,
        })
    }

    pub(crate) fn figures_since(&self, start: &Start) -> Result<Figures, Error> {
        let latencies = self.histogram();
        Ok(Figures {
            frames: self.frames.load(Ordering::Relaxed) - start.frames,
            cpu_ns: now(ClockId::ProcessCPUTime) - start.cpu_ns,
            page_faults: page_faults()? - start.page_faults,
            p50_ns: latencies.value_at_quantile(0.5),
            p99_ns: latencies.value_at_quantile(0.99),
        })
    }

    fn histogram(&self) -> std::sync::MutexGuard<'_, Histogram<u64>> {
        self.latencies
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

/// A clock in nanoseconds.
pub(crate) fn now(clock: ClockId) -> u64 {
    let time = clock_gettime(clock);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Minor page faults of this process so far.
fn page_faults() -> Result<u64, Error> {
    let stat = std::fs::read_to_string("/proc/self/stat")?;
    // The program's name may have spaces and ends with a bracket; minflt is the tenth field, the eighth after it.
    let fields = stat
        .rsplit_once(')')
        .ok_or("no process name in /proc/self/stat")?
        .1;
    let field = fields
        .split_whitespace()
        .nth(7)
        .ok_or("no minflt in /proc/self/stat")?;
    Ok(field.parse()?)
}
