// SPDX-License-Identifier: MPL-2.0

//! Memory that somebody else made, such as a camera's driver, in the frames of a pool.

use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, Weak};

use xmem_shm::abi::limits::MAX_PARTS;
use xmem_shm::abi::parts::{self, Origin, PartPlace};
use xmem_shm::bounds::lie_inside;
use xmem_shm::fault::{self, Point};
use xmem_shm::lock::inside;

use super::commands::Command;
use super::piece_lease::PieceLease;
use super::pool::{Pool, run_hook};
use super::regions::Taken;
use super::retired::Released;
use super::state::Effects;
use crate::error::ImportError;
use crate::frame::lease::{Piece, ReadLease};
use crate::region::Imported;

/// Memory of somebody else that a pool's frames may lie in. Consumers are sent its descriptor once.
///
/// Clones are handles to the same memory. When the last one is gone, consumers are told to let go of it; frames that lie in
/// it keep one.
#[derive(Debug, Clone)]
pub struct ImportedMemory(Arc<Handle>);

struct Handle {
    pool: Weak<Pool>,
    id: u32,
    len: usize,
    /// Runs when nobody can have it mapped any more.
    released: Mutex<Option<Released>>,
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

    /// Whether the pool is still there that it was imported into.
    pub fn is_used(&self) -> bool {
        self.0.pool.strong_count() > 0
    }

    pub(super) fn is_of(&self, pool: &Arc<Pool>) -> bool {
        self.0.pool.as_ptr() == Arc::as_ptr(pool)
    }

    /// Never: memory of no bytes is not imported.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        let released = inside(&mut self.released).take();
        match self.pool.upgrade() {
            Some(pool) if pool.process.is_current() => pool.forget_import(self.id, released),
            // Inherited through fork: it is the parent's.
            Some(_) => std::mem::forget(released),
            // The pool waited for it before it ended.
            None => {
                if let Some(released) = released {
                    run_hook(released);
                }
            }
        }
    }
}

impl Pool {
    pub(super) fn import(self: &Arc<Self>, fd: OwnedFd) -> Result<ImportedMemory, ImportError> {
        if !self.process.is_current() {
            return Err(ImportError::Forked);
        }
        let memory = Imported::new(fd, 1)?;
        let len = memory.len();
        self.take_in(Taken::Imported(Arc::new(memory)), len, None)
    }

    /// Makes memory of others a region of this pool. `released` runs when nobody has it open any more.
    pub(super) fn take_in(
        self: &Arc<Self>,
        memory: Taken,
        len: usize,
        released: Option<Released>,
    ) -> Result<ImportedMemory, ImportError> {
        if !self.process.is_current() {
            return Err(ImportError::Forked);
        }
        let max = self.settings.max_slots;
        let mut state = self.lock();
        if state.closed {
            return Err(ImportError::Closed);
        }
        let id = state
            .regions
            .import(memory, max)
            .ok_or(ImportError::TooMany { max })?;
        state.show_regions(&self.control);
        drop(state);
        fault::point(Point::MemoryImported);
        let pool = Arc::downgrade(self);
        Ok(ImportedMemory(Arc::new(Handle {
            pool,
            id,
            len,
            released: Mutex::new(released),
        })))
    }

    fn forget_import(&self, id: u32, released: Option<Released>) {
        let mut effects = Effects::default();
        let mut state = self.lock();
        let (memory, released) = state.regions.forget_import(id, released);
        state.show_regions(&self.control);
        state.forget_retired(&mut effects);
        drop(state);
        // Unmapped without the lock.
        drop(memory);
        effects.hooks.extend(released);
        fault::point(Point::ImportForgotten);
        self.run(effects, None);
        self.commands.send(Command::RegionGone(id));
    }
}

/// The pieces that a frame lies in, if it does not lie in its slot.
///
/// The slot that such a frame is published with needs [`room`](Self::room) and a byte.
#[derive(Debug, Default, Clone)]
pub struct Parts {
    places: Vec<PartPlace>,
    /// What they lie in.
    memory: Vec<ImportedMemory>,
    /// The pools that these are of.
    pools: Vec<Weak<Pool>>,
    /// Frames that are passed on.
    frames: Vec<ReadLease>,
    /// Some piece reaches beyond what it lies in.
    outside: bool,
}

