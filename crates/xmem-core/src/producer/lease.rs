// SPDX-License-Identifier: MPL-2.0

//! The rights to write a slot: one that ends when the frame is published, and one that stays.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use thiserror::Error;
use xmem_shm::abi::limits::MAX_NAMED_SIZE;
use xmem_shm::abi::meta::FrameMeta;
use xmem_shm::abi::named::Attachments;
use xmem_shm::bounds::is_range_inside;

use super::devices;
use super::parts::Parts;
use super::pool::retain::{Readers, Retention};
use super::publish::{commit, republish};
use super::slot::{PartLease, Slot};
use crate::error::PublishError;
use crate::frame::lease::ReadLease;

/// The right to write one slot. Ends in [`publish`](Self::publish), or by being dropped, which gives the slot back.
///
/// Its [bytes](Self::as_mut_slice) are as many as were asked for, and hold the remains of the slot's last frame. A forked
/// child must not write to an inherited lease: the slot belongs to its parent.
pub struct WriteLease {
    slot: Slot,
    /// The requested size in bytes.
    len: usize,
    /// Boxed, because most frames have none.
    retention: Option<Box<Retention>>,
}

impl fmt::Debug for WriteLease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WriteLease")
            .field("pool", &self.slot.pool().name())
            .field("slot", &self.slot())
            .field("generation", &self.generation())
            .field("len", &self.len())
            .finish_non_exhaustive()
    }
}

impl WriteLease {
    /// With so many bytes of payload.
    pub(super) fn new(slot: Slot, len: usize) -> Self {
        Self {
            len: len.min(slot.at().place.len),
            slot,
            retention: None,
        }
    }

    pub(super) fn of_slot(&self) -> &Slot {
        &self.slot
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
            self.slot.at().place.len
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
        self.slot.at().place.device.is_some()
    }

    /// Bytes that a payload may have, in host or device memory.
    pub(crate) fn payload_len(&self) -> usize {
        self.slot.at().place.payload_len()
    }

    /// The attachments of the frame that is still in the slot. `at`: their place, from an entry.
    pub(crate) fn attachments(&self, (at, len): (u64, u64)) -> Option<Attachments> {
        let place = self.slot.at().place;
        if !is_range_inside(at, len, place.len as u64) || len > MAX_NAMED_SIZE as u64 {
            return None;
        }
        // Copied first: if consumers can write the memory, one could change the bytes while they are parsed.
        let bytes = self.slot.bytes(at as usize, len as usize).to_vec();
        Attachments::decode(&bytes)
    }

    /// The slot's number.
    pub fn slot(&self) -> u32 {
        self.slot.at().number
    }

    /// How often the slot was reused, this time included.
    pub fn generation(&self) -> u32 {
        self.slot.at().word.generation()
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
        devices::set_ready(&self.slot, true);
        self.slot.into_part()
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
        match self.note_ready() {
            Ok(()) => self.publish_as_is(meta),
            Err(error) => Err(PublishFailure { lease: self, error }),
        }
    }

    /// As [`publish`](Self::publish), without the producer's own reference, which most producers drop at once: only the history keeps
    /// the frame for consumers. Returns its sequence.
    ///
    /// # Errors
    ///
    /// As [`publish`](Self::publish).
    pub fn publish_unheld(mut self, meta: &FrameMeta) -> Result<u64, PublishFailure> {
        let mut meta = Cow::Borrowed(meta);
        if let Some(size) = self.parts_size() {
            let meta = meta.to_mut();
            (meta.offset, meta.size) = (0, size);
        }
        let published = self.note_ready().and_then(|()| {
            let (_guard, info) = commit(&self.slot, &meta, &mut self.retention, 0)?;
            Ok(info.sequence)
        });
        match published {
            Ok(sequence) => {
                self.slot.disarm();
                Ok(sequence)
            }
            Err(error) => Err(PublishFailure { lease: self, error }),
        }
    }

