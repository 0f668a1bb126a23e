// SPDX-License-Identifier: MPL-2.0

//! The right to write a slot.

use std::fmt;
use std::sync::Arc;

use thiserror::Error;
use xmem_shm::abi::limits::MAX_NAMED_SIZE;
use xmem_shm::abi::meta::FrameMeta;
use xmem_shm::abi::named::Attachments;
use xmem_shm::bounds::is_range_inside;

use super::devices;
use super::import::Parts;
use super::own_hold::own_hold;
use super::owned::Owned;
use super::part_lease::PartLease;
use super::publish::commit;
use crate::error::PublishError;
use crate::producer::pool::Pool;
use crate::producer::pool::retain::{Readers, Retention};
use crate::producer::pool::slots::Claimed;

use crate::frame::lease::ReadLease;

/// The right to write one slot. Ends in [`publish`](Self::publish), or by being dropped, which gives the slot back.
///
/// Its [bytes](Self::as_mut_slice) are as many as were asked for, and hold the remains of the slot's last frame. A forked
/// child must not write to an inherited lease: the slot belongs to its parent.
pub struct WriteLease {
    slot: Owned,
    /// The requested size in bytes.
    len: usize,
    /// Boxed, because most frames have none.
    retention: Option<Box<Retention>>,
}

impl fmt::Debug for WriteLease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WriteLease")
            .field("pool", &self.pool().name())
            .field("slot", &self.slot())
            .field("generation", &self.generation())
            .field("len", &self.len())
            .finish_non_exhaustive()
    }
}

impl WriteLease {
    /// With so many bytes of payload.
    pub(in crate::producer) fn new(pool: Arc<Pool>, claimed: Claimed, len: usize) -> Self {
        Self {
            len: len.min(claimed.place.len),
            slot: Owned::new(pool, claimed),
            retention: None,
        }
    }

    pub(in crate::producer) fn pool(&self) -> &Arc<Pool> {
        self.slot.pool()
    }

    pub(super) fn into_slot(self) -> Owned {
        self.slot
    }

    /// The slot's first byte. Valid for reads and writes of [`capacity`](Self::capacity) bytes while the lease lives.
    pub fn as_ptr(&self) -> *mut u8 {
        self.slot.as_ptr()
    }

    /// The requested size of the payload in bytes; 0 if the slot is on a device.
    pub fn len(&self) -> usize {
        if self.is_on_device() { 0 } else { self.len }
    }

    /// The size of the whole slot in bytes; 0 if it is on a device. A payload of this size leaves no room for attachments.
    pub fn capacity(&self) -> usize {
        if self.is_on_device() {
            0
        } else {
            self.claimed().place.len
        }
    }

    /// Whether there are no bytes to write in host memory. This is so for a slot on a device.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The bytes of the payload.
    pub fn as_slice(&self) -> &[u8] {
        self.slot.bytes(0, self.len())
    }