impl Parts {
    /// No pieces yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// A piece of imported memory. The tag is for whoever takes the frame.
    pub fn add_imported(&mut self, memory: &ImportedMemory, offset: u64, size: u64, tag: u32) {
        self.outside |= !lie_inside(offset, size, memory.len() as u64);
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

    pub(super) fn add_forwarded(&mut self, memory: &ImportedMemory, piece: &Piece) {
        self.add_imported(memory, piece.offset as u64, piece.size as u64, piece.tag);
        if let Some(place) = self.places.last_mut() {
            place.origin = Some(piece.origin);
        }
    }

    /// The pieces of another frame too, behind those that are there.
    pub fn append(&mut self, mut other: Self) {
        self.places.append(&mut other.places);
        self.memory.append(&mut other.memory);
        self.pools.append(&mut other.pools);
        self.frames.append(&mut other.frames);
        self.outside |= other.outside;
    }

    /// Gives all pieces that are there this tag.
    pub fn set_tag(&mut self, tag: u32) {
        for place in &mut self.places {
            place.tag = tag;
        }
    }

    /// Keeps a frame for as long as the new one is in use.
    pub(super) fn keep(&mut self, frame: ReadLease) {
        self.frames.push(frame);
    }

    pub(super) fn origins(&self) -> impl Iterator<Item = Origin> {
        self.places.iter().filter_map(|place| place.origin)
    }

    /// A piece of a slot that stays claimed: whoever publishes the frame keeps the lease until the frame is released
    /// ([`WriteLease::set_release_hook`](crate::WriteLease::set_release_hook)).
    pub fn add_slot(&mut self, lease: &PieceLease, offset: u64, size: u64, tag: u32) {
        let place = lease.claimed().place;
        self.outside |= !lie_inside(offset, size, place.payload_len() as u64);
        self.places.push(PartPlace {
            region: place.region,
            offset: place.payload_at().saturating_add(offset),
            size,
            tag,
            origin: None,
        });
        self.pools.push(lease.pool().clone());
    }

    /// Size of the frame in bytes.
    pub fn size(&self) -> u64 {
        parts::total(&self.places).unwrap_or(u64::MAX)
    }

    /// How many pieces there are.
    pub fn len(&self) -> usize {
        self.places.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// Bytes of [room](crate::Producer::acquire_with_room) that they need.
    pub fn room(&self) -> usize {
        xmem_shm::abi::named::entry_len(parts::NAME, &self.encode())
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        parts::encode(&self.places)
    }

    /// Whether a pool may publish them, and its consumers will find them.
    pub(super) fn are_of(&self, pool: &Arc<Pool>) -> bool {
        let of_pool = |other: &Weak<Pool>| other.as_ptr() == Arc::as_ptr(pool);
        (1..=MAX_PARTS).contains(&self.places.len())
            && self.pools.iter().all(of_pool)
            && !self.outside
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Canceller, Consumer, Delivery, FrameMeta, Producer, ReceiveError};

    /// What a producer of another make could say.
    #[test]
    fn a_consumer_takes_no_piece_that_reaches_beyond_its_memory() {
        let dir = tempfile::tempdir().unwrap();
        let pool = dir.path().join("p.sock");
        let producer = Producer::builder(pool.to_str().unwrap());
        let producer = producer.delivery(Delivery::Lossless).build().unwrap();
        let consumer = Consumer::builder(producer.pool()).parts(true);
        let mut consumer = consumer.connect().unwrap();
        let slot = producer.acquire(100).unwrap().into_piece();
        let mut parts = Parts::new();
        parts.add_slot(&slot, 1 << 40, 1, 0);
        parts.outside = false;
        let mut lease = producer.acquire_with_room(1, parts.room()).unwrap();
        lease.set_parts(parts);
        lease.publish(FrameMeta::default()).unwrap();
        assert!(matches!(
            consumer.receive(None),
            Err(ReceiveError::Corrupt(_))
        ));
        // Nobody gets stuck over it.
        producer.drain(None, &Canceller::new()).unwrap();
        let slot = producer.acquire(1).unwrap();
        slot.publish(FrameMeta::new(1)).unwrap();
        assert_eq!(consumer.receive(None).unwrap().meta().sequence, 1);
        assert_eq!(consumer.stats().missed, 1);
    }

    #[test]
    fn a_hook_that_panics_harms_nobody_who_lets_go() {
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
