// SPDX-License-Identifier: MPL-2.0

//! Buffers for upstream, each in a slot of its own.

mod imp;
mod layout;

use std::sync::Arc;

use gst::{glib, subclass::prelude::*};

use crate::allocator::{SlotSource, XmemAllocator};

glib::wrapper! {
    /// A pool whose buffers lie in the slots of an [`XmemAllocator`], and in private memory when none is free.
    pub struct XmemBufferPool(ObjectSubclass<imp::XmemBufferPool>) @extends gst::BufferPool, gst::Object;
}

impl XmemBufferPool {
    pub(crate) fn new(allocator: &XmemAllocator, slots: &Arc<SlotSource>) -> Self {
        let pool = glib::Object::new::<Self>();
        pool.imp().set_backing(allocator.clone(), slots.clone());
        pool
    }
}
