// SPDX-License-Identifier: MPL-2.0

//! Regions that are retired here, but that consumers may still have mapped.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::region::Region;

/// How long a retired region counts for a consumer that does not report that it unmapped it: one that is stopped or
/// misbehaves.
const LET_GO_TIME: Duration = Duration::from_secs(2);

/// The hook that runs when no consumer can have a region mapped any more.
pub(in crate::producer) type Released = Box<dyn FnOnce() + Send>;

/// Device memory that is freed with its allocation, not with its last user (legacy handles).
pub(super) enum Lasting {
    Own(#[allow(dead_code)] Arc<Region>), // held until it is dropped
    /// Upstream's memory.
    Borrowed(Released),
    /// Upstream's memory, to which upstream still has a handle while the pool ends.
    Kept,
}

impl Lasting {
    /// No consumer has it open any more: returns the hook to run.
    fn end(self) -> Option<Released> {
        match self {
            Self::Borrowed(released) => Some(released),
            // Device memory is freed by another thread; the host half is small.
            Self::Own(_) => None,
            Self::Kept => None,
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
    /// `Retired::version` after its removal.
    version: u32,
    since: Instant,
    sent_to: Vec<u64>,
    /// Memory that must exist while any consumer has it open, however long that is.
    lasting: Option<Lasting>,
}

/// All retired regions.
#[derive(Debug, Default)]
pub(super) struct Retired {
    entries: Vec<Entry>,
    /// Counts regions that went.
    version: u32,
}

impl Retired {
    /// The value of `LeasePage::regions_seen` of consumers that have unmapped all regions retired so far.
    pub(super) fn version(&self) -> u32 {
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

    /// Bytes that consumers may still have mapped.
    pub(super) fn bytes(&self) -> u64 {
        // Memory that a stopped consumer keeps mapped must not use up the pool's limit.
        let counts = |entry: &&Entry| entry.since.elapsed() < LET_GO_TIME;
        self.entries.iter().filter(counts).map(|e| e.len).sum()
    }

    /// Upstream drops its memory, which is retired already. `released` is returned if no consumer has it open any more.
    pub(super) fn let_go(&mut self, id: u32, released: Option<Released>) -> Option<Released> {
        match self.entries.iter_mut().find(|entry| entry.id == id) {
            Some(entry) => {
                entry.lasting = released.map(Lasting::Borrowed);
                None
            }
            None => released,
        }
    }

    /// Forgets regions that every consumer has unmapped, or had the time to unmap. `seen`: the version up to which a
    /// consumer has unmapped regions; `None`: all of them.
    pub(super) fn forget(&mut self, seen: impl Fn(u64) -> Option<u32>) -> Vec<Released> {
        for entry in &mut self.entries {
            entry.sent_to.retain(|consumer| {
                // Versions wrap.
                seen(*consumer).is_some_and(|seen| (seen.wrapping_sub(entry.version) as i32) < 0)
            });
        }
        let gone = self.entries.extract_if(.., |entry| {
            let late = entry.lasting.is_none() && entry.since.elapsed() >= LET_GO_TIME;
            entry.sent_to.is_empty() || late
        });
        gone.filter_map(|entry| entry.lasting?.end()).collect()
    }

    /// The consumers that have such device memory open, for each region.
    pub(super) fn lasting(&self) -> impl Iterator<Item = &[u64]> {
        self.entries
            .iter()
            .filter(|entry| entry.lasting.is_some())
            .map(|entry| &*entry.sent_to)
    }

    /// The pool ends while others have its device memory open: it is kept until the process ends.
    pub(super) fn leak(&mut self) {
        for entry in &mut self.entries {
            let own = |lasting: &mut Lasting| matches!(lasting, Lasting::Own(_));
            std::mem::forget(entry.lasting.take_if(own));
        }
    }

    /// Takes the hooks of upstream's retired memory when the pool is gone.
    pub(super) fn take_borrowed(&mut self) -> Vec<Released> {
        let end = |entry: &mut Entry| entry.lasting.take()?.end();
        self.entries.iter_mut().filter_map(end).collect()
    }

    /// The consumers that may still have a region mapped.
    pub(super) fn mapped_by(&self, id: u32) -> Vec<u64> {
        let entry = self.entries.iter().find(|entry| entry.id == id);
        entry.map_or(Vec::new(), |entry| entry.sent_to.clone())
    }
}
