// SPDX-License-Identifier: MPL-2.0

//! Retired regions that consumers may still have mapped.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::retain::Hook;
use crate::region::Region;

/// For this time a retired region counts for a consumer that does not report that it was unmapped. Such a consumer is stopped
/// or violates the protocol.
const LET_GO_TIME: Duration = Duration::from_secs(2);

/// Device memory that is freed with its allocation, not with its last user (legacy handles).
pub(super) enum Lasting {
    Own(#[allow(dead_code)] Arc<Region>), // keeps the region until it is dropped
    /// Upstream's memory. The hook runs when no consumer can have it mapped any more.
    Borrowed(Hook),
    /// Upstream's memory. Upstream still has a handle to it when the pool ends.
    Kept,
}

impl Lasting {
    /// Called when no consumer has it open any more. Returns the hook to run.
    fn end(self) -> Option<Hook> {
        match self {
            Self::Borrowed(released) => Some(released),
            // Dropping it is cheap: another thread frees device memory, and the host half is small.
            Self::Own(_) | Self::Kept => None,
        }
    }
}

impl std::fmt::Debug for Lasting {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Own(_) => "Own",
            Self::Borrowed(_) => "Borrowed",
            Self::Kept => "Kept",
        })
    }
}

#[derive(Debug)]
struct Entry {
    id: u32,
    len: u64,
    /// The value of `Retired::version` after its removal.
    version: u32,
    since: Instant,
    sent_to: Vec<u64>,
    /// Memory that must exist while a consumer has it open, without a time limit.
    lasting: Option<Lasting>,
}

/// All retired regions.
#[derive(Debug, Default)]
pub(in crate::producer) struct Retired {
    entries: Vec<Entry>,
    /// Counts the removed regions.
    version: u32,
}

impl Retired {
    /// The version of the list of regions, which increases with each removed one: the value of `LeasePage::regions_seen` of a consumer that
    /// has unmapped all retired regions.
    pub(in crate::producer) fn version(&self) -> u32 {
        self.version
    }

    pub(super) fn add(&mut self, id: u32, len: u64, sent_to: Vec<u64>, lasting: Option<Lasting>) {
        self.version = self.version.wrapping_add(1);
        self.entries.push(Entry {
            id,
            len,
            version: self.version,
            since: Instant::now(),
            sent_to,
            lasting,
        });
    }

    /// The bytes that consumers may still have mapped.
    pub(super) fn bytes(&self) -> u64 {
        // Memory that a stopped consumer keeps mapped must not use up the pool's limit.
        let counts = |entry: &&Entry| entry.since.elapsed() < LET_GO_TIME;
        self.entries.iter().filter(counts).map(|e| e.len).sum()
    }

    /// Called when upstream drops its memory, which is already retired. Returns `released` if no consumer has it open any more.
    pub(super) fn note_dropped(&mut self, id: u32, released: Option<Hook>) -> Option<Hook> {
        match self.entries.iter_mut().find(|entry| entry.id == id) {
            Some(entry) => {
                entry.lasting = released.map(Lasting::Borrowed);
                None
            }
            None => released,
        }
    }

    /// Removes the regions that every consumer has unmapped, or had the time to unmap. `seen`: the version up to which a
    /// consumer has unmapped regions; `None`: all of them.
    pub(super) fn forget(&mut self, seen: impl Fn(u64) -> Option<u32>) -> Vec<Hook> {
        for entry in &mut self.entries {
            entry.sent_to.retain(|consumer| {
                // Versions wrap around.
                seen(*consumer).is_some_and(|seen| (seen.wrapping_sub(entry.version) as i32) < 0)
            });
        }
        let gone = self.entries.extract_if(.., |entry| {
            let late = entry.lasting.is_none() && entry.since.elapsed() >= LET_GO_TIME;
            entry.sent_to.is_empty() || late
        });
        gone.filter_map(|entry| entry.lasting?.end()).collect()
    }

    /// For each region of such device memory, the consumers that have it open.
    pub(super) fn lasting(&self) -> impl Iterator<Item = &[u64]> {
        self.entries
            .iter()
            .filter(|entry| entry.lasting.is_some())
            .map(|entry| &*entry.sent_to)
    }

    /// Called when the pool ends while consumers have its device memory open: keeps it until the process ends.
    pub(super) fn leak(&mut self) {
        for entry in &mut self.entries {
            let own = |lasting: &mut Lasting| matches!(lasting, Lasting::Own(_));
            std::mem::forget(entry.lasting.take_if(own));
        }
    }

    /// Takes the hooks of upstream's retired memory. Called when the pool ends.
    pub(super) fn take_borrowed(&mut self) -> Vec<Hook> {
        let end = |entry: &mut Entry| entry.lasting.take()?.end();
        self.entries.iter_mut().filter_map(end).collect()
    }

    /// The consumers that may still have a region mapped.
    pub(in crate::producer) fn mapped_by(&self, id: u32) -> Vec<u64> {
        let entry = self.entries.iter().find(|entry| entry.id == id);
        entry.map_or(Vec::new(), |entry| entry.sent_to.clone())
    }
}
