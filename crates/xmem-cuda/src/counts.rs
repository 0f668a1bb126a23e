// SPDX-License-Identifier: MPL-2.0

//! Counts what this process did with devices. In a running stream, the first three counts do not change.

use std::sync::atomic::{AtomicU64, Ordering};

/// How often this process took each of these slow steps.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counts {
    /// Imports of device memory of other processes.
    pub imports: u64,
    /// Waits of the CPU for a device.
    pub host_syncs: u64,
    /// Copies of frames between host and device, or between devices.
    pub copies: u64,
    /// Opened events of other processes.
    pub events_opened: u64,
    /// Imports of device memory of other processes that are closed again.
    pub closed: u64,
    /// Device memory that this process allocated for sharing, and has freed.
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

/// The present counts of this process.
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
