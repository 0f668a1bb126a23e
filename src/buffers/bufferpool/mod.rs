// SPDX-License-Identifier: MPL-2.0

//! Buffers for upstream, each in a slot.

mod received;

use std::sync::{Arc, LazyLock, Mutex, OnceLock};

use gst::{glib, prelude::*, subclass::prelude::*};
use gst_video::VideoBufferPoolConfig;

use crate::buffers::allocator::{KeepsBuffers, SlotSource, XmemAllocator, system_memory};
use crate::buffers::kept::KeptBuffers;
use crate::{debug_category, lock};

pub(crate) use received::ReceivedBuffers;

static CAT: LazyLock<gst::DebugCategory> =
    LazyLock::new(|| debug_category("xmempool", "Buffers in shared slots"));

glib::wrapper! {
    /// A buffer pool whose buffers are in the slots of an [`XmemAllocator`], or in private memory if no slot is free.
    pub struct XmemBufferPool(ObjectSubclass<PoolImp>) @extends gst::BufferPool, gst::Object;
}

impl XmemBufferPool {
    pub(crate) fn new(allocator: &XmemAllocator, slots: &Arc<SlotSource>) -> Self {
        let pool = glib::Object::new::<Self>();
        let own = pool.imp();
        let kept = Arc::downgrade(&own.kept);
        slots.close_later(kept);
        // No other thread has the pool yet.
        let _ = own.backing.set((allocator.clone(), slots.clone()));
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

// C calls the functions of this type without a guard, so a panic would abort the process.
#[derive(Default, Debug)]
pub struct PoolImp {
    backing: OnceLock<(XmemAllocator, Arc<SlotSource>)>,
    layout: Mutex<Option<Arc<Layout>>>,
    kept: Arc<KeptBuffers>,
}

#[glib::object_subclass]
impl ObjectSubclass for PoolImp {
    const NAME: &'static str = "GstXmemBufferPool";
    type Type = XmemBufferPool;
    type ParentType = gst::BufferPool;
}

impl ObjectImpl for PoolImp {}
impl GstObjectImpl for PoolImp {}

impl BufferPoolImpl for PoolImp {
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

impl PoolImp {
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
}

/// The layout of all buffers of the pool.
#[derive(Debug, Clone)]
struct Layout {
    /// Size of the memory in bytes.
    size: usize,
    params: gst::AllocationParams,
    /// The number of buffers that upstream holds at one time.
    min: u32,
    /// The planes, if buffers get a GstVideoMeta.
    video: Option<(gst_video::VideoInfo, Option<gst_video::VideoAlignment>)>,
}

impl Layout {
    /// Reads the configuration, and writes the resulting values back. `None`: it is invalid.
    fn negotiate(config: &mut gst::BufferPoolConfigRef) -> Option<Self> {
        let (caps, size, min, max) = config.params()?;
        let (allocator, mut params) = config.allocator().unwrap_or_default();
        let mut size = size;
        let info = caps
            .as_ref()
            .and_then(|caps| gst_video::VideoInfo::from_caps(caps).ok());
        let mut video = None;
        // Encoded formats have no planes.
        if let Some(mut info) = info.filter(|info| info.format() != gst_video::VideoFormat::Encoded)
        {
            let with_meta = config.has_option(gst_video::BUFFER_POOL_OPTION_VIDEO_META);
            let mut alignment = config
                .has_option(gst_video::BUFFER_POOL_OPTION_VIDEO_ALIGNMENT)
                .then(|| config.video_alignment())
                .flatten()
                // Without the meta, elements would not find the planes.
                .filter(|_| with_meta);
            if let Some(alignment) = &mut alignment {
                info.align(alignment).ok()?;
                // The rows are aligned only if the memory is aligned too.
                let mask = alignment
                    .stride_align()
                    .iter()
                    .fold(params.align(), |all, align| all | *align as usize);
                params.set_align(mask);
                config.set_video_alignment(alignment);
            }
            size = size.max(u32::try_from(info.size()).ok()?);
            video = with_meta.then_some((info, alignment));
        }
        config.set_params(caps.as_ref(), size, min, max);
        config.set_allocator(allocator.as_ref(), Some(&params));
        Some(Self {
            size: size as usize,
            params,
            min,
            video,
        })
    }

    /// Adds the GstVideoMeta of this layout to a buffer.
    fn describe(&self, buffer: &mut gst::BufferRef) -> Result<(), glib::BoolError> {
        let Some((info, alignment)) = &self.video else {
            return Ok(());
        };
        let mut meta =
            gst_video::VideoMeta::add_from_info(buffer, gst_video::VideoFrameFlags::empty(), info)?;
        match alignment {
            Some(alignment) => meta.set_alignment(alignment),
            None => Ok(()),
        }
    }
}