    /// The bytes of the payload, to be written.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        let len = self.len();
        self.slot.bytes_mut(len)
    }

    /// Whether the slot is on a CUDA device.
    pub fn is_on_device(&self) -> bool {
        self.claimed().place.device.is_some()
    }

    /// Bytes that a payload may have, in host or device memory.
    pub(crate) fn payload_len(&self) -> usize {
        self.claimed().place.payload_len()
    }

    /// The attachments of the frame that is still in the slot. `at`: their place, from an entry.
    pub(crate) fn attachments(&self, (at, len): (u64, u64)) -> Option<Attachments> {
        let place = self.claimed().place;
        if !is_range_inside(at, len, place.len as u64) || len > MAX_NAMED_SIZE as u64 {
            return None;
        }
        // Copied first: if consumers can write the memory, one could change the bytes while they are parsed.
        let bytes = self.slot.bytes(at as usize, len as usize).to_vec();
        Attachments::decode(&bytes)
    }

    /// The slot's number.
    pub fn slot(&self) -> u32 {
        self.claimed().slot
    }

    /// How often the slot was reused, this time included.
    pub fn generation(&self) -> u32 {
        self.claimed().word.generation()
    }

    /// Sets a function that runs in this process when the last reference to the frame is gone: those of this process, the
    /// history's, and every consumer's, also a killed one's. It runs once, on the thread that notices it, at the latest
    /// when the pool itself is gone. It is dropped without a call if the frame is not published.
    pub fn set_release_hook(&mut self, hook: impl FnOnce() + Send + 'static) {
        self.retention().set_hook(Box::new(hook));
    }

    /// Keeps the frame until this many consumers took and released it. A consumer that dies after it took the frame
    /// counts as having released it; one that dies before does not count. In a pool whose consumers follow the stream, a
    /// consumer that skips the frame does not count either, so the frame is kept for it.
    pub fn keep_until(&mut self, consumers: u32) {
        self.retention().set_readers(Readers::count(consumers));
    }

    /// Keeps the frame until each of these consumers took and released it, or is gone.
    pub(crate) fn keep_for(&mut self, consumers: Arc<[u64]>) {
        self.retention()
            .set_readers(Some(Readers::Named(consumers)));
    }

    /// Publishes these parts as the frame, instead of the slot. The size of the frame is the sum of their sizes; the size in
    /// the metadata is ignored.
    pub fn set_parts(&mut self, parts: Parts) {
        let is_borrowed = parts.is_borrowed();
        self.retention().set_parts(parts, is_borrowed);
    }

    /// Turns the slot into a part of frames. It is not written any more. If a device writes it, that work must have
    /// completed.
    pub fn into_part(self) -> PartLease {
        self.slot.into_part()
    }

    pub(in crate::producer) fn claimed(&self) -> &Claimed {
        self.slot.claimed()
    }

    fn retention(&mut self) -> &mut Retention {
        self.retention.get_or_insert_default()
    }

    /// Makes the frame visible to consumers. From here on it must not be written. All work of devices on it has ended; if
    /// it has not, use `publish_on`. If a device still works on the frame published in the slot before, consumers wait for it.
    ///
    /// The returned lease is the producer's own reference: while it lives, the slot is not reused.
    ///
    /// # Errors
    ///
    /// [`PublishFailure`] has the reason, and gives the lease back.
    pub fn publish(self, meta: FrameMeta) -> Result<ReadLease, PublishFailure> {
        if self.is_on_device()
            && let Err(error) = devices::update_ready(self.pool(), self.claimed())
        {
            return Err(PublishFailure { lease: self, error });
        }
        self.publish_as_is(meta)
    }

    pub(in crate::producer) fn publish_as_is(
        mut self,
        mut meta: FrameMeta,
    ) -> Result<ReadLease, PublishFailure> {
        let retention = self.retention.as_ref();
        let in_parts = match retention.and_then(|kept| kept.parts::<Parts>()) {
            Some(parts) => {
                (meta.offset, meta.size) = (0, parts.size());
                true
            }
            None => false,
        };
        let (pool, claimed) = (self.slot.pool(), self.slot.claimed());
        let published = commit(pool, claimed, &meta, &mut self.retention);
        let published = published.map(|(guard, info)| (info, guard.sticky.current()));
        let (info, sticky) = match published {
            Ok(published) => published,
            Err(error) => return Err(PublishFailure { lease: self, error }),
        };
        let hold = own_hold(self.pool().clone(), self.claimed());
        self.slot.disarm();
        Ok(ReadLease::of_own(hold, info, meta, sticky, in_parts))
    }
}

/// A frame that was not published. Publish the lease again, or drop it to give the slot back.
#[derive(Debug, Error)]
#[error("{error}")]
#[non_exhaustive]
pub struct PublishFailure {
    /// The right to write the slot.
    pub lease: WriteLease,
    /// The reason.
    #[source]
    pub error: PublishError,
}

impl From<PublishFailure> for PublishError {
    fn from(failure: PublishFailure) -> Self {
        failure.error
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_convert_to_any_error() {
        fn is_any<T: std::error::Error + Send + Sync + 'static>() {}
        is_any::<PublishFailure>();
    }
}
