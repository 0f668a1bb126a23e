// SPDX-License-Identifier: MPL-2.0

//! Regions that are gone here, but that consumers may still have mapped.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::region::Region;

/// How long a retired region counts for a consumer that does not say that it let go: one that is stopped, or lies.
const LET_GO_TIME: Duration = Duration::from_secs(2);

/// What is to run when nobody can have a region mapped any more.
pub(super) type Released = Box<dyn FnOnce() + Send>;

/// Device memory that goes with its allocation, not with its last user (legacy handles).
pub(super) enum Lasting {
    Own(#[allow(dead_code)] Arc<Region>), // held until it is dropped
    /// Upstream's.
    Borrowed(Released),
    /// Upstream's, which has not let go of it, while the pool ends.
    #[cfg(feature = "cuda")]
    Kept,
}

impl Lasting {
    /// Nobody has it open any more: what is to run.
    fn end(self) -> Option<Released> {
        match self {
            Self::Borrowed(released) => Some(released),
            // Device memory is freed by another thread; the host half is small.
            Self::Own(_) => None,
            #[cfg(feature = "cuda")]
            Self::Kept => None,
        }
    }
}

impl std::fmt::Debug for Lasting {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Own(_) => "Own",
            Self::Borrowed(_) => "Borrowed",
            #[cfg(feature = "cuda")]
            Self::Kept => "Kept",
        })
    }
}

#[derive(Debug)]
struct Entry {
    id: u32,
    /// Bytes.
    len: u64,
    /// `Retired::version` since it is gone.
    version: u32,
    since: Instant,
    sent_to: Vec<u64>,
    /// Memory that must be there for as long as anybody has it open, however long that is.
    lasting: Option<Lasting>,
}

/// All of them.
#[derive(Debug, Default)]
pub(super) struct Retired {
    entries: Vec<Entry>,
    /// Counts regions that went.
    version: u32,
}

impl Retired {
    /// What consumers are to have seen (`LeasePage::regions_seen`) that let go of all regions that went until now.
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
        // What a consumer that is stopped keeps from being freed must not starve the pool.
        let counts = |entry: &&Entry| entry.since.elapsed() < LET_GO_TIME;
        self.entries.iter().filter(counts).map(|e| e.len).sum()
    }

    /// Upstream lets go of its memory, which is retired already. `released` is returned if nobody has it open any more.
    pub(super) fn let_go(&mut self, id: u32, released: Option<Released>) -> Option<Released> {
        match self.entries.iter_mut().find(|entry| entry.id == id) {
            Some(entry) => {
                entry.lasting = released.map(Lasting::Borrowed);
                None
            }
            None => released,
        }
    }

    /// Forgets regions that every consumer has let go of, or had the time to. `seen`: up to which version a consumer
    /// has let go; `None`: of all.
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

    /// Who has device memory open that must be there for so long.
    #[cfg(feature = "cuda")]
    pub(super) fn lasting(&self) -> impl Iterator<Item = &[u64]> {
        self.entries
            .iter()
            .filter(|entry| entry.lasting.is_some())
            .map(|entry| &*entry.sent_to)
    }

    /// The pool ends, and others have its device memory open still: it is kept until the process ends.
    #[cfg(feature = "cuda")]
    pub(super) fn leak(&mut self) {
        for entry in &mut self.entries {
            let own = |lasting: &mut Lasting| matches!(lasting, Lasting::Own(_));
            std::mem::forget(entry.lasting.take_if(own));
        }
    }

    /// What is to run for memory of upstream that was let go of here, when the pool is gone.
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
