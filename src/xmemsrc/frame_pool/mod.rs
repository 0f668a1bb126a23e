// SPDX-License-Identifier: MPL-2.0

//! The buffers of received frames. When the last reference to one is gone, it is kept for a later frame.

mod imp;

use gst::{glib, prelude::*, subclass::prelude::*};

use crate::planes::Planes;

/// Buffers for frames whose planes lie in the same way. GStreamer's pools have descriptors, so there is one for all layouts.
#[derive(Debug)]
pub(super) struct FrameBuffers(FramePool);

impl FrameBuffers {
    /// `None`: GStreamer makes no pool.
    pub(super) fn new() -> Option<Self> {
        let pool = glib::Object::new::<FramePool>();
        let mut config = pool.config();
        config.set_params(None, 0, 0, 0);
        pool.set_config(config).ok()?;
        pool.set_active(true).ok()?;
        Some(Self(pool))
    }

    /// Frees the kept buffers. The next frames have these planes.
    pub(super) fn reset(&self, planes: Option<&Planes>) {
        self.0.imp().reset(planes.cloned());
    }

    /// A buffer with these planes, and with a memory that has no slot.
    pub(super) fn empty(&self) -> Result<gst::Buffer, gst::FlowError> {
        self.0.acquire_buffer(None)
    }
}

impl Drop for FrameBuffers {
    fn drop(&mut self) {
        // Frees the kept buffers. Buffers released after this are freed too.
        let _ = self.0.set_active(false);
    }
}

glib::wrapper! {
    /// The pool that GStreamer returns the buffers to. Those that it gives out have a memory without a slot.
    pub struct FramePool(ObjectSubclass<imp::FramePool>) @extends gst::BufferPool, gst::Object;
}
