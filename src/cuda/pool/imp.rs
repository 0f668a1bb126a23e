// SPDX-License-Identifier: MPL-2.0

// C calls these functions without a guard, so a panic would abort the process.
#![allow(unsafe_code)] // calls a virtual function of an ancestor class

use std::sync::{Arc, LazyLock, Mutex, OnceLock};

use gst::glib::translate::*;
use gst::{glib, prelude::*, subclass::prelude::*};
use xmem_core::{SlotSpec, cuda::Device};

use crate::buffers::allocator::SlotSource;
use crate::buffers::bufferpool::buffer_of;
use crate::cuda::context::CudaContext;
use crate::cuda::layout::{Layout, describe};
use crate::cuda::library::CAT;
use crate::cuda::memory::CudaMemory;
use crate::cuda::stream::Stream;
use crate::cuda::wrapped::MemoryCache;
use crate::lock;

/// The context, device and slots of the pool.
#[derive(Debug)]
struct Backing {
    context: CudaContext,
    device: Device,
    slots: Arc<SlotSource>,
}

/// The pool's configuration.
#[derive(Debug, Clone)]
struct Configured {
    cache: Arc<MemoryCache>,
    /// The number of buffers that upstream holds at one time.
    min: u32,
}

#[derive(Default, Debug)]
pub(crate) struct XmemCudaBufferPool {
    backing: OnceLock<Backing>,
    configured: Mutex<Option<Configured>>,
}

#[glib::object_subclass]
impl ObjectSubclass for XmemCudaBufferPool {
    const NAME: &'static str = "GstXmemCudaBufferPool";
    type Type = super::XmemCudaBufferPool;
    type ParentType = super::CudaBufferPool;
}

impl ObjectImpl for XmemCudaBufferPool {}
impl GstObjectImpl for XmemCudaBufferPool {}

impl BufferPoolImpl for XmemCudaBufferPool {
    fn options() -> &'static [&'static str] {
        static OPTIONS: LazyLock<[&str; 1]> =
            LazyLock::new(|| [gst_video::BUFFER_POOL_OPTION_VIDEO_META.as_str()]);
        &*OPTIONS
    }

    fn set_config(&self, config: &mut gst::BufferPoolConfigRef) -> bool {
        let Some(configured) = self.configure(config) else {
            gst::warning!(CAT, imp = self, "The configuration is invalid: {config:?}");
            return false;
        };
        gst::debug!(CAT, imp = self, "Configured: {configured:?}");
        *lock(&self.configured) = Some(configured);
        // The parent class would allocate memory, so its `set_config` is skipped.
        base_set_config(self.obj().upcast_ref(), config)
    }

    /// The parent class would allocate buffers here. This class acquires a slot only when a frame needs one. The call shows
    /// that upstream uses the pool.
    fn start(&self) -> bool {
        if let (Some(configured), Some(backing)) = (self.configured(), self.backing.get()) {
            backing.slots.set_upstream_need(configured.min);
        }
        true
    }

    /// Does nothing: the parent would use an allocator that this pool does not have.
    fn stop(&self) -> bool {
        true
    }

    /// A new buffer in a slot. Does not wait. If no slot is free, the buffer is in private device memory.
    fn acquire_buffer(
        &self,
        _params: Option<&gst::BufferPoolAcquireParams>,
    ) -> Result<gst::Buffer, gst::FlowError> {
        if self.obj().is_flushing() {
            return Err(gst::FlowError::Flushing);
        }
        let (Some(Configured { cache, .. }), Some(backing)) =
            (self.configured(), self.backing.get())
        else {
            gst::error!(CAT, imp = self, "Used without a configuration");
            return Err(gst::FlowError::NotNegotiated);
        };
        let size = cache.layout().info().size();
        let spec = SlotSpec::new(size).on(&backing.device);
        let slot = backing.slots.acquire_as(size, spec);
        let memory = slot
            .and_then(|slot| cache.writable(slot))
            .or_else(|| cache.private())
            .ok_or_else(|| {
                gst::error!(CAT, imp = self, "No memory on the device");
                gst::FlowError::Error
            })?;
        let info = CudaMemory::of(&memory).map(CudaMemory::info);
        let mut buffer = buffer_of([memory]);
        let described = info.map_or(Ok(()), |info| describe(&info, buffer.make_mut()));
        if let Err(error) = described {
            gst::error!(CAT, imp = self, "Cannot describe the planes: {error}");
            return Err(gst::FlowError::Error);
        }
        Ok(buffer)
    }

    /// Buffers are not kept: only the shared pool knows when a slot is free.
    fn release_buffer(&self, buffer: gst::Buffer) {
        drop(buffer);
    }
}

impl XmemCudaBufferPool {
    pub(super) fn set_backing(&self, context: CudaContext, device: Device, slots: Arc<SlotSource>) {
        // Called once, after construction.
        let _ = self.backing.set(Backing {
            context,
            device,
            slots,
        });
    }

    fn configured(&self) -> Option<Configured> {
        lock(&self.configured).clone()
    }

    /// Reads the configuration, and writes the size of a buffer back.
    fn configure(&self, config: &mut gst::BufferPoolConfigRef) -> Option<Configured> {
        let Backing {
            context, device, ..
        } = self.backing.get()?;
        let (caps, _, min, max) = config.params()?;
        let caps = caps?;
        let info = gst_video::VideoInfo::from_caps(&caps).ok()?;
        let layout = Layout::new(&info, context).ok()?;
        let size = u32::try_from(layout.info().size()).ok()?;
        config.set_params(Some(&caps), size, min, max);
        // Not the default stream, because it waits for all other streams, and one of them may be blocked.
        let stream = Stream::of_config(config).or_else(|| Stream::new(context))?;
        if !stream.is_of(context) {
            gst::debug!(CAT, imp = self, "Upstream works in another context");
            return None;
        }
        let cache = MemoryCache::new(context.clone(), device.clone(), Arc::new(stream), layout);
        Some(Configured { cache, min })
    }
}

/// The `set_config` of GstBufferPool itself.
fn base_set_config(pool: &gst::BufferPool, config: &mut gst::BufferPoolConfigRef) -> bool {
    // SAFETY: a class that is never unloaded, and a live pool and structure.
    unsafe {
        let class =
            glib::gobject_ffi::g_type_class_peek(gst::BufferPool::static_type().into_glib());
        let class = class.cast::<gst::ffi::GstBufferPoolClass>().as_ref();
        class
            .and_then(|class| class.set_config)
            .is_some_and(|set_config| set_config(pool.to_glib_none().0, config.as_mut_ptr()) != 0)
    }
}
