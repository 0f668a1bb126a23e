// SPDX-License-Identifier: MPL-2.0

//! Publishing the bytes of a memory.

// The bindings cannot make a memory read-only.
#![allow(unsafe_code)]

use std::mem;

use xmem_core::{FrameMeta, Parts, Producer, PublishError};

use super::{XmemMemoryRef, access::freeze, ffi, slot::Lease};

impl XmemMemoryRef {
    /// Publishes the bytes that this memory covers, in place. `meta` states their number, and gets their place. Publishes again
    /// with other metadata if they were published before. Then the memory is read-only. `None`: it is not in a slot that this
    /// producer can publish.
    pub(crate) fn publish(
        &self,
        producer: &Producer,
        meta: &mut FrameMeta,
    ) -> Option<Result<u64, PublishError>> {
        // The lock of the slot prevents that the memory is mapped for writing meanwhile. Publishing never waits.
        let slot = self.shared();
        let mut lease = slot.lease();
        let is_writable = lease.is_writable();
        meta.offset = slot.base_offset + self.offset() as u64;
        let Lease::Own(own) = &mut *lease else {
            return None;
        };
        if !own.is_of(producer) {
            return None;
        }
        if is_writable {
            // Before a consumer can read the frame. If publishing fails, a writer gets a copy.
            let raw: *mut ffi::XmemMemory = self.as_ptr().cast_mut();
            // SAFETY: `raw` is a live memory, and it keeps its parent alive, which is of the same allocator.
            unsafe {
                freeze_own(raw);
                if !(*raw).mem.parent.is_null() {
                    freeze_own((*raw).mem.parent.cast());
                }
            }
        }
        Some(own.publish(meta))
    }

    /// Adds the bytes that this memory covers to the parts of a frame. Then they are read-only. `None`: they are not in a slot
    /// of this producer, or cannot become a part.
    pub(crate) fn add_to(&self, parts: &mut Parts, producer: &Producer) -> Option<()> {
        let slot = self.shared();
        let mut lease = slot.lease();
        let is_its_own = match &*lease {
            Lease::Own(own) => own.sequence().is_none() && own.is_of(producer),
            Lease::Part(part) => part.is_of(producer),
            Lease::Received(_) | Lease::Gone => false,
        };
        if !is_its_own {
            return None;
        }
        // SAFETY: a live memory.
        unsafe { freeze_own(self.as_ptr().cast_mut()) };
        *lease = match mem::take(&mut *lease) {
            Lease::Own(own) => own.into_part().map_or_else(Lease::Own, Lease::Part),
            before => before,
        };
        let Lease::Part(part) = &*lease else {
            return None;
        };
        let offset = slot.base_offset + self.offset() as u64;
        parts.add_slot(part, offset, self.size() as u64, 0);
        Some(())
    }
}

/// # Safety
///
/// `memory` is live, and the caller has the lock of its slot.
unsafe fn freeze_own(memory: *mut ffi::XmemMemory) {
    // SAFETY: by the caller.
    unsafe {
        if freeze(memory.cast()) {
            (*memory).locks += 1;
        }
    }
}
