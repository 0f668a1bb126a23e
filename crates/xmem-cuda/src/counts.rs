// SPDX-License-Identifier: MPL-2.0

//! Counts what this process did with devices. In a running stream, the first three counts do not change.

use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! counts {
    ($($(#[$about:meta])* $name:ident;)*) => {
        /// How often this process took each of these slow steps.
        #[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct Counts {
            $($(#[$about])* pub $name: u64,)*
        }

        /// The counters behind [`Counts`], one for each field.
        #[derive(Debug)]
        pub struct Counters {
            $(#[doc = concat!("[`Counts::", stringify!($name), "`]")] pub $name: AtomicU64,)*
        }

        /// The counters of this process.
        pub static COUNTERS: Counters = Counters { $($name: AtomicU64::new(0),)* };

        /// The present counts of this process.
        pub fn counts() -> Counts {
            Counts { $($name: COUNTERS.$name.load(Ordering::Relaxed),)* }
        }
    };
}

counts! {
    /// Imports of device memory of other processes.
    imports;
    /// Waits of the CPU for a device.
    host_syncs;
    /// Copies of frames between host and device, or between devices.
    copies;
    /// Opened events of other processes.
    events_opened;
    /// Imports of device memory of other processes that are closed again.
    closed;
    /// Device memory that this process allocated for sharing, and has freed.
    freed;
}

/// Adds one to a counter.
pub fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}
