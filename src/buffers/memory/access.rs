// SPDX-License-Identifier: MPL-2.0

//! Write access to a memory, taken away for good.

// The bindings do not change these words of a GstMemory.
#![allow(unsafe_code)]

use std::sync::atomic::{AtomicU32, Ordering};

/// Takes write access away from a memory for good.
///
/// # Safety
///
/// `mem` is a live GstMemory.
pub(crate) unsafe fn freeze(mem: *mut gst::ffi::GstMemory) {
    // SAFETY: both are words inside the live memory. GStreamer changes the lock state atomically, and does not
    // change the flags of a memory that is in use.
    unsafe {
        AtomicU32::from_ptr(&raw mut (*mem).mini_object.flags).fetch_or(
            gst::ffi::GST_MINI_OBJECT_FLAG_LOCK_READONLY,
            Ordering::Relaxed,
        );
        // A second exclusive owner for good: an upstream's own pool that used our allocator must not
        // take the memory back for its next frame. It fails while libav has the memory mapped, and then the
        // refusal in mem_map protects the slot.
        gst::ffi::gst_mini_object_lock(mem.cast(), gst::ffi::GST_LOCK_FLAG_EXCLUSIVE);
    }
}
