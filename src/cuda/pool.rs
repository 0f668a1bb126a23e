// SPDX-License-Identifier: MPL-2.0

//! Buffers for upstream, each in a slot on a device.
#![allow(unsafe_code)] // extends a class of a library that is loaded at run time

use std::ptr;
use std::sync::{Arc, LazyLock, Mutex, OnceLock};

use gst::glib::subclass::types::IsSubclassable;
use gst::glib::translate::*;
use gst::{glib, prelude::*, subclass::prelude::*};
use xmem_core::{SlotSpec, cuda::Device};

use super::context::CudaContext;
use super::ffi;
use super::layout::{Layout, describe};
use super::library::{CAT, Library};
use super::memory::CudaMemory;
use super::stream::Stream;
use super::wrapped::MemoryCache;
use crate::buffers::allocator::SlotSource;
use crate::buffers::bufferpool::buffer_of;
use crate::lock;

glib::wrapper! {
    /// GstCudaBufferPool. Elements accept only pools of this class for CUDA memory.
    pub(crate) struct CudaBufferPool(Object<ffi::GstCudaBufferPool, ffi::GstCudaBufferPoolClass>)
        @extends gst::BufferPool, gst::Object;

    match fn {
        type_ => || Library::get().map_or(glib::gobject_ffi::G_TYPE_INVALID, |library| (library.cuda_buffer_pool_get_type)()),
    }
}

// SAFETY: the structures have the library's sizes (`Library::check_sizes`), and the class adds no fields.
unsafe impl<T: BufferPoolImpl> IsSubclassable<T> for CudaBufferPool {}

glib::wrapper! {
    /// A buffer pool whose buffers are in slots on a device, or in private device memory if no slot is free.
    pub(crate) struct XmemCudaBufferPool(ObjectSubclass<PoolImp>)
        @extends CudaBufferPool, gst::BufferPool, gst::Object;
}

impl XmemCudaBufferPool {
    /// `None`: the library is missing.
    pub(crate) fn new(
        context: &CudaContext,
        device: &Device,
        slots: &Arc<SlotSource>,
    ) -> Option<Self> {
        Library::get()?;
        let pool = glib::Object::new::<Self>();
        let raw: *mut ffi::GstCudaBufferPool = pool.upcast_ref::<CudaBufferPool>().as_ptr();
        // SAFETY: a new pool. Its class releases this reference when the pool is freed.
        unsafe {
            debug_assert!(ptr::eq((*raw).context, ptr::null()));
            (*raw).context = context.to_glib_full();
        }
        // No other thread has the pool yet.
        let _ = pool.imp().backing.set(Backing {
            context: context.clone(),
            device: device.clone(),
            slots: slots.clone(),
        });
        Some(pool)
    }
}

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

// C calls the functions of this type without a guard, so a panic would abort the process.
#[derive(Default, Debug)]
pub(crate) struct PoolImp {
    backing: OnceLock<Backing>,
    configured: Mutex<Option<Configured>>,
}

#[glib::object_subclass]
impl ObjectSubclass for PoolImp {
    const NAME: &'static str = "GstXmemCudaBufferPool";
    type Type = XmemCudaBufferPool;
    type ParentType = CudaBufferPool;
}

impl ObjectImpl for PoolImp {}
impl GstObjectImpl for PoolImp {}

impl BufferPoolImpl for PoolImp {
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

impl PoolImp {
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
