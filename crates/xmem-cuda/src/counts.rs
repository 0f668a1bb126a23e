// SPDX-License-Identifier: MPL-2.0

//! Counters of what this process did with devices. While a stream runs, the first three do not change.

use std::sync::atomic::{AtomicU64, Ordering};

/// How often this process took each of the steps that cost time.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counts {
    /// Device memory of other processes that was imported.
    pub imports: u64,
    /// Times that the CPU waited for a device.
    pub host_syncs: u64,
    /// Copies of frames between host and device, or between devices.
    pub copies: u64,
    /// Events of other processes that were opened.
    pub events_opened: u64,
    /// Device memory of other processes that was imported and is closed again.
    pub closed: u64,
    /// Device memory that this process made to share it, and that it has freed.
    pub freed: u64,
}

/// The counters behind [`Counts`], one for each field.
#[derive(Debug)]
pub struct Counters {
    /// [`Counts::imports`]
    pub imports: AtomicU64,
    /// [`Counts::host_syncs`]
    pub host_syncs: AtomicU64,
    /// [`Counts::copies`]
    pub copies: AtomicU64,
    /// [`Counts::events_opened`]
    pub events_opened: AtomicU64,
    /// [`Counts::closed`]
    pub closed: AtomicU64,
    /// [`Counts::freed`]
    pub freed: AtomicU64,
}

/// The counters of this process.
pub static COUNTERS: Counters = Counters {
    imports: AtomicU64::new(0),
    host_syncs: AtomicU64::new(0),
    copies: AtomicU64::new(0),
    events_opened: AtomicU64::new(0),
    closed: AtomicU64::new(0),
    freed: AtomicU64::new(0),
};

/// Adds one to a counter.
pub fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

/// The counters of this process so far.
pub fn counts() -> Counts {
    let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    Counts {
        imports: read(&COUNTERS.imports),
        host_syncs: read(&COUNTERS.host_syncs),
        copies: read(&COUNTERS.copies),
        events_opened: read(&COUNTERS.events_opened),
        closed: read(&COUNTERS.closed),
        freed: read(&COUNTERS.freed),
    }
}
