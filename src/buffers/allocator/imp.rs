// SPDX-License-Identifier: MPL-2.0

// The virtual functions are C function pointers, and `alloc` and `free` handle raw memories.
#![allow(unsafe_code)]

use std::{
    ptr,
    sync::{Arc, OnceLock},
};

use gst::{
    glib::{self, translate::*},
    subclass::prelude::*,
};

use super::{SlotSource, system_memory};
use crate::buffers::memory;

#[derive(Default, Debug)]
pub struct XmemAllocator {
    slots: OnceLock<Arc<SlotSource>>,
}

#[glib::object_subclass]
impl ObjectSubclass for XmemAllocator {
    const NAME: &'static str = "GstXmemAllocator";
    type Type = super::XmemAllocator;
    type ParentType = gst::Allocator;

    fn instance_init(obj: &glib::subclass::InitializingObject<Self>) {
        let allocator = obj.as_ptr().cast::<gst::ffi::GstAllocator>();
        // SAFETY: the instance is being initialised, so no other thread uses it. It is a GstAllocator.
        unsafe {
            (*allocator).mem_type = memory::MEMORY_TYPE.as_ptr();
            (*allocator).mem_map = Some(memory::map);
            (*allocator).mem_unmap = Some(memory::unmap);
            (*allocator).mem_copy = Some(memory::copy);
            (*allocator).mem_share = Some(memory::share);
            (*allocator).mem_is_span = Some(memory::is_span);
            // Without this flag GStreamer would allocate its copies here, and each copy would take a slot.
            (*allocator).object.flags |= gst::ffi::GST_ALLOCATOR_FLAG_CUSTOM_ALLOC;
        }
    }
}

impl ObjectImpl for XmemAllocator {}
impl GstObjectImpl for XmemAllocator {}

// SAFETY: `alloc` returns a new memory or null. `free` gets only memories that `memory` made, because no other code sets an
// XmemAllocator as the allocator of a memory.
unsafe impl AllocatorImpl for XmemAllocator {
    unsafe fn alloc(
        &self,
        size: usize,
        params: &gst::AllocationParams,
    ) -> *mut gst::ffi::GstMemory {
        self.acquire(size, params)
            .map(|content| content.into_memory(&self.obj()))
            .or_else(|| system_memory(size, params))
            .map_or(ptr::null_mut(), IntoGlibPtr::into_glib_ptr)
    }

    unsafe fn free(&self, memory: *mut gst::ffi::GstMemory) {
        // SAFETY: GStreamer frees each memory of this allocator once.
        unsafe { memory::free(memory) }
    }
}

impl XmemAllocator {
    pub(super) fn set_slots(&self, slots: Arc<SlotSource>) {
        // Called once, after construction.
        let _ = self.slots.set(slots);
    }

    /// A free slot for such a memory. `None`: no slot is free.
    pub(super) fn acquire(
        &self,
        size: usize,
        params: &gst::AllocationParams,
    ) -> Option<memory::Content> {
        let slots = self.slots.get()?;
        let total = memory::total(size, params)?;
        // GStreamer's `align` is a mask.
        let align = params.align();
        let mut lease = slots.acquire(total)?;
        let mut shift = lease.as_ptr() as usize & align;
        if shift != 0 {
            // The slot is less aligned: take a larger one.
            drop(lease);
            lease = slots.acquire(total.checked_add(align)?)?;
            shift = lease.as_ptr() as usize & align;
        }
        let base_offset = if shift == 0 { 0 } else { align + 1 - shift };
        memory::Content::writable(lease, base_offset, size, params, slots.tally())
    }
}
