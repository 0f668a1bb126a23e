// SPDX-License-Identifier: MPL-2.0

// C calls these functions without a guard, so a panic would abort the process.

use std::sync::{Arc, LazyLock, Mutex, OnceLock};

use gst::{glib, prelude::*, subclass::prelude::*};

use super::buffer_of;
use super::layout::Layout;
use crate::buffers::allocator::{SlotSource, XmemAllocator, system_memory};
use crate::buffers::memory::SpareBuffers;
use crate::lock;

static CAT: LazyLock<gst::DebugCategory> = LazyLock::new(|| {
    gst::DebugCategory::new(
        "xmempool",
        gst::DebugColorFlags::empty(),
        Some("Buffers in shared slots"),
    )
});

#[derive(Default, Debug)]
pub struct XmemBufferPool {
    backing: OnceLock<(XmemAllocator, Arc<SlotSource>)>,
    layout: Mutex<Option<Arc<Layout>>>,
    spare: Arc<SpareBuffers>,
}

#[glib::object_subclass]
impl ObjectSubclass for XmemBufferPool {
    const NAME: &'static str = "GstXmemBufferPool";
    type Type = super::XmemBufferPool;
    type ParentType = gst::BufferPool;
}

impl ObjectImpl for XmemBufferPool {}
impl GstObjectImpl for XmemBufferPool {}

impl BufferPoolImpl for XmemBufferPool {
    fn options() -> &'static [&'static str] {
        // The strings of these options are part of GStreamer's stable API.
        static OPTIONS: LazyLock<[&str; 2]> = LazyLock::new(|| {
            [
                gst_video::BUFFER_POOL_OPTION_VIDEO_META.as_str(),
                gst_video::BUFFER_POOL_OPTION_VIDEO_ALIGNMENT.as_str(),
            ]
        });
        &*OPTIONS
    }

    fn set_config(&self, config: &mut gst::BufferPoolConfigRef) -> bool {
        let Some(layout) = Layout::negotiate(config) else {
            gst::warning!(CAT, imp = self, "The configuration is invalid: {config:?}");
            return false;
        };
        gst::debug!(CAT, imp = self, "Configured: {layout:?}");
        *lock(&self.layout) = Some(Arc::new(layout));
        self.parent_set_config(config)
    }

    /// The parent class would allocate buffers here. This class acquires a slot only when a frame needs one. The call shows
    /// that upstream uses the pool.
    fn start(&self) -> bool {
        if let (Some(layout), Some((_, slots))) = (self.layout(), self.backing.get()) {
            slots.set_upstream_need(layout.min);
        }
        true
    }

    fn flush_start(&self) {
        self.spare.close();
    }

    fn flush_stop(&self) {
        self.spare.open();
    }

    /// A new or kept buffer in a slot. Does not wait. If no slot is free, the buffer is in private memory.
    fn acquire_buffer(
        &self,
        _params: Option<&gst::BufferPoolAcquireParams>,
    ) -> Result<gst::Buffer, gst::FlowError> {
        if self.obj().is_flushing() {
            return Err(gst::FlowError::Flushing);
        }
        let Some((allocator, slots)) = self.backing.get() else {
            return Err(gst::FlowError::NotNegotiated);
        };
        if let Some(spare) = self.spare.take() {
            let layout = spare.layout();
            match layout.and_then(|(size, params)| allocator.slot_range(size, params)) {
                Some(slot_range) => return Ok(spare.fill(slot_range, slots.tally())),
                None => self.spare.put(spare),
            }
        }
        self.make(allocator)
    }

    /// Does nothing: GStreamer's function resets fewer fields than elements can write. `release_buffer` resets all.
    fn reset_buffer(&self, _buffer: &mut gst::BufferRef) {}

    /// Returns the slot to the shared pool, and keeps the rest of the buffer.
    fn release_buffer(&self, buffer: gst::Buffer) {
        self.spare.keep(buffer);
    }

    /// `flush_start` has already freed the kept buffers.
    fn stop(&self) -> bool {
        true
    }
}

impl XmemBufferPool {
    fn make(&self, allocator: &XmemAllocator) -> Result<gst::Buffer, gst::FlowError> {
        let Some(layout) = self.layout() else {
            gst::error!(CAT, imp = self, "Used without a configuration");
            return Err(gst::FlowError::NotNegotiated);
        };
        let memory = allocator
            .alloc_slot(layout.size, &layout.params)
            .or_else(|| system_memory(layout.size, &layout.params))
            .ok_or(gst::FlowError::Error)?;
        let mut buffer = buffer_of([memory]);
        if let Err(error) = layout.describe(buffer.make_mut()) {
            gst::error!(CAT, imp = self, "Cannot describe the planes: {error}");
            return Err(gst::FlowError::Error);
        }
        self.spare
            .register(buffer.make_mut(), layout.size, &layout.params);
        Ok(buffer)
    }

    fn layout(&self) -> Option<Arc<Layout>> {
        lock(&self.layout).clone()
    }

    pub(super) fn set_backing(&self, allocator: XmemAllocator, slots: Arc<SlotSource>) {
        slots.close_later(&self.spare);
        // Called once, after construction.
        let _ = self.backing.set((allocator, slots));
    }
}
