// SPDX-License-Identifier: MPL-2.0

//! The slot that several memories share, and publishing it, which removes write access from them.

// A raw pointer is sent between threads, and the bindings cannot change some fields of a GstMemory.
#![allow(unsafe_code)]

use std::{
    mem, ptr,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
};

use gst::glib::ffi::GFALSE;
use xmem_core::{FrameMeta, OwnSlot, PartLease, Parts, Producer, PublishError, ReadLease};

use super::{RawMemory, XmemMemoryRef};
use crate::{buffers::allocator::Tally, lock};

/// The state of a slot.
#[derive(Default)]
pub(super) enum Lease {
    /// A slot of a producer in this process: being written, or published.
    Own(OwnSlot),
    Received(ReadLease),
    /// A part of a published frame in several slots.
    Part(PartLease),
    /// No slot. Also the state under the lock while another lease replaces it.
    #[default]
    Gone,
}

impl Lease {
    /// Whether the slot is writable: consumers cannot see it yet.
    pub(super) fn is_writable(&self) -> bool {
        matches!(self, Self::Own(slot) if slot.sequence().is_none())
    }
}

/// What all memories over one slot, or over one part of a received frame, share.
pub(super) struct Slot {
    /// The first byte of the memories. Offsets of a GstMemory count from here.
    pub(super) base: *mut u8,
    /// The position of `base` in the slot.
    pub(super) base_offset: u64,
    /// The index of the part of a received frame.
    pub(super) index: usize,
    pub(super) tally: Option<Arc<Tally>>,
    /// How often the memories are mapped.
    mappings: AtomicU32,
    /// The last mapping for writing was for reading too.
    is_updated: AtomicBool,
    lease: Mutex<Lease>,
}

// SAFETY: `base` points into memory that `lease` keeps mapped. Only the functions of GstMemory access it, under GStreamer's
// rules for mapped memory, which apply to all threads.
unsafe impl Send for Slot {}
// SAFETY: as above.
unsafe impl Sync for Slot {}

impl Default for Slot {
    fn default() -> Self {
        Self {
            base: ptr::null_mut(),
            base_offset: 0,
            index: 0,
            tally: None,
            mappings: AtomicU32::new(0),
            is_updated: AtomicBool::new(false),
            lease: Mutex::default(),
        }
    }
}

impl Slot {
    pub(super) fn new(lease: Lease, base: *mut u8, base_offset: u64, tally: &Arc<Tally>) -> Self {
        Self {
            base,
            base_offset,
            index: 0,
            tally: Some(tally.clone()),
            mappings: AtomicU32::new(0),
            is_updated: AtomicBool::new(false),
            lease: Mutex::new(lease),
        }
    }

    pub(super) fn note_mapped(&self, flags: gst::ffi::GstMapFlags) {
        self.mappings.fetch_add(1, Ordering::Relaxed);
        if flags & gst::ffi::GST_MAP_WRITE != 0 {
            let reads = flags & gst::ffi::GST_MAP_READ != 0;
            self.is_updated.store(reads, Ordering::Relaxed);
        }
    }

    /// Whether the last mapping for writing was for reading too, as those of decoders that predict from their last frames.
    pub(super) fn is_updated(&self) -> bool {
        self.is_updated.load(Ordering::Relaxed)
    }

    /// Release: pairs with [`is_mapped`](Self::is_mapped).
    pub(super) fn note_unmapped(&self) {
        self.mappings.fetch_sub(1, Ordering::Release);
    }

    pub(super) fn is_mapped(&self) -> bool {
        self.mappings.load(Ordering::Acquire) != 0
    }

    pub(super) fn lease(&self) -> MutexGuard<'_, Lease> {
        lock(&self.lease)
    }
}

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
