// SPDX-License-Identifier: MPL-2.0

// C calls these functions without a guard, so a panic would abort the process.

use std::sync::{Arc, LazyLock, Mutex, OnceLock};

use gst::{glib, prelude::*, subclass::prelude::*};

use super::buffer_of;
use super::layout::Layout;
use crate::buffers::allocator::{KeepsBuffers, SlotSource, XmemAllocator, system_memory};
use crate::buffers::kept::KeptBuffers;
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
    kept: Arc<KeptBuffers>,
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
        self.kept.close();
    }

    fn flush_stop(&self) {
        self.kept.open();
    }

    /// A buffer in a slot. Does not wait. If no slot is free, the buffer is in private memory.
    fn acquire_buffer(
        &self,
        _params: Option<&gst::BufferPoolAcquireParams>,
    ) -> Result<gst::Buffer, gst::FlowError> {
        if self.obj().is_flushing() {
            return Err(gst::FlowError::Flushing);
        }
        let (Some((allocator, _)), Some(layout)) = (self.backing.get(), self.layout()) else {
            gst::error!(CAT, imp = self, "Used without a configuration");
            return Err(gst::FlowError::NotNegotiated);
        };
        let Some(content) = allocator.acquire(layout.size, &layout.params) else {
            let memory = system_memory(layout.size, &layout.params);
            return self.describe(&layout, buffer_of([memory.ok_or(gst::FlowError::Error)?]));
        };
        match self.kept.take() {
            Some(mut buffer) => {
                let filled = content.put_into(buffer.make_mut());
                filled.map(|()| buffer).ok_or(gst::FlowError::Error)
            }
            None => {
                let memory = content.into_memory(allocator);
                let mut buffer = self.describe(&layout, buffer_of([memory]))?;
                self.kept.register(buffer.make_mut());
                Ok(buffer)
            }
        }
    }

    /// Does nothing: GStreamer's function resets fewer fields than elements can write. `release_buffer` resets all.
    fn reset_buffer(&self, _buffer: &mut gst::BufferRef) {}

    /// Returns the slot to the shared pool, and keeps the rest of the buffer.
    fn release_buffer(&self, buffer: gst::Buffer) {
        self.kept.keep(buffer);
    }

    /// `flush_start` has already freed the kept buffers.
    fn stop(&self) -> bool {
        true
    }
}

impl XmemBufferPool {
    fn describe(
        &self,
        layout: &Layout,
        mut buffer: gst::Buffer,
    ) -> Result<gst::Buffer, gst::FlowError> {
        match layout.describe(buffer.make_mut()) {
            Ok(()) => Ok(buffer),
            Err(error) => {
                gst::error!(CAT, imp = self, "Cannot describe the planes: {error}");
                Err(gst::FlowError::Error)
            }
        }
    }

    fn layout(&self) -> Option<Arc<Layout>> {
        lock(&self.layout).clone()
    }

    pub(super) fn set_backing(&self, allocator: XmemAllocator, slots: Arc<SlotSource>) {
        let kept = Arc::downgrade(&self.kept);
        slots.close_later(kept);
        // Called once, after construction.
        let _ = self.backing.set((allocator, slots));
    }
}
