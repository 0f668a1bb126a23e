// SPDX-License-Identifier: MPL-2.0

//! Removes write access from a memory.

// The bindings cannot change these fields of a GstMemory.
#![allow(unsafe_code)]

use std::sync::atomic::{AtomicU32, Ordering};

/// Removes write access from a memory permanently.
///
/// # Safety
///
/// `mem` is a live GstMemory.
pub(crate) unsafe fn freeze(mem: *mut gst::ffi::GstMemory) {
    // SAFETY: both are fields of the live memory. GStreamer changes the lock state atomically, and does not change the flags of
    // a memory in use.
    unsafe {
        AtomicU32::from_ptr(&raw mut (*mem).mini_object.flags).fetch_or(
            gst::ffi::GST_MINI_OBJECT_FLAG_LOCK_READONLY,
            Ordering::Relaxed,
        );
        // A second exclusive lock that is never released. Without it, upstream's own buffer pool over our allocator could reuse
        // the memory for its next frame. The lock fails while libav maps the memory; then `map` refuses write access.
        gst::ffi::gst_mini_object_lock(mem.cast(), gst::ffi::GST_LOCK_FLAG_EXCLUSIVE);
    }
}
