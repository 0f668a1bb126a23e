// SPDX-License-Identifier: MPL-2.0

//! Buffers for upstream, each in a slot.

mod imp;
mod layout;
mod received;

use std::sync::Arc;

use gst::{glib, prelude::*, subclass::prelude::*};

use crate::buffers::allocator::{SlotSource, XmemAllocator};
pub(crate) use received::ReceivedBuffers;

glib::wrapper! {
    /// A buffer pool whose buffers are in the slots of an [`XmemAllocator`], or in private memory if no slot is free.
    pub struct XmemBufferPool(ObjectSubclass<imp::XmemBufferPool>) @extends gst::BufferPool, gst::Object;
}

impl XmemBufferPool {
    pub(crate) fn new(allocator: &XmemAllocator, slots: &Arc<SlotSource>) -> Self {
        let pool = glib::Object::new::<Self>();
        pool.imp().set_backing(allocator.clone(), slots.clone());
        pool
    }
}

/// Whether a pool makes as many buffers as are needed, since it is one of xmem's.
pub(crate) fn is_ours(pool: &gst::BufferPool) -> bool {
    pool.is::<XmemBufferPool>() || pool.is::<received::ReceivedBufferPool>()
}

/// A buffer with these memories.
pub(crate) fn buffer_of(memories: impl IntoIterator<Item = gst::Memory>) -> gst::Buffer {
    let mut buffer = gst::Buffer::new();
    let buffer_ref = buffer.make_mut();
    for memory in memories {
        buffer_ref.append_memory(memory);
    }
    // Adding a memory sets this flag. A new buffer of GStreamer has it cleared.
    buffer_ref.unset_flags(gst::BufferFlags::TAG_MEMORY);
    buffer
}
