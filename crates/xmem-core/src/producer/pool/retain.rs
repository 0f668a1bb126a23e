// SPDX-License-Identifier: MPL-2.0

//! What keeps a published frame beyond the references to it: the readers that it is for. And what is done when it is released: its
//! parts are dropped, and its hook runs.

use std::any::Any;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use super::consumer::Consumers;

/// Runs in the producer when the last reference to a frame was dropped.
pub(in crate::producer) type Hook = Box<dyn FnOnce() + Send>;

/// Runs a hook. Catches a panic, because the hook runs on any thread that detects a release.
pub(in crate::producer) fn run_hook(hook: Hook) {
    if std::panic::catch_unwind(std::panic::AssertUnwindSafe(hook)).is_err() {
        log::error!("a release hook panicked");
    }
}

/// Set in a `WriteLease`, and moved into the record of the slot when the frame is published. Most frames have none.
#[derive(Default)]
pub(in crate::producer) struct Retention {
    /// The mutex is never locked. It makes the lease `Sync` although hooks need not be, so that the error that returns the lease
    /// can be converted to any other error.
    hook: Option<Mutex<Hook>>,
    /// The parts of a frame that is not in its slot. Of any type, because the pool only keeps them.
    parts: Option<Box<dyn Any + Send + Sync>>,
    /// The parts are in memory that goes back to its owner with the release.
    is_borrowed: bool,
    readers: Option<Readers>,
}

impl fmt::Debug for Retention {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Retention")
            .field("hook", &self.hook.is_some())
            .field("parts", &self.parts.is_some())
            .field("is_borrowed", &self.is_borrowed)
            .field("readers", &self.readers)
            .finish()
    }
}

impl Retention {
    pub(in crate::producer) fn set_hook(&mut self, hook: Hook) {
        self.hook = Some(Mutex::new(hook));
    }

    pub(in crate::producer) fn set_parts(
        &mut self,
        parts: impl Any + Send + Sync,
        is_borrowed: bool,
    ) {
        self.parts = Some(Box::new(parts));
        self.is_borrowed = is_borrowed;
    }

    pub(in crate::producer) fn parts<T: Any>(&self) -> Option<&T> {
        self.parts.as_ref()?.downcast_ref()
    }

    pub(in crate::producer) fn set_readers(&mut self, readers: Option<Readers>) {
        self.readers = readers;
    }

    pub(in crate::producer) fn readers(&self) -> Option<&Readers> {
        self.readers.as_ref()
    }

    pub(in crate::producer) fn take_readers(&mut self) -> Option<Readers> {
        self.readers.take()
    }

    /// Keeps the frame for this many readers more. `begun`: the reads of connected consumers until now.
    pub(super) fn keep_for_more(&mut self, begun: u32, more: u32) {
        let departed = match self.readers {
            Some(Readers::Count { departed, .. }) => departed,
            _ => 0,
        };
        let until = begun.saturating_add(departed).saturating_add(more);
        self.readers = Some(Readers::Count { until, departed });
    }

    /// Adds reads that no connected consumer counts.
    pub(super) fn note_departed(&mut self, reads: impl FnOnce() -> u32) {
        if let Some(Readers::Count { departed, .. }) = &mut self.readers {
            *departed = departed.saturating_add(reads());
        }
    }

    /// Whether anything is to be done when the frame is released.
    pub(in crate::producer) fn is_waited_for(&self) -> bool {
        self.has_release() || self.readers.is_some()
    }

    /// Whether other code waits for the release.
    pub(super) fn has_release(&self) -> bool {
        self.hook.is_some() || self.parts.is_some()
    }

    /// Whether the frame's memory changes after the release.
    pub(super) fn is_borrowed(&self) -> bool {
        self.is_borrowed && self.has_release()
    }

    /// Treats the frame like those in other memory from now on. Returns whether it was borrowed.
    pub(super) fn take_borrowed(&mut self) -> bool {
        let was_borrowed = self.is_borrowed();
        self.is_borrowed = false;
        was_borrowed
    }

    /// Called when the frame is released. Returns what is to be done without the lock: the parts are dropped, then the hook runs.
    pub(super) fn take_release(&mut self) -> Option<Hook> {
        let hook = self.hook.take();
        let hook = hook.map(|hook| hook.into_inner().unwrap_or_else(PoisonError::into_inner));
        let Some(parts) = self.parts.take() else {
            return hook;
        };
        Some(Box::new(move || {
            drop(parts);
            if let Some(hook) = hook {
                hook();
            }
        }))
    }
}

/// The readers for which a frame is kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::producer) enum Readers {
    /// Until it was read this often.
    Count {
        until: u32,
        /// Reads by consumers that have left, and by this process.
        departed: u32,
    },
    /// Until each of these consumers took and released it, or has left.
    Named(Arc<[u64]>),
}

impl Readers {
    /// `None`: the frame is kept for none.
    pub(in crate::producer) fn count(until: u32) -> Option<Self> {
        (until > 0).then_some(Self::Count { until, departed: 0 })
    }

    /// Whether some of them are still missing, or are reading.
    #[cold]
    pub(super) fn are_awaited(&self, consumers: &Consumers, slot: u32, generation: u32) -> bool {
        match self {
            Self::Count { until, departed } => {
                let over = consumers.reads_over(slot, generation);
                over.saturating_add(*departed) < *until
            }
            Self::Named(ids) => consumers.awaited(ids, slot, generation).next().is_some(),
        }
    }

    /// How many of them are still missing.
    pub(in crate::producer) fn left(
        &self,
        consumers: &Consumers,
        slot: u32,
        generation: u32,
    ) -> u32 {
        match self {
            Self::Count { until, departed } => {
                let begun = consumers.reads_begun(slot, generation);
                until.saturating_sub(begun.saturating_add(*departed))
            }
            Self::Named(ids) => consumers.awaited(ids, slot, generation).count() as u32,
        }
    }
}
