// SPDX-License-Identifier: MPL-2.0

//! The virtual functions of a memory.

// GStreamer calls these with raw memories.
#![allow(unsafe_code)]

use std::{
    mem, ptr,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
};

use gst::{glib, glib::translate::*};

use super::{
    ffi,
    make::{Shape, raw},
    slot::{Contents, Lease, Slot},
};

/// `GstAllocatorClass::free`.
///
/// # Safety
///
/// `mem` is an ffi::XmemMemory without references.
pub(crate) unsafe fn free(mem: *mut gst::ffi::GstMemory) {
    // SAFETY: made by Box in `raw`; GStreamer has finished with the C part.
    drop(unsafe { Box::from_raw(mem.cast::<ffi::XmemMemory>()) });
}

/// # Safety
///
/// `mem` is a live ffi::XmemMemory.
unsafe fn slot_of<'a>(mem: *mut gst::ffi::GstMemory) -> &'a Arc<Slot> {
    // SAFETY: by the caller; the slot is set before any other code sees the memory, and never changed.
    unsafe { &(*mem.cast::<ffi::XmemMemory>()).slot }
}

/// `GstAllocator::mem_map`. No write access to published bytes, whatever the flags of this memory are: the frame
/// may have been published through another memory over the same slot.
pub(crate) unsafe extern "C" fn map(
    mem: *mut gst::ffi::GstMemory,
    _maxsize: usize,
    flags: gst::ffi::GstMapFlags,
) -> glib::ffi::gpointer {
    // SAFETY: GStreamer calls this with a live memory of our allocator.
    let slot = unsafe { slot_of(mem) };
    let slot = slot.lock();
    let allowed = match &slot.lease {
        lease if lease.is_writable() => true,
        Lease::Own(_) | Lease::Received(_) | Lease::Part(_) => flags & gst::ffi::GST_MAP_WRITE == 0,
        Lease::Gone => false,
    };
    if allowed {
        slot.base.cast()
    } else {
        ptr::null_mut()
    }
}

/// `GstAllocator::mem_unmap`. The slot stays mapped as long as it is out.
pub(crate) unsafe extern "C" fn unmap(_mem: *mut gst::ffi::GstMemory) {}

/// `GstAllocator::mem_copy`.
///
/// libav keeps the frames that it hands out mapped for writing, so that GStreamer, which then can take no second
/// exclusive reference, asks for a copy of each of them. Such a copy of a whole slot, asked for while it is
/// write-locked and before it is published, is a read-only alias of the slot. Any other copy is a real one.
pub(crate) unsafe extern "C" fn copy(
    mem: *mut gst::ffi::GstMemory,
    offset: isize,
    size: isize,
) -> *mut gst::ffi::GstMemory {
    // SAFETY: GStreamer calls this with a live memory of our allocator; `raw` gets that allocator and no parent (a parent would
    // have to be locked exclusively, and that just failed).
    unsafe {
        let slot = slot_of(mem);
        let whole = offset == 0 && (size == -1 || size as usize == (*mem).size);
        let lockstate = AtomicU32::from_ptr((&raw mut (*mem).mini_object.lockstate).cast());
        let write_locked = lockstate.load(Ordering::Relaxed) & gst::ffi::GST_LOCK_FLAG_WRITE != 0;
        if whole && write_locked && slot.lock().lease.is_writable() {
            let shape = Shape {
                flags: gst::ffi::GST_MEMORY_FLAG_READONLY,
                maxsize: (*mem).maxsize,
                align: (*mem).align,
                offset: (*mem).offset,
                size: (*mem).size,
            };
            return raw((*mem).allocator, slot.clone(), ptr::null_mut(), shape);
        }
        real_copy(mem, slot, offset, size)
    }
}

/// # Safety
///
/// `mem` is a live memory over `slot`.
unsafe fn real_copy(
    mem: *mut gst::ffi::GstMemory,
    slot: &Slot,
    offset: isize,
    size: isize,
) -> *mut gst::ffi::GstMemory {
    // SAFETY: by the caller. The copied range is checked against the memory's size; GstMemory's offsets are
    // unsigned numbers in signed types that may wrap.
    unsafe {
        let size = match size {
            -1 => (*mem).size.saturating_sub(offset as usize),
            size => size as usize,
        };
        let start = (*mem).offset.wrapping_add(offset as usize);
        // The slot stays as it is while there is a memory over it.
        let (base, tally) = match &*slot.lock() {
            Contents {
                lease: Lease::Gone, ..
            } => return ptr::null_mut(),
            contents => (contents.base, contents.tally.clone()),
        };
        if start
            .checked_add(size)
            .is_none_or(|end| end > (*mem).maxsize)
        {
            return ptr::null_mut();
        }
        let copy = gst::ffi::gst_allocator_alloc(ptr::null_mut(), size, ptr::null_mut());
        let mut info = mem::MaybeUninit::<gst::ffi::GstMapInfo>::uninit();
        if copy.is_null() {
            return copy;
        }
        if gst::ffi::gst_memory_map(copy, info.as_mut_ptr(), gst::ffi::GST_MAP_WRITE)
            == glib::ffi::GFALSE
        {
            gst::ffi::gst_mini_object_unref(copy.cast());
            return ptr::null_mut();
        }
        ptr::copy_nonoverlapping(base.add(start), (*info.as_ptr()).data, size);
        gst::ffi::gst_memory_unmap(copy, info.as_mut_ptr());
        tally.inspect(|tally| tally.note_copy());
        gst::debug!(
            gst::CAT_PERFORMANCE,
            "Copied {size} bytes out of a slot for an element that writes to them"
        );
        copy
    }
}

/// `GstAllocator::mem_share`: a read-only part of the memory, which refers to the whole.
pub(crate) unsafe extern "C" fn share(
    mem: *mut gst::ffi::GstMemory,
    offset: isize,
    size: isize,
) -> *mut gst::ffi::GstMemory {
    // SAFETY: GStreamer calls this with a live memory of our allocator, whose parent, if any, is one too.
    unsafe {
        let parent = if (*mem).parent.is_null() {
            mem
        } else {
            (*mem).parent
        };
        let start = (*mem).offset.wrapping_add(offset as usize);
        let size = match size {
            -1 => (*mem).size.wrapping_sub(offset as usize),
            size => size as usize,
        };
        if start
            .checked_add(size)
            .is_none_or(|end| end > (*mem).maxsize)
        {
            return ptr::null_mut();
        }
        let shape = Shape {
            flags: (*mem).mini_object.flags | gst::ffi::GST_MINI_OBJECT_FLAG_LOCK_READONLY,
            maxsize: (*mem).maxsize,
            align: (*mem).align,
            offset: start,
            size,
        };
        raw((*mem).allocator, slot_of(mem).clone(), parent, shape)
    }
}

/// `GstAllocator::mem_is_span`: whether the second part follows the first one. GStreamer has checked that both have
/// the same parent.
pub(crate) unsafe extern "C" fn is_span(
    first: *mut gst::ffi::GstMemory,
    second: *mut gst::ffi::GstMemory,
    offset: *mut usize,
) -> glib::ffi::gboolean {
    // SAFETY: GStreamer calls this with two live memories of our allocator that have a parent.
    unsafe {
        if !offset.is_null() {
            // Counted from the parent's own offset, as gst_memory_share on the parent wants it.
            *offset = (*first).offset.wrapping_sub((*(*first).parent).offset);
        }
        let end = (*first).offset.wrapping_add((*first).size);
        (end == (*second).offset).into_glib()
    }
}
