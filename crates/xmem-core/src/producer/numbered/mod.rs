// SPDX-License-Identifier: MPL-2.0

//! Buffers by number: a buffer is a slot, its readers are counted, and they have a timeout.

mod set_aside;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use xmem_shm::abi::entry::Entry;
use xmem_shm::abi::meta::FrameMeta;
use xmem_shm::abi::named::Sticky;
use xmem_shm::protocol::lease::{self, SlotWord};

use super::pool::Pool;
use super::pool::consumer::ConsumerRecord;
use super::pool::event::{Command, Unread};
use super::pool::retain::{Readers, Retention};
use super::pool::slots::{self, SlotInfo, Use};
use super::pool::wait;
use super::slot::{Slot, SlotRef, own_hold};
use super::{Producer, WriteLease};
use crate::cancel::Wait;
use crate::error::WaitError;
use crate::frame::hold::Hold;
use crate::frame::lease::{Described, Descriptions, Malformed, ReadLease};

impl Producer {
    /// A write lease on the slot with this number, if it has the frame of this generation (`None`: if it is empty) and nothing
    /// else holds it. Also returns how many readers of its count are still missing.
    pub(crate) fn acquire_index(
        &self,
        slot: u32,
        published: Option<u32>,
    ) -> Option<(WriteLease, u32)> {
        let (slot, left) = claim_exact(self.inner(), slot, published)?;
        let len = slot.at().place.len;
        Some((WriteLease::new(slot, len), left))
    }

    /// A reference to the frame that an entry of this slot describes, if the slot still has it.
    pub(crate) fn read_index(&self, entry: &Entry, meta: FrameMeta) -> Option<ReadLease> {
        let (hold, sticky) = find_own(self.inner(), entry.slot(), entry.generation())?;
        let place = self.control().place(entry.slot())?;
        let info = entry.info(place.storage, place.device_id);
        // Frames in parts are only for consumers that follow the stream.
        let no_parts = |_| Ok::<_, Malformed>(None);
        let mut kept = Descriptions::default();
        let meta = Described::Whole(meta);
        ReadLease::new(&mut kept, hold, entry, info, meta, &sticky, &no_parts).ok()?
    }

    /// Keeps the published frame of a slot until this many more consumers took and released it.
    pub(crate) fn keep_until(&self, slot: u32, consumers: u32) -> bool {
        let pool = self.inner();
        let (Some(mut guard), Some(cell)) = (pool.lock(), pool.control().slot(slot)) else {
            return false;
        };
        let Some(generation) = SlotWord(cell.load(Ordering::Relaxed)).published() else {
            return false;
        };
        lease::ask_to_ring(cell);
        let begun = guard.consumers.reads_begun(slot, generation);
        guard.slots.keep_for_more(slot, begun, consumers);
        true
    }

    /// The connected consumers.
    pub(crate) fn readers(&self) -> Vec<Reader> {
        let Some(guard) = self.inner().lock() else {
            return Vec::new();
        };
        let readers = guard.consumers.iter().filter(|it| it.reads());
        readers.map(|it| Reader::of(it)).collect()
    }

    /// Whether a slot has the frame of this generation.
    pub(crate) fn has_published(&self, slot: u32, generation: u32) -> bool {
        has_published(self.inner(), slot, generation)
    }

    /// Counts a read by this process. The caller holds the frame.
    pub(crate) fn count_read(&self, slot: u32, generation: u32) {
        if let Some(mut guard) = self.inner().lock()
            && self.has_published(slot, generation)
        {
            let read = |other| u32::from(other == slot);
            guard.slots.note_departed(read);
        }
    }

    /// Empties a published slot after this time, unless its readers have taken the frame. `index`: the number for the report.
    pub(crate) fn give_up_after(&self, slot: u32, generation: u32, index: u32, timeout: Duration) {
        // A time that the clock cannot represent counts as no timeout.
        if let Some(until) = Instant::now().checked_add(timeout)
            && self.is_of_this_process()
        {
            self.inner().commands().send(Command::GiveUpAt {
                slot,
                generation,
                index,
                until,
            });
        }
    }

