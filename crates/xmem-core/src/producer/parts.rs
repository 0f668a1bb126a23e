// SPDX-License-Identifier: MPL-2.0

//! Imported memory: frames of a pool in memory that other code allocated, such as a camera's driver.

use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, Weak};

use xmem_shm::abi::limits::MAX_PARTS;
use xmem_shm::abi::parts::{self, Origin, PartPlace};
use xmem_shm::bounds::is_range_inside;
use xmem_shm::fault::{self, Point};
use xmem_shm::lock::inside;

use super::slot::PartLease;
use crate::error::{ImportError, PublishError};
use crate::frame::forwarded::HeldPart;
use crate::frame::lease::ReadLease;
use crate::producer::pool::Pool;
use crate::producer::pool::event::Command;
use crate::producer::pool::regions::ForeignMemory;
use crate::producer::pool::retain::{Hook, run_hook};
use crate::region::Imported;

/// Memory that other code allocated and that a pool's frames may use. Consumers are sent its descriptor once.
///
/// Clones are handles to the same memory. When the last one is dropped, consumers are asked to unmap it; frames that are
/// in it keep one.
#[derive(Debug, Clone)]
pub struct ImportedMemory(Arc<Handle>);

struct Handle {
    pool: Weak<Pool>,
    id: u32,
    len: usize,
    /// Runs when no consumer can have it mapped any more.
    released: Mutex<Option<Hook>>,
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handle")
            .field("id", &self.id)
            .field("len", &self.len)
            .finish_non_exhaustive()
    }
}

impl ImportedMemory {
    /// Size in bytes.
    pub fn len(&self) -> usize {
        self.0.len
    }

    /// Whether the pool that it was imported into still exists.
    pub fn is_used(&self) -> bool {
        self.0.pool.strong_count() > 0
    }

    pub(super) fn is_in(&self, pool: &Arc<Pool>) -> bool {
        self.0.pool.as_ptr() == Arc::as_ptr(pool)
    }

    /// Always false: memory without bytes is not imported.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        let released = inside(&mut self.released).take();
        match self.pool.upgrade() {
            Some(pool) => forget_import(&pool, self.id, released),
            // The pool waited for that before it ended.
            None => {
                if let Some(released) = released {
                    run_hook(released);
                }
            }
        }
    }
}

pub(super) fn import(pool: &Arc<Pool>, fd: OwnedFd) -> Result<ImportedMemory, ImportError> {
    let memory = Imported::new(fd, 1)?;
    let len = memory.len();
    add_foreign(pool, ForeignMemory::Imported(Arc::new(memory)), len, None)
}

/// Adds the memory as a region of this pool. `released` runs when no process has it open any more.
pub(super) fn add_foreign(
    pool: &Arc<Pool>,
    memory: ForeignMemory,
    len: usize,
    released: Option<Hook>,
) -> Result<ImportedMemory, ImportError> {
    let mut guard = pool.guard()?;
    if pool.is_closed() {
        return Err(ImportError::Closed);
    }
    let max = pool.settings().max_slots;
    let id = guard.regions.import(memory, max);
    let id = id.ok_or(ImportError::TooMany { max })?;
    guard.show_regions();
    drop(guard);
    fault::point(Point::MemoryImported);
    Ok(ImportedMemory(Arc::new(Handle {
        pool: Arc::downgrade(pool),
        id,
        len,
        released: Mutex::new(released),
    })))
}

fn forget_import(pool: &Pool, id: u32, released: Option<Hook>) {
    let Some(mut guard) = pool.lock() else {
        // Inherited through fork: the memory belongs to the parent.
        std::mem::forget(released);
        return;
    };
    let (memory, released) = guard.regions.forget_import(id, released);
    guard.show_regions();
    // Unmapped without the lock, and before the owner may free it.
    let unmap: Hook = Box::new(move || drop(memory));
    guard.run_later([unmap]);
    guard.forget_retired();
    guard.run_later(released);
    drop(guard);
    fault::point(Point::ImportForgotten);
    pool.commands().send(Command::RegionGone(id));
}

/// The parts of a frame that is not in its slot.
///
/// The slot that such a frame is published with needs [`room`](Self::room) and a byte.
#[derive(Debug, Default, Clone)]
pub struct Parts {
    places: Vec<PartPlace>,
    /// The memory of the parts.
    memory: Vec<ImportedMemory>,
    /// The pools of that memory.
    pools: Vec<Weak<Pool>>,
    /// Slots that are parts.
    slots: Vec<PartLease>,
    /// Frames that are forwarded.
    frames: Vec<ReadLease>,
    /// Some part exceeds its memory.
    outside: bool,
}

impl Parts {
    /// No parts yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a part of imported memory. The tag is for the program that takes the frame.
    pub fn add_imported(&mut self, memory: &ImportedMemory, offset: u64, size: u64, tag: u32) {
        self.outside |= !is_range_inside(offset, size, memory.len() as u64);
        self.places.push(PartPlace {
            region: memory.0.id,
            offset,
            size,
            tag,
            origin: None,
        });
        self.pools.push(memory.0.pool.clone());
        self.memory.push(memory.clone());
    }

