// SPDX-License-Identifier: MPL-2.0

//! Publishing the bytes of a memory.

// The memory becomes read-only, which the bindings have no function for.
#![allow(unsafe_code)]

use std::mem;

use xmem_core::{FrameMeta, Parts, Producer, PublishError};

use super::{XmemMemoryRef, access::freeze, slot::Lease};

impl XmemMemoryRef {
    /// Publishes the bytes that this memory covers, where they lie; a second time with other metadata if they were
    /// published before. The memory is read-only from here on. `None`: it lies in no slot that this producer can publish.
    pub(crate) fn publish(
        &self,
        producer: &Producer,
        mut meta: FrameMeta,
    ) -> Option<Result<u64, PublishError>> {
        // The slot's own lock, held so that the memory is not mapped for writing in between. Publishing never waits.
        let mut slot = self.shared().lock();
        let offset = slot.base_offset + self.offset() as u64;
        (meta.offset, meta.size) = (offset, self.size() as u64);
        let lease = &mut slot.lease;
        match lease {
            Lease::Writable(write) if producer.owns(write) => {}
            Lease::Published(frame) if producer.owns(frame) => {
                return Some(producer.republish(frame, &meta));
            }
            _ => return None,
        }
        // Before a consumer sees the frame. If publishing fails, a writer gets a copy.
        let raw: *mut gst::ffi::GstMemory = self.as_ptr().cast_mut().cast();
        // SAFETY: `raw` is a live memory, and its parent lives as long as it does.
        unsafe {
            freeze(raw);
            if !(*raw).parent.is_null() {
                freeze((*raw).parent);
            }
        }
        let Lease::Writable(write) = mem::take(lease) else {
            return None;
        };
        Some(match write.publish(meta) {
            Ok(frame) => {
                let sequence = frame.info().sequence;
                *lease = Lease::Published(frame);
                Ok(sequence)
            }
            Err(failure) => {
                *lease = Lease::Writable(failure.lease);
                Err(failure.error)
            }
        })
    }

    /// Adds the bytes that this memory covers to the pieces of a frame. They are read-only from here on. `None`: they are not
    /// in a slot of this producer that can still become a piece.
    pub(crate) fn add_to(&self, parts: &mut Parts, producer: &Producer) -> Option<()> {
        let mut slot = self.shared().lock();
        let is_its_own = match &slot.lease {
            Lease::Writable(write) => producer.owns(write),
            Lease::Piece(piece) => producer.owns(piece),
            Lease::Published(_) | Lease::Gone => false,
        };
        if !is_its_own {
            return None;
        }
        let raw: *mut gst::ffi::GstMemory = self.as_ptr().cast_mut().cast();
        // SAFETY: a live memory.
        unsafe { freeze(raw) };
        slot.lease = match mem::take(&mut slot.lease) {
            Lease::Writable(write) => Lease::Piece(write.into_part()),
            before => before,
        };
        let Lease::Piece(piece) = &slot.lease else {
            return None;
        };
        let offset = slot.base_offset + self.offset() as u64;
        parts.add_slot(piece, offset, self.size() as u64, 0);
        Some(())
    }
}