    /// Waits until each count is used up and no frame with a count is being read.
    pub(crate) fn wait_until_read(&self, wait: Wait<'_>) -> Result<(), WaitError> {
        wait::wait(self.inner(), wait, || {
            let mut guard = self.inner().lock()?;
            guard.finalize_watched();
            let all = guard.slots.iter().all(|(_, info)| info.readers().is_none());
            all.then_some(())
        })
    }
}

/// Claims the slot with this number, if it has the frame of this generation (`None`: if it is empty) and has no other
/// reference. Also returns how many readers of its count are still missing.
fn claim_exact(pool: &Arc<Pool>, slot: u32, published: Option<u32>) -> Option<(Slot, u32)> {
    let mut guard = pool.lock()?;
    // A frame that all readers have released is free even before their messages are read.
    guard.finalize_watched();
    let info = guard.slots.get(slot)?;
    let word = slots::word(pool.control(), slot)?;
    if pool.is_closed() || !info.can_be_claimed() || word.published() != published {
        return None;
    }
    let place = info.place?;
    // The caller gets the frame, so missing readers do not count.
    let retention = guard.slots.retention(slot);
    let readers = retention.and_then(Retention::take_readers);
    let Some(claimed) = guard.claim(slot) else {
        if let Some(retention) = guard.slots.retention(slot) {
            retention.set_readers(readers);
        }
        return None;
    };
    // After the claim, so that reads that ended before it are counted.
    let generation = word.generation();
    let left = readers.map_or(0, |readers| {
        readers.left(&guard.consumers, slot, generation)
    });
    // All bytes that the writer may fill count as payload. Attachments are placed after them.
    let slot = Slot::claimed(pool, &mut guard, slot, claimed, place.filled())?;
    Some((slot, left))
}

/// A reference to this generation of a slot, if the slot still has it.
fn find_own(pool: &Arc<Pool>, slot: u32, generation: u32) -> Option<(Hold, Arc<Sticky>)> {
    let mut guard = pool.lock()?;
    let word = slots::word(pool.control(), slot)?;
    let info = guard.slots.get(slot)?;
    let place = info.place?;
    if word.published() != Some(generation) || !matches!(info.used, Use::Idle | Use::Referenced(_))
    {
        return None;
    }
    let region = guard.regions.get(place.region)?.clone();
    guard.slots.reference(slot);
    let sticky = guard.sticky.current();
    drop(guard);
    let at = SlotRef {
        number: slot,
        word,
        place,
    };
    Some((own_hold(pool.clone(), &at, region), sticky))
}

/// Whether a slot has the frame of this generation.
fn has_published(pool: &Pool, slot: u32, generation: u32) -> bool {
    let word = slots::word(pool.control(), slot);
    word.is_some_and(|word| word.published() == Some(generation))
}

/// A published slot with a timeout.
#[derive(Debug)]
struct Timeout {
    until: Instant,
    generation: u32,
    /// The buffer's number, for the report.
    index: u32,
}

/// The timeouts of published frames, by slot. Only the control thread has them.
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

/// A process that is connected to this process and reads its buffers: see [`BufferPool::readers`](crate::BufferPool::readers).
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Reader {
    id: u64,
    pid: u32,
    name: String,
}

impl Reader {
    pub(in crate::producer) fn of(consumer: &ConsumerRecord) -> Self {
        Self {
            id: consumer.id(),
            pid: consumer.pid(),
            name: consumer.name().to_owned(),
        }
    }

    /// The number of its connection. Each connection to this process has its own.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// The process ID as this process sees it. 0 if it cannot, for example from another PID namespace.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// The name of the program.
    pub fn name(&self) -> &str {
        &self.name
    }
}

impl fmt::Display for Reader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { id, pid, name } = self;
        write!(f, "reader {id} ({name:?}, process {pid})")
    }
}
