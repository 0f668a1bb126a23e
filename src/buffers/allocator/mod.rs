// SPDX-License-Identifier: MPL-2.0

//! Allocates XmemMemory.

// The virtual functions are C function pointers, and `alloc` and `free` handle raw memories.
#![allow(unsafe_code)]

mod slots;

use std::{
    ptr,
    sync::{Arc, LazyLock, OnceLock},
};

use gst::{
    glib::{self, translate::*},
    prelude::*,
    subclass::prelude::*,
};

use crate::buffers::memory::{self, Content};

pub(crate) use slots::{KeepsBuffers, SlotSource, Tally};

glib::wrapper! {
    /// Allocates GstMemory in the slots of a pool, and in system memory when no slot is free.
    pub struct XmemAllocator(ObjectSubclass<AllocatorImp>) @extends gst::Allocator, gst::Object;
}

impl XmemAllocator {
    /// An allocator over the slots of one sink's pool.
    pub(crate) fn new(slots: Arc<SlotSource>) -> Self {
        let allocator = glib::Object::new::<Self>();
        // No other thread has the allocator yet.
        let _ = allocator.imp().slots.set(slots);
        allocator
    }

    /// The allocator of received frames. It has no slots.
    pub(crate) fn of_received_frames() -> &'static Self {
        static ALLOCATOR: LazyLock<XmemAllocator> = LazyLock::new(|| {
            let allocator = glib::Object::new::<XmemAllocator>();
            allocator.set_object_flags(gst::ObjectFlags::MAY_BE_LEAKED);
            allocator
        });
        &ALLOCATOR
    }

    /// A free slot for a memory. `None`: no slot is free.
    pub(crate) fn acquire(&self, size: usize, params: &gst::AllocationParams) -> Option<Content> {
        let slots = self.imp().slots.get()?;
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
        Content::writable(lease, base_offset, size, params, slots.tally())
    }
}

/// Memory outside of any slot, with the same size, prefix and padding.
pub(crate) fn system_memory(size: usize, params: &gst::AllocationParams) -> Option<gst::Memory> {
    gst::Allocator::find(None)?.alloc(size, Some(params)).ok()
}

#[derive(Default, Debug)]
pub struct AllocatorImp {
    slots: OnceLock<Arc<SlotSource>>,
}

#[glib::object_subclass]
impl ObjectSubclass for AllocatorImp {
    const NAME: &'static str = "GstXmemAllocator";
    type Type = XmemAllocator;
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

impl ObjectImpl for AllocatorImp {}
impl GstObjectImpl for AllocatorImp {}

// SAFETY: `alloc` returns a new memory or null. `free` gets only memories that `memory` made, because no other code sets an
// XmemAllocator as the allocator of a memory.
unsafe impl AllocatorImpl for AllocatorImp {
    unsafe fn alloc(
        &self,
        size: usize,
        params: &gst::AllocationParams,
    ) -> *mut gst::ffi::GstMemory {
        let allocator = self.obj();
        allocator
            .acquire(size, params)
            .map(|content| content.into_memory(&allocator))
            .or_else(|| system_memory(size, params))
            .map_or(ptr::null_mut(), IntoGlibPtr::into_glib_ptr)
    }

    unsafe fn free(&self, memory: *mut gst::ffi::GstMemory) {
        // SAFETY: GStreamer frees each memory of this allocator once.
        unsafe { memory::free(memory) }
    }
}
