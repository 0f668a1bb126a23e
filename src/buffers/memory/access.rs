// SPDX-License-Identifier: MPL-2.0

//! Removes write access from a memory, and restores it.

// The bindings cannot change these fields of a GstMemory.
#![allow(unsafe_code)]

use std::sync::atomic::{AtomicU32, Ordering};

use gst::glib::ffi::GFALSE;

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
