// SPDX-License-Identifier: MPL-2.0

//! Creates memories.

// GstMemory is a C structure with C virtual functions. There is no safe way to define a new kind.
#![allow(unsafe_code)]

use std::{ptr, sync::Arc};

use gst::{glib::translate::*, prelude::*};
use xmem_core::ReadLease;

use super::{
    ffi,
    slot::{Contents, Slot, SlotRange, total},
};
use crate::buffers::{allocator::XmemAllocator, tally::Tally};

/// A memory for a slot that is to be written. It covers `size` bytes of the range, after `params.prefix()` bytes. `range` was
/// made for these parameters.
pub(crate) fn writable(
    allocator: &XmemAllocator,
    range: SlotRange,
    size: usize,
    params: &gst::AllocationParams,
    tally: &Arc<Tally>,
) -> Option<gst::Memory> {
    let shape = Shape {
        flags: params.flags().into_glib(),
        maxsize: total(size, params)?,
        align: params.align(),
        offset: params.prefix(),
        size,
    };
    let mut contents = Contents::default();
    range.assign_to(&mut contents, size, params, tally);
    // SAFETY: the wrapper takes over the only reference, which `raw` returns.
    let memory = unsafe {
        from_glib_full(raw(
            allocator.as_ptr().cast(),
            Arc::new(Slot::new(contents)),
            ptr::null_mut(),
            shape,
        ))
    };
    Some(memory)
}

/// A read-only memory over a received frame, or over one mapped part of it.
pub(crate) fn readable(lease: ReadLease, part: Option<usize>, tally: &Arc<Tally>) -> gst::Memory {
    let (contents, size) = Contents::of_received(lease, part, tally);
    read_only(contents, size)
}

/// A read-only memory without bytes. A received frame is put into it later.
pub(crate) fn empty() -> gst::Memory {
    read_only(Contents::default(), 0)
}

fn read_only(contents: Contents, size: usize) -> gst::Memory {
    let shape = Shape {
        flags: gst::ffi::GST_MEMORY_FLAG_READONLY,
        maxsize: size,
        align: 0,
        offset: 0,
        size,
    };
    let allocator = XmemAllocator::of_received_frames();
    // SAFETY: the wrapper takes over the only reference, which `raw` returns.
    unsafe {
        from_glib_full(raw(
            allocator.as_ptr().cast(),
            Arc::new(Slot::new(contents)),
            ptr::null_mut(),
            shape,
        ))
    }
}

pub(super) struct Shape {
    pub(super) flags: gst::ffi::GstMemoryFlags,
    pub(super) maxsize: usize,
    pub(super) align: usize,
    pub(super) offset: usize,
    pub(super) size: usize,
}

/// # Safety
///
/// `allocator` is a live XmemAllocator, and `parent` is null or a live memory of it over the same slot.
pub(super) unsafe fn raw(
    allocator: *mut gst::ffi::GstAllocator,
    slot: Arc<Slot>,
    parent: *mut gst::ffi::GstMemory,
    shape: Shape,
) -> *mut gst::ffi::GstMemory {
    let memory = Box::into_raw(Box::<ffi::XmemMemory>::new_uninit()).cast::<ffi::XmemMemory>();
    // SAFETY: freshly allocated, and all fields are written before other code gets it. gst_memory_init takes its own references
    // to allocator and parent.
    unsafe {
        (&raw mut (*memory).slot).write(slot);
        (&raw mut (*memory).owner).write(None);
        gst::ffi::gst_memory_init(
            memory.cast(),
            shape.flags,
            allocator,
            parent,
            shape.maxsize,
            shape.align,
            shape.offset,
            shape.size,
        );
    }
    memory.cast()
}
