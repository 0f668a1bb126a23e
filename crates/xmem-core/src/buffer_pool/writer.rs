// SPDX-License-Identifier: MPL-2.0

//! The buffers that this process writes, in its own pool. The pool is created when the first buffer is acquired.

use std::collections::HashMap;
use std::io::ErrorKind;
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use xmem_shm::abi::entry::Entry;
use xmem_shm::abi::entry::FrameInfo;
use xmem_shm::abi::layout::Control;
use xmem_shm::abi::meta::FrameMeta;
use xmem_shm::lock::lock;
use xmem_shm::os::{random, socket};

use super::error::{GetError, WriteAccessError};
use super::number::{MAX_WRITERS, Number, Tag, has_socket, pool_of, pools_with_files};
use super::options::BufferPoolOptions;
use crate::error::CreateError;
use crate::frame::lease::ReadLease;
use crate::producer::{Producer, SlotSpec, WriteLease, remove_stale};
use crate::rendezvous::{lock_path, socket_path};

/// The newest publication in a slot.
pub(super) struct Record {
    pub(super) entry: Entry,
    pub(super) meta: FrameMeta,
    pub(super) tag: Tag,
}

impl Record {
    /// Reads the record of a slot. Another process may have written it. `None`: nothing was ever published there.
    pub(super) fn read(control: &Control, slot: u32) -> Option<Self> {
        // The record may be replaced while it is read. A newer one is acceptable too.
        let (entry, extension) = (0..3).find_map(|_| control.read_record(slot))?;
        let mut meta = extension.describe(&entry).ok()?;
        let tag = Tag::take(&mut meta);
        (entry.slot() == slot).then_some(Self { entry, meta, tag })
    }
}

/// The present use of a slot.
#[derive(Debug, Clone, Copy)]
pub(super) struct Use {
    tag: Tag,
    /// The number of reads for which it will be published. 0 while it is not being written.
    count: u32,
}

/// A slot that was acquired for writing.
#[derive(Debug)]
pub(super) struct Taken {
    pub(super) lease: WriteLease,
    pub(super) number: Number,
    /// The edited publication. `None`: the slot is empty.
    pub(super) edited: Option<(FrameInfo, FrameMeta)>,
}

#[derive(Debug)]
pub(super) struct Writer {
    producer: Producer,
    number: u8,
    uses: Mutex<HashMap<u32, Use>>,
    /// Held while buffers are set aside. Otherwise two threads would both add the buffers that are missing.
    setting_aside: Mutex<()>,
}

