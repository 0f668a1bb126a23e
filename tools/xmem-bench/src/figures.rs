// SPDX-License-Identifier: MPL-2.0

//! The figures that a process measures about itself.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use hdrhistogram::Histogram;
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

use crate::Error;
use crate::memory::Memory;

/// The figures of one measurement.
#[derive(Debug, Default, Clone, Serialize, Deserialize)]
pub(crate) struct Figures {
    pub(crate) frames: u64,
    pub(crate) cpu_ns: u64,
    pub(crate) page_faults: u64,
    /// Pairs of a latency and the number of frames with it. The latency is the time from the stamp to the arrival. Empty for a
    /// producer.
    pub(crate) latencies_ns: Vec<(u64, u64)>,
    /// The longest time between two frames of a consumer.
    pub(crate) longest_gap_ns: u64,
    pub(crate) before: Memory,
    pub(crate) after: Memory,
}

/// Counts frames. All threads can use it.
#[derive(Debug)]
pub(crate) struct Meter {
    frames: AtomicU64,
    arrivals: Mutex<Arrivals>,
}

#[derive(Debug)]
struct Arrivals {
    latencies: Histogram<u64>,
    last_ns: u64,
    longest_gap_ns: u64,
}

/// The counters at the start of a measurement.
#[derive(Debug)]
pub(crate) struct Start {
    memory: Memory,
    frames: u64,
    cpu_ns: u64,
    page_faults: u64,
}

impl Meter {
    pub(crate) fn new() -> Result<Self, Error> {
        Ok(Self {
            frames: AtomicU64::new(0),
            arrivals: Mutex::new(Arrivals {
                latencies: histogram()?,
                last_ns: now(ClockId::Monotonic),
                longest_gap_ns: 0,
            }),
        })
    }

    /// Counts a frame and returns whether it was the first.
    pub(crate) fn count(&self) -> bool {
        self.frames.fetch_add(1, Ordering::Relaxed) == 0
    }

    /// Records a frame that arrived at `now_ns`, `latency_ns` after it was stamped.
    pub(crate) fn arrived(&self, now_ns: u64, latency_ns: u64) {
        let mut arrivals = self.arrivals();
        arrivals.latencies.saturating_record(latency_ns.max(1));
        let gap = now_ns.saturating_sub(arrivals.last_ns);
        arrivals.longest_gap_ns = arrivals.longest_gap_ns.max(gap);
        arrivals.last_ns = now_ns;
    }

    pub(crate) fn start(&self) -> Result<Start, Error> {
        let memory = Memory::of_this_process()?;
        let mut arrivals = self.arrivals();
        arrivals.latencies.reset();
        arrivals.last_ns = now(ClockId::Monotonic);
        arrivals.longest_gap_ns = 0;
        Ok(Start {
            memory,
            frames: self.frames.load(Ordering::Relaxed),
            page_faults: page_faults()?,
            cpu_ns: now(ClockId::ProcessCPUTime),
        })
    }

    pub(crate) fn figures_since(&self, start: &Start) -> Result<Figures, Error> {
        let cpu_ns = now(ClockId::ProcessCPUTime) - start.cpu_ns;
        let page_faults = page_faults()? - start.page_faults;
        let frames = self.frames.load(Ordering::Relaxed) - start.frames;
        let arrivals = self.arrivals();
        let latencies = arrivals.latencies.iter_recorded();
        let gap = now(ClockId::Monotonic).saturating_sub(arrivals.last_ns);
        Ok(Figures {
            frames,
            cpu_ns,
            page_faults,
            latencies_ns: latencies
                .map(|value| (value.value_iterated_to(), value.count_at_value()))
                .collect(),
            longest_gap_ns: arrivals.longest_gap_ns.max(gap),
            before: start.memory,
            after: Memory::of_this_process()?,
        })
    }

    fn arrivals(&self) -> std::sync::MutexGuard<'_, Arrivals> {
        self.arrivals
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

/// The latency in nanoseconds that this share of all frames did not exceed. `None` if there are no frames.
pub(crate) fn latency_ns<'a>(
    figures: impl IntoIterator<Item = &'a Figures>,
    share: f64,
) -> Result<Option<f64>, Error> {
    let mut all = histogram()?;
    for (latency, count) in figures.into_iter().flat_map(|one| &one.latencies_ns) {
        all.saturating_record_n(*latency, *count);
    }
    Ok((!all.is_empty()).then(|| all.value_at_quantile(share) as f64))
}

/// A histogram with two significant digits, up to ten seconds.
fn histogram() -> Result<Histogram<u64>, Error> {
    Ok(Histogram::new_with_bounds(1, 10_000_000_000, 2)?)
}

/// The time of a clock in nanoseconds.
pub(crate) fn now(clock: ClockId) -> u64 {
    let time = clock_gettime(clock);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// The number of minor page faults of this process.
fn page_faults() -> Result<u64, Error> {
    let stat = std::fs::read_to_string("/proc/self/stat")?;
    // The program's name may contain spaces and brackets, so the line is split at the last bracket. minflt is the tenth field, the
    // eighth after it.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn latencies_of_several_consumers_are_merged() {
        let of = |latencies_ns: &[(u64, u64)]| Figures {
            latencies_ns: latencies_ns.to_vec(),
            ..Figures::default()
        };
        let all = [of(&[(10, 98)]), of(&[(50, 1), (100, 1)])];
        assert_eq!(latency_ns(&all, 0.5).unwrap(), Some(10.0));
        assert_eq!(latency_ns(&all, 0.99).unwrap(), Some(50.0));
        assert_eq!(latency_ns(&all, 1.0).unwrap(), Some(100.0));
        assert_eq!(latency_ns(&[], 0.5).unwrap(), None);
    }
}
