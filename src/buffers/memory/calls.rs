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
    // SAFETY: `raw` made it with Box. GStreamer has already released the C part.
    drop(unsafe { Box::from_raw(mem.cast::<ffi::XmemMemory>()) });
}

/// # Safety
///
/// `mem` is a live ffi::XmemMemory.
unsafe fn slot_of<'a>(mem: *mut gst::ffi::GstMemory) -> &'a Arc<Slot> {
    // SAFETY: by the caller. The slot is set before other code gets the memory, and never changes.
    unsafe { &(*mem.cast::<ffi::XmemMemory>()).slot }
}

/// `GstAllocator::mem_map`. Refuses write access to published bytes, even if this memory's flags allow it: the frame may have
/// been published through another memory over the same slot.
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

/// `GstAllocator::mem_unmap`. A slot stays mapped while a memory refers to it.
pub(crate) unsafe extern "C" fn unmap(_mem: *mut gst::ffi::GstMemory) {}

/// `GstAllocator::mem_copy`.
///
/// libav keeps its output frames mapped for writing. GStreamer then cannot lock them exclusively a second time, and asks for a
/// copy of each. If the whole of an unpublished slot is to be copied while it is write-locked, this returns a read-only alias
/// of the slot. Otherwise it copies.
pub(crate) unsafe extern "C" fn copy(
    mem: *mut gst::ffi::GstMemory,
    offset: isize,
    size: isize,
) -> *mut gst::ffi::GstMemory {
    // SAFETY: GStreamer calls this with a live memory of our allocator. `raw` gets that allocator and no parent, because a
    // parent would have to be locked exclusively, which just failed.
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
    // SAFETY: by the caller. The copied range is checked against the memory's size. GstMemory's offsets are unsigned numbers in
    // signed types, and may wrap.
    unsafe {
        let size = match size {
            -1 => (*mem).size.saturating_sub(offset as usize),
            size => size as usize,
        };
        let start = (*mem).offset.wrapping_add(offset as usize);
        // The slot does not change while a memory refers to it.
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

/// `GstAllocator::mem_share`: a read-only part of the memory, which holds a reference to it.
pub(crate) unsafe extern "C" fn share(
    mem: *mut gst::ffi::GstMemory,
    offset: isize,
    size: isize,
) -> *mut gst::ffi::GstMemory {
    // SAFETY: GStreamer calls this with a live memory of our allocator. Its parent, if it has one, is of the same allocator.
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

/// `GstAllocator::mem_is_span`: whether the second part directly follows the first. GStreamer has checked that both have the
/// same parent.
pub(crate) unsafe extern "C" fn is_span(
    first: *mut gst::ffi::GstMemory,
    second: *mut gst::ffi::GstMemory,
    offset: *mut usize,
) -> glib::ffi::gboolean {
    // SAFETY: GStreamer calls this with two live memories of our allocator that have a parent.
    unsafe {
        if !offset.is_null() {
            // Relative to the parent's offset, as gst_memory_share on the parent expects it.
            *offset = (*first).offset.wrapping_sub((*(*first).parent).offset);
        }
        let end = (*first).offset.wrapping_add((*first).size);
        (end == (*second).offset).into_glib()
    }
}