impl Writer {
    /// Creates the pool, with a number that no other process has.
    pub(super) fn make(options: &BufferPoolOptions) -> Result<Self, WriteAccessError> {
        remove_killed(options.name());
        let first = random::u64() % u64::from(MAX_WRITERS);
        let mut other = None;
        // Tries each number twice, because a process may have ended meanwhile.
        for step in 0..2 * u64::from(MAX_WRITERS) {
            let number = ((first + step) % u64::from(MAX_WRITERS)) as u8;
            let pool = pool_of(options.name(), number);
            // A process uses this number. An attempt to lock it would take 25 ms.
            if has_socket(&pool) {
                continue;
            }
            match options.producer(&pool) {
                Ok(producer) => {
                    return Ok(Self {
                        producer,
                        number,
                        uses: Mutex::default(),
                        setting_aside: Mutex::default(),
                    });
                }
                Err(CreateError::InUse { .. }) => {}
                // The file belongs to another user, or to another program.
                Err(
                    error @ (CreateError::Foreign { .. }
                    | CreateError::NotALock { .. }
                    | CreateError::NotASocket { .. }),
                ) => other = Some(error),
                Err(error) => return Err(error.into()),
            }
        }
        Err(match other {
            Some(error) => error.into(),
            None => WriteAccessError::Denied {
                reason: format!(
                    "{MAX_WRITERS} processes write buffers of pool {:?}, which is the maximum",
                    options.name()
                ),
            },
        })
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, HashMap<u32, Use>> {
        lock(&self.uses)
    }

    pub(super) fn number(&self) -> u8 {
        self.number
    }

    pub(super) fn producer(&self) -> &Producer {
        &self.producer
    }

    pub(super) fn acquire(&self, spec: &SlotSpec) -> Result<Taken, WriteAccessError> {
        let lease = self.producer.acquire_buffer(spec)?;
        Ok(self.begin(lease))
    }

    /// Begins a new use of an empty slot.
    fn begin(&self, lease: WriteLease) -> Taken {
        let slot = lease.slot();
        let mut uses = self.lock();
        let before = uses.get(&slot).map(|used| used.tag);
        let tag = before.map_or_else(Tag::random, Tag::next);
        uses.insert(slot, Use { tag, count: 1 });
        drop(uses);
        Taken {
            lease,
            number: self.numbered(slot, tag),
            edited: None,
        }
    }

    fn numbered(&self, slot: u32, tag: Tag) -> Number {
        Number {
            writer: self.number,
            slot,
            tag,
        }
    }

    /// Acquires a slot that nothing holds, with its publication.
    pub(super) fn edit(&self, number: Number) -> Result<Taken, WriteAccessError> {
        let (index, slot) = (number.pack(), number.slot);
        let record = Record::read(self.producer.control(), slot);
        let record = record.filter(|record| number.tag.is_of(record.tag));
        let in_use = || WriteAccessError::InUse { index };
        if let Some(Record { entry, meta, tag }) = record {
            let generation = entry.generation();
            if let Some((lease, left)) = self.producer.acquire_index(slot, Some(generation)) {
                let attachments = lease.attachments(entry.attached()).unwrap_or_default();
                let place = self.producer.control().place(slot);
                let info = place.map(|place| entry.info(place.storage, place.device_id));
                let count = left.max(1);
                self.lock().insert(slot, Use { tag, count });
                return Ok(Taken {
                    lease,
                    number: self.numbered(slot, tag),
                    edited: Some((info.unwrap_or_default(), meta.attachments(attachments))),
                });
            }
            if self.producer.has_published(slot, generation) {
                return Err(in_use());
            }
        }
        if number.tag != Tag::ANY {
            return Err(GetError::Empty { index }.into());
        }
        let empty = self.producer.acquire_index(slot, None);
        Ok(self.begin(empty.ok_or_else(in_use)?.0))
    }

    /// Sets the number of reads for a buffer. `false`: this process neither writes nor has published it.
    pub(super) fn set_count(&self, number: Number, count: u32) -> bool {
        if let Some(used) = self.lock().get_mut(&number.slot)
            && used.count > 0
        {
            let is_it = number.tag.is_of(used.tag);
            used.count = if is_it { count } else { used.count };
            return is_it;
        }
        let record = Record::read(self.producer.control(), number.slot);
        record.is_some_and(|record| {
            number.tag.is_of(record.tag) && self.producer.keep_until(number.slot, count)
        })
    }

    /// Ends the writing of a buffer that is about to be published. Returns its count.
    pub(super) fn end(&self, number: Number) -> u32 {
        let mut uses = self.lock();
        let used = uses.get_mut(&number.slot);
        used.map_or(1, |used| std::mem::take(&mut used.count))
    }

    /// A reference to a published buffer. `None`: it is empty, or was used again.
    pub(super) fn read(&self, number: Number) -> Option<(ReadLease, Number)> {
        let record = Record::read(self.producer.control(), number.slot)?;
        let found = self.numbered(number.slot, record.tag);
        let lease = number
            .means(found)
            .then(|| self.producer.read_index(&record.entry, record.meta))?;
        Some((lease?, found))
    }

    /// Counts a read of this process.
    pub(super) fn count_read(&self, lease: &ReadLease) {
        let info = lease.info();
        self.producer.count_read(info.slot, info.generation);
    }

    /// Empties a published buffer after this time, unless its readers took it.
    pub(super) fn give_up_after(&self, number: Number, info: &FrameInfo, timeout: Duration) {
        let (slot, generation) = (info.slot, info.generation);
        self.producer
            .give_up_after(slot, generation, number.pack(), timeout);
    }

    /// Sets buffers aside. If a request cannot succeed, it fails before memory of other sizes is freed for it.
    pub(super) fn set_aside(
        &self,
        spec: &SlotSpec,
        count: usize,
    ) -> Result<Vec<u32>, WriteAccessError> {
        let producer = &self.producer;
        // A forked child has no figures, and cannot acquire buffers.
        let is_own = producer.is_of_this_process();
        let alone = is_own.then(|| lock(&self.setting_aside));
        let before = producer.stats();
        if alone.is_some() && count > producer.room_to_set_aside(spec)? {
            let (most, held, aside) = (before.max_slots, before.slots_held, before.set_aside);
            return Err(WriteAccessError::Denied {
                reason: format!(
                    "{count} buffers were asked for, and there may be {most} at most (max_buffers), of which {held} are in use \
                     and {aside} are set aside (give_up)"
                ),
            });
        }
        let slots = producer.set_aside(spec, count);
        if slots.is_err() && producer.stats().slots > before.slots {
            // Frees the buffers of the failed request.
            producer.collect();
        }
        let number = |slot| self.numbered(slot, Tag::ANY).pack();
        Ok(slots?.into_iter().map(number).collect())
    }

    /// Ends that buffers are set aside. Returns how many were.
    pub(super) fn give_up(&self, indices: &[u32]) -> usize {
        let numbers = indices.iter().filter_map(|index| Number::unpack(*index));
        let own = numbers.filter(|number| number.writer == self.number);
        let slots: Vec<u32> = own.map(|number| number.slot).collect();
        self.producer.give_up(&slots)
    }
}

/// Removes the files of killed processes. Otherwise they would stay until another process gets the same number.
fn remove_killed(name: &str) {
    for pool in pools_with_files(name) {
        remove_if_killed(&pool);
    }
}

/// Removes the files of a pool whose process was killed.
pub(super) fn remove_if_killed(pool: &str) {
    let Ok(path) = socket_path(pool) else { return };
    let is_dead = if path.exists() {
        let answer = socket::connect_to(&path);
        answer.is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused)
    } else {
        // It was killed before it had a socket, or while it ended.
        lock_path(&path).exists()
    };
    if is_dead && let Err(error) = remove_stale(pool) {
        log::debug!("the files of pool {pool:?} stay: {error}");
    }
}
