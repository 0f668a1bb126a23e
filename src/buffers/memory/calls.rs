// SPDX-License-Identifier: MPL-2.0

//! The virtual functions of a memory.

// GStreamer calls these with raw memories.
#![allow(unsafe_code)]

use std::{mem, ptr};

use gst::{glib, glib::translate::*};

use super::{
    RawMemory, SlotOf,
    make::{Shape, raw},
    slot::Slot,
};

/// `GstAllocatorClass::free`.
///
/// # Safety
///
/// `mem` is an RawMemory without references.
pub(crate) unsafe fn free(mem: *mut gst::ffi::GstMemory) {
    // SAFETY: `raw` made it with Box. GStreamer has already released the C part.
    drop(unsafe { Box::from_raw(mem.cast::<RawMemory>()) });
}

/// The slot of a memory, and the memory that owns the slot.
///
/// # Safety
///
/// `mem` is a live RawMemory.
pub(super) unsafe fn slot_of<'a>(
    mem: *mut gst::ffi::GstMemory,
) -> (&'a Slot, *mut gst::ffi::GstMemory) {
    // SAFETY: by the caller. The slot does not change while other code has the memory, which keeps its owner alive.
    unsafe {
        match &(*mem.cast::<RawMemory>()).slot {
            SlotOf::Own(slot) => (slot, mem),
            SlotOf::Other(owner) => slot_of(owner.as_mut_ptr()),
        }
    }
}

/// `GstAllocator::mem_map`. Refuses write access to published bytes, even if this memory's flags allow it: the frame may have
/// been published through another memory over the same slot.
pub(crate) unsafe extern "C" fn map(
    mem: *mut gst::ffi::GstMemory,
    _maxsize: usize,
    flags: gst::ffi::GstMapFlags,
) -> glib::ffi::gpointer {
    // SAFETY: GStreamer calls this with a live memory of our allocator.
    let (slot, _) = unsafe { slot_of(mem) };
    let may_map = flags & gst::ffi::GST_MAP_WRITE == 0 || slot.lease().is_writable();
    if may_map && !slot.base.is_null() {
        slot.note_mapped(flags);
        slot.base.cast()
    } else {
        ptr::null_mut()
    }
}

/// `GstAllocator::mem_unmap`. The bytes stay mapped while a memory refers to the slot.
pub(crate) unsafe extern "C" fn unmap(mem: *mut gst::ffi::GstMemory) {
    // SAFETY: as in `map`.
    unsafe { slot_of(mem) }.0.note_unmapped();
}

/// `GstAllocator::mem_copy`.
///
/// libav keeps its output frames mapped for reading and writing. GStreamer then cannot lock them exclusively a second time, and asks
/// for a copy of each. If the whole of an unpublished slot is to be copied while it is so mapped, this returns a read-only alias
/// of the slot. Otherwise it copies: a program that only writes may go on to do so, and wants a copy.
pub(crate) unsafe extern "C" fn copy(
    mem: *mut gst::ffi::GstMemory,
    offset: isize,
    size: isize,
) -> *mut gst::ffi::GstMemory {
    // SAFETY: GStreamer calls this with a live memory of our allocator. `raw` gets that allocator and no parent, because a
    // parent would have to be locked exclusively, which just failed.
    unsafe {
        let (slot, owner) = slot_of(mem);
        let whole = offset == 0 && (size == -1 || size as usize == (*mem).size);
        if whole && is_write_locked(mem) && slot.is_updated() && slot.lease().is_writable() {
            let shape = Shape {
                flags: gst::ffi::GST_MEMORY_FLAG_READONLY,
                maxsize: (*mem).maxsize,
                align: (*mem).align,
                offset: (*mem).offset,
                size: (*mem).size,
            };
            let owner = SlotOf::Other(from_glib_none(owner));
            return raw((*mem).allocator, owner, ptr::null_mut(), shape);
        }
        real_copy(mem, slot, offset, size)
    }
}

/// Whether GStreamer would ask for a copy of a memory in a buffer because it is mapped for writing.
///
/// # Safety
///
/// `mem` is a live memory.
unsafe fn is_write_locked(mem: *mut gst::ffi::GstMemory) -> bool {
    let exclusive = gst::ffi::GST_LOCK_FLAG_EXCLUSIVE;
    // SAFETY: by the caller. The buffer has one exclusive lock. A second one fails only then.
    unsafe {
        let is_locked = gst::ffi::gst_mini_object_lock(mem.cast(), exclusive) == glib::ffi::GFALSE;
        if !is_locked {
            gst::ffi::gst_mini_object_unlock(mem.cast(), exclusive);
        }
        is_locked
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
        ptr::copy_nonoverlapping(slot.base.add(start), (*info.as_ptr()).data, size);
        gst::ffi::gst_memory_unmap(copy, info.as_mut_ptr());
        slot.tally.as_ref().inspect(|tally| tally.note_copy());
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
        let owner = SlotOf::Other(from_glib_none(slot_of(mem).1));
        raw((*mem).allocator, owner, parent, shape)
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
