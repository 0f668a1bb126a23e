// SPDX-License-Identifier: MPL-2.0

//! Write access to a memory, taken away and given back.

// Words inside of a GstMemory that the bindings do not change.
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
        // refusal in mem_map is what protects the slot.
        gst::ffi::gst_mini_object_lock(mem.cast(), gst::ffi::GST_LOCK_FLAG_EXCLUSIVE);
    }
}

/// Gives write access back that [`freeze`] or the memory's own read-only flag took.
///
/// # Safety
///
/// `mem` is a GstMemory without references.
pub(crate) unsafe fn thaw(mem: *mut gst::ffi::GstMemory) {
    // SAFETY: by the caller; these words have no other user.
    unsafe {
        let object = &mut (*mem).mini_object;
        object.flags &=
            !(gst::ffi::GST_MINI_OBJECT_FLAG_LOCK_READONLY | gst::ffi::GST_MEMORY_FLAG_READONLY);
        // A memory without users has no lock but that of `freeze`.
        object.lockstate = 0;
    }
}