    /// Tells consumers whether they wait for a device, if the slot is on one.
    fn note_ready(&self) -> Result<(), PublishError> {
        if self.is_on_device() {
            devices::update_ready(&self.slot)?;
        }
        Ok(())
    }

    /// The size of the frame, if it is in parts.
    fn parts_size(&self) -> Option<u64> {
        let parts = self.retention.as_ref()?.parts::<Parts>();
        parts.map(Parts::size)
    }

    pub(in crate::producer) fn publish_as_is(
        mut self,
        mut meta: FrameMeta,
    ) -> Result<ReadLease, PublishFailure> {
        let in_parts = self.parts_size();
        if let Some(size) = in_parts {
            (meta.offset, meta.size) = (0, size);
        }
        let published = commit(&self.slot, &meta, &mut self.retention, 1);
        let published = published.map(|(guard, info)| (info, guard.sticky.current()));
        let (info, sticky) = match published {
            Ok(published) => published,
            Err(error) => return Err(PublishFailure { lease: self, error }),
        };
        let hold = self.slot.into_hold();
        Ok(ReadLease::of_own(
            hold,
            info,
            meta,
            sticky,
            in_parts.is_some(),
        ))
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

/// A slot that is written, then published, and stays in place. For memory that other code holds before and after its frame is
/// published. Dropping it gives the slot back. The frame stays for consumers, as with a [`ReadLease`](crate::ReadLease).
///
/// It does not restrict access to the bytes: the caller must ensure that nothing writes them after the frame is published.
pub struct OwnSlot {
    slot: Slot,
    /// The number of the first frame that was published in it.
    sequence: Option<u64>,
}

impl fmt::Debug for OwnSlot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OwnSlot")
            .field("pool", &self.pool())
            .field("slot", &self.slot())
            .field("generation", &self.generation())
            .field("sequence", &self.sequence)
            .finish_non_exhaustive()
    }
}

impl From<WriteLease> for OwnSlot {
    /// Hooks of the lease are dropped.
    fn from(lease: WriteLease) -> Self {
        Self {
            slot: lease.slot,
            sequence: None,
        }
    }
}

impl OwnSlot {
    pub(super) fn of_slot(&self) -> &Slot {
        &self.slot
    }

    /// The slot's first byte. Valid for reads and writes of the slot's bytes while this lives.
    pub fn as_ptr(&self) -> *mut u8 {
        self.slot.as_ptr()
    }

    /// The name of its pool.
    pub fn pool(&self) -> &str {
        self.slot.pool().name()
    }

    /// The slot's number.
    pub fn slot(&self) -> u32 {
        self.slot.at().number
    }

    /// How often the slot was reused, this time included.
    pub fn generation(&self) -> u32 {
        self.slot.at().word.generation()
    }

    /// The number of the first frame that was published in it. `None` before.
    pub fn sequence(&self) -> Option<u64> {
        self.sequence
    }

    /// Makes the frame visible to consumers. From here on the slot must not be written. A frame that is published already is
    /// published once more, with other metadata. Returns the frame's number. Never waits.
    ///
    /// # Errors
    ///
    /// See [`PublishError`]. The slot is unchanged after an error.
    pub fn publish(&mut self, meta: &FrameMeta) -> Result<u64, PublishError> {
        if self.sequence.is_some() {
            let slot = &self.slot;
            return republish(slot.pool(), slot.at(), slot.region(), meta);
        }
        if self.slot.at().place.device.is_some() {
            devices::update_ready(&self.slot)?;
        }
        let (guard, info) = commit(&self.slot, meta, &mut None, 1)?;
        drop(guard);
        self.slot.set_published();
        self.sequence = Some(info.sequence);
        Ok(info.sequence)
    }

    /// Turns a slot that is not published into a part of frames, as [`WriteLease::into_part`].
    ///
    /// # Errors
    ///
    /// The slot itself, if it is published.
    pub fn into_part(self) -> Result<PartLease, Self> {
        if self.slot.is_published() {
            return Err(self);
        }
        devices::set_ready(&self.slot, true);
        Ok(self.slot.into_part())
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