    pub(super) fn add_forwarded(&mut self, memory: &ImportedMemory, part: &HeldPart) {
        self.add_imported(memory, part.offset as u64, part.size as u64, part.tag);
        if let Some(place) = self.places.last_mut() {
            place.origin = Some(part.origin);
        }
    }

    /// Adds the parts of another frame behind the present ones.
    pub fn append(&mut self, mut other: Self) {
        self.places.append(&mut other.places);
        self.memory.append(&mut other.memory);
        self.pools.append(&mut other.pools);
        self.slots.append(&mut other.slots);
        self.frames.append(&mut other.frames);
        self.outside |= other.outside;
    }

    /// Gives this tag to all present parts.
    pub fn set_tag(&mut self, tag: u32) {
        for place in &mut self.places {
            place.tag = tag;
        }
    }

    /// Keeps a frame while the new one is in use.
    pub(super) fn keep(&mut self, frame: ReadLease) {
        self.frames.push(frame);
    }

    /// Whether its memory belongs to other code, and not to a pool.
    pub(super) fn is_borrowed(&self) -> bool {
        self.memory.len() > self.origins().count()
    }

    pub(super) fn origins(&self) -> impl Iterator<Item = Origin> {
        self.places.iter().filter_map(|place| place.origin)
    }

    /// Adds a part of a slot, which stays claimed until the frame is released.
    pub fn add_slot(&mut self, lease: &PartLease, offset: u64, size: u64, tag: u32) {
        let place = lease.place();
        self.outside |= !is_range_inside(offset, size, place.payload_len() as u64);
        self.places.push(PartPlace {
            region: place.region,
            offset: place.payload_at().saturating_add(offset),
            size,
            tag,
            origin: None,
        });
        self.pools.push(lease.pool().clone());
        self.slots.push(lease.clone());
    }

    /// Size of the frame in bytes.
    pub fn size(&self) -> u64 {
        parts::total(&self.places).unwrap_or(u64::MAX)
    }

    /// How many parts there are.
    pub fn len(&self) -> usize {
        self.places.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// Bytes of [room](crate::SlotSpec::attachments) that they need.
    pub fn room(&self) -> usize {
        xmem_shm::abi::named::entry_len(parts::NAME, &self.encode())
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        parts::encode(&self.places)
    }

    /// Checks that consumers of a pool can find them.
    pub(super) fn check(&self, pool: &Pool) -> Result<(), PublishError> {
        let of_pool = |other: &Weak<Pool>| std::ptr::eq(other.as_ptr(), pool);
        if !(1..=MAX_PARTS).contains(&self.places.len()) {
            let count = self.places.len();
            return Err(PublishError::PartCount { count });
        }
        if !self.pools.iter().all(of_pool) {
            return Err(PublishError::PartOfOtherPool);
        }
        if self.outside {
            return Err(PublishError::PartOutOfMemory);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Consumer, Delivery, FrameMeta, Producer, ReceiveError, SlotSpec, Wait};

    /// A frame as a producer could publish it that violates the protocol.
    #[test]
    fn a_part_beyond_its_memory_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let pool = dir.path().join("p.sock");
        let producer = Producer::builder(pool.to_str().unwrap());
        let producer = producer.delivery(Delivery::Lossless).build().unwrap();
        let consumer = Consumer::builder(producer.pool()).parts(true);
        let mut consumer = consumer.connect().unwrap();
        let slot = producer.acquire(100).unwrap().into_part();
        let mut parts = Parts::new();
        parts.add_slot(&slot, 1 << 40, 1, 0);
        parts.outside = false;
        let mut lease = producer
            .acquire(SlotSpec::new(1).attachments(parts.room()))
            .unwrap();
        lease.set_parts(parts);
        lease.publish(FrameMeta::default()).unwrap();
        assert!(matches!(
            consumer.receive(None),
            Err(ReceiveError::Corrupt(_))
        ));
        // The skipped frame does not hold the producer up.
        producer.drain(Wait::FOREVER).unwrap();
        let slot = producer.acquire(1).unwrap();
        slot.publish(FrameMeta::new(1)).unwrap();
        assert_eq!(consumer.receive(None).unwrap().info().sequence, 1);
        assert_eq!(consumer.stats().missed, 1);
    }

    #[test]
    fn a_panicking_hook_does_not_unwind_into_the_caller() {
        let (tell, told) = std::sync::mpsc::channel();
        let released = move || {
            tell.send(()).unwrap();
            panic!("on purpose");
        };
        drop(Handle {
            pool: Weak::new(),
            id: 1,
            len: 1,
            released: Mutex::new(Some(Box::new(released))),
        });
        assert_eq!(told.recv(), Ok(()));
    }
}
