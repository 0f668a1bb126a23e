// SPDX-License-Identifier: MPL-2.0

//! Allocates XmemMemory.

mod imp;
mod slots;

use std::sync::{Arc, LazyLock};

use gst::{glib, prelude::*, subclass::prelude::*};

use crate::buffers::memory::Content;
pub(crate) use slots::{KeepsBuffers, SlotSource};

glib::wrapper! {
    /// Allocates GstMemory in the slots of a pool, and in system memory when no slot is free.
    pub struct XmemAllocator(ObjectSubclass<imp::XmemAllocator>) @extends gst::Allocator, gst::Object;
}

impl XmemAllocator {
    /// An allocator over the slots of one sink's pool.
    pub(crate) fn new(slots: Arc<SlotSource>) -> Self {
        let allocator = glib::Object::new::<Self>();
        allocator.imp().set_slots(slots);
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
        self.imp().acquire(size, params)
    }
}

/// Memory outside of any slot, with the same size, prefix and padding.
pub(crate) fn system_memory(size: usize, params: &gst::AllocationParams) -> Option<gst::Memory> {
    gst::Allocator::find(None)?.alloc(size, Some(params)).ok()
}
