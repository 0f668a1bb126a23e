// SPDX-License-Identifier: MPL-2.0

//! Timeouts of published frames. Only the control thread has them.

use std::collections::BTreeMap;
use std::time::Instant;

use super::has_published;
use crate::producer::pool::Pool;
use crate::producer::pool::event::Unread;
use crate::producer::pool::retain::Readers;
use crate::producer::pool::slots::SlotInfo;

/// A published slot with a timeout.
#[derive(Debug)]
struct Timeout {
    until: Instant,
    generation: u32,
    /// The buffer's number, for the report.
    index: u32,
}

/// The timeouts, by slot.
#[derive(Debug, Default)]
pub(in crate::producer) struct Timeouts(BTreeMap<u32, Timeout>);

impl Timeouts {
    pub(in crate::producer) fn add(
        &mut self,
        slot: u32,
        generation: u32,
        index: u32,
        until: Instant,
    ) {
        let timeout = Timeout {
            until,
            generation,
            index,
        };
        self.0.insert(slot, timeout);
    }

    /// The time of the next timeout.
    pub(in crate::producer) fn next(&self) -> Option<Instant> {
        self.0.values().map(|timeout| timeout.until).min()
    }

    /// Empties the frames whose readers did not take them in time.
    pub(in crate::producer) fn give_up_unread(&mut self, pool: &Pool) -> Vec<Unread> {
        if self.0.is_empty() {
            return Vec::new();
        }
        let now = Instant::now();
        let mut guard = pool.lock_on_own_thread();
        let mut unread = Vec::new();
        for (slot, timeout) in self.0.extract_if(.., |_, timeout| timeout.until <= now) {
            let generation = timeout.generation;
            let readers = guard.slots.get(slot).and_then(SlotInfo::readers);
            let Some(readers) = readers.filter(|_| has_published(pool, slot, generation)) else {
                continue;
            };
            let missing = readers.left(&guard.consumers, slot, generation);
            if missing == 0 {
                continue;
            }
            let (count, ids) = match readers {
                Readers::Count { until, .. } => (*until, guard.consumers.readers()),
                Readers::Named(ids) => (ids.len() as u32, ids.clone()),
            };
            let late = guard.consumers.awaited(&ids, slot, generation);
            unread.push(Unread {
                index: timeout.index,
                count,
                missing,
                readers: late.map(ToString::to_string).collect(),
            });
            // A reader that already took the frame still holds it.
            guard.slots.keep_for_more(slot, 0, 0);
        }
        guard.finalize_watched();
        drop(guard);
        if !unread.is_empty() {
            pool.notifier().notify();
        }
        unread
    }
}
