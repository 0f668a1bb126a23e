// SPDX-License-Identifier: MPL-2.0

//! Publishing the bytes of a memory, which removes write access from it.

// The bindings cannot change these fields of a GstMemory.
#![allow(unsafe_code)]

use std::{
    mem,
    sync::atomic::{AtomicU32, Ordering},
};

use gst::glib::ffi::GFALSE;
use xmem_core::{FrameMeta, Parts, Producer, PublishError};

use super::{RawMemory, XmemMemoryRef, slot::Lease};

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
            let raw: *mut RawMemory = self.as_ptr().cast_mut();
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
unsafe fn freeze_own(memory: *mut RawMemory) {
    // SAFETY: by the caller.
    unsafe {
        if freeze(memory.cast()) {
            (*memory).locks += 1;
        }
    }
}

/// Removes write access from a memory. Returns whether this locked the memory, which [`thaw`] needs to know.
///
/// # Safety
///
/// `mem` is a live GstMemory.
pub(crate) unsafe fn freeze(mem: *mut gst::ffi::GstMemory) -> bool {
    // SAFETY: both are fields of the live memory. GStreamer changes the lock state atomically, and does not change the flags of
    // a memory in use.
    unsafe {
        AtomicU32::from_ptr(&raw mut (*mem).mini_object.flags).fetch_or(
            gst::ffi::GST_MINI_OBJECT_FLAG_LOCK_READONLY,
            Ordering::Relaxed,
        );
        // A second exclusive lock, which only `thaw` releases. Without it, upstream's own buffer pool over our allocator could reuse
        // the memory for its next frame. The lock fails while libav maps the memory; then `map` refuses write access.
        gst::ffi::gst_mini_object_lock(mem.cast(), gst::ffi::GST_LOCK_FLAG_EXCLUSIVE) != GFALSE
    }
}

/// Undoes [`freeze`], or only clears the read-only flag of the memory.
///
/// # Safety
///
/// `mem` is a live GstMemory. `is_locked` only if its last [`freeze`] returned true and was not undone.
pub(crate) unsafe fn thaw(mem: *mut gst::ffi::GstMemory, is_locked: bool) {
    // SAFETY: as in `freeze`. The lock is the one that it added.
    unsafe {
        if is_locked {
            gst::ffi::gst_mini_object_unlock(mem.cast(), gst::ffi::GST_LOCK_FLAG_EXCLUSIVE);
        }
        AtomicU32::from_ptr(&raw mut (*mem).mini_object.flags).fetch_and(
            !gst::ffi::GST_MINI_OBJECT_FLAG_LOCK_READONLY,
            Ordering::Relaxed,
        );
    }
}
