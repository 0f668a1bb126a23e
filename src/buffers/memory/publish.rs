// SPDX-License-Identifier: MPL-2.0

//! Publishing the bytes of a memory.

// The memory becomes read-only, which the bindings have no function for.
#![allow(unsafe_code)]

use std::mem;

use xmem_core::{FrameMeta, Parts, Producer, PublishError};

use super::{XmemMemoryRef, access::freeze, slot::Lease};

impl XmemMemoryRef {
    /// Publishes the bytes that this memory covers, where they lie, which are as many as `meta` has; a second time with other metadata if they were
    /// published before. The memory is read-only from here on. `None`: it lies in no slot that this producer can publish.
    pub(crate) fn publish(
        &self,
        producer: &Producer,
        meta: &FrameMeta,
    ) -> Option<Result<u64, PublishError>> {
        // The slot's own lock, held so that the memory is not mapped for writing in between. Publishing never waits.
        let mut slot = self.shared().lock();
        let is_writable = slot.lease.is_writable();
        let offset = slot.base_offset + self.offset() as u64;
        let Lease::Own(own) = &mut slot.lease else {
            return None;
        };
        if !producer.owns(own) {
            return None;
        }
        if is_writable {
            // Before a consumer sees the frame. If publishing fails, a writer gets a copy.
            let raw: *mut gst::ffi::GstMemory = self.as_ptr().cast_mut().cast();
            // SAFETY: `raw` is a live memory, and its parent lives as long as it does.
            unsafe {
                freeze(raw);
                if !(*raw).parent.is_null() {
                    freeze((*raw).parent);
                }
            }
        }
        Some(own.publish(offset, meta))
    }

    /// Adds the bytes that this memory covers to the parts of a frame. They are read-only from here on. `None`: they are not
    /// in a slot of this producer that can still become a part.
    pub(crate) fn add_to(&self, parts: &mut Parts, producer: &Producer) -> Option<()> {
        let mut slot = self.shared().lock();
        let is_its_own = match &slot.lease {
            Lease::Own(own) => own.sequence().is_none() && producer.owns(own),
            Lease::Part(part) => producer.owns(part),
            Lease::Received(_) | Lease::Gone => false,
        };
        if !is_its_own {
            return None;
        }
        let raw: *mut gst::ffi::GstMemory = self.as_ptr().cast_mut().cast();
        // SAFETY: a live memory.
        unsafe { freeze(raw) };
        slot.lease = match mem::take(&mut slot.lease) {
            Lease::Own(own) => own.into_part().map_or_else(Lease::Own, Lease::Part),
            before => before,
        };
        let Lease::Part(part) = &slot.lease else {
            return None;
        };
        let offset = slot.base_offset + self.offset() as u64;
        parts.add_slot(part, offset, self.size() as u64, 0);
        Some(())
    }
}
