// SPDX-License-Identifier: MPL-2.0

//! The functions of libgstcuda-1.0, and the conditions under which they work.
#![allow(unsafe_code)] // calls a library that is loaded at run time

use std::ffi::c_uint;
use std::mem::{MaybeUninit, size_of};
use std::sync::LazyLock;

use gst::glib::ffi::{GDestroyNotify, GType, gboolean, gpointer};

use super::ffi::{
    CuContext, CuDevice, CuDevicePtr, CuStream, GstCudaAllocator, GstCudaBufferPool,
    GstCudaBufferPoolClass, GstCudaContext, GstCudaMemory, GstCudaMemoryAllocMethod, GstCudaStream,
};
use crate::{debug_category, library::functions};

pub(super) static CAT: LazyLock<gst::DebugCategory> =
    LazyLock::new(|| debug_category("xmemcuda", "Slots on CUDA devices"));

const SONAME: &str = "libgstcuda-1.0.so.0";

functions! { Library {
    cuda_load_library: fn() -> gboolean;
    cuda_memory_init_once: fn();
    cuda_context_get_type: fn() -> GType;
    cuda_context_new_wrapped: fn(CuContext, CuDevice) -> *mut GstCudaContext;
    cuda_context_get_handle: fn(*mut GstCudaContext) -> gpointer;
    context_new_cuda_context: fn(*mut GstCudaContext) -> *mut gst::ffi::GstContext;
    is_cuda_memory: fn(*mut gst::ffi::GstMemory) -> gboolean;
    cuda_allocator_alloc: fn(*mut GstCudaAllocator, *mut GstCudaContext, *mut GstCudaStream, *const gst_video::ffi::GstVideoInfo) -> *mut gst::ffi::GstMemory;
    cuda_allocator_alloc_wrapped: fn(*mut GstCudaAllocator, *mut GstCudaContext, *mut GstCudaStream, *const gst_video::ffi::GstVideoInfo, CuDevicePtr, gpointer, GDestroyNotify) -> *mut gst::ffi::GstMemory;
    cuda_memory_get_stream: fn(*mut GstCudaMemory) -> *mut GstCudaStream;
    cuda_memory_get_user_data: fn(*mut GstCudaMemory) -> gpointer;
    cuda_memory_get_alloc_method: fn(*mut GstCudaMemory) -> GstCudaMemoryAllocMethod;
    cuda_stream_new: fn(*mut GstCudaContext) -> *mut GstCudaStream;
    cuda_stream_get_handle: fn(*mut GstCudaStream) -> CuStream;
    cuda_buffer_pool_get_type: fn() -> GType;
    buffer_pool_config_get_cuda_stream: fn(*mut gst::ffi::GstStructure) -> *mut GstCudaStream;
} optional {
    // Exported since 1.24, but declared only in GStreamer's own plugins.
    cuda_memory_is_from_fixed_pool: fn(*mut gst::ffi::GstMemory) -> gboolean;
    // Likewise, since 1.26.
    cuda_memory_is_stream_ordered: fn(*mut gst::ffi::GstMemory) -> gboolean;
}}

impl Library {
    /// The library, if all conditions are met. Otherwise a debug message gives the reason once.
    pub(super) fn get() -> Option<&'static Self> {
        static LIBRARY: LazyLock<Option<Library>> = LazyLock::new(|| match Library::load() {
            Ok(library) => Some(library),
            Err(reason) => {
                gst::info!(CAT, "No memory:CUDAMemory here: {reason}");
                None
            }
        });
        LIBRARY.as_ref()
    }

    fn load() -> Result<Self, String> {
        // Before the library is loaded, because it logs a warning if there is no driver.
        match xmem_core::cuda::device_count() {
            Ok(0) => return Err("there is a driver, and no device".to_owned()),
            Ok(_) => {}
            Err(error) => return Err(error.to_string()),
        }
        // SAFETY: GStreamer's library runs no code when it is loaded.
        let library =
            unsafe { libloading::Library::new(SONAME) }.map_err(|error| error.to_string())?;
        // SAFETY: the types are those of this library's headers.
        let library = unsafe { Self::of(library) }.map_err(|name| {
            format!("{SONAME} has no {name}: it has to be of GStreamer 1.24 or later")
        })?;
        // SAFETY: GStreamer is initialised, since the plugin is loaded.
        unsafe {
            if (library.cuda_load_library)() == 0 {
                return Err(format!(
                    "{SONAME} cannot use this driver; GST_DEBUG=cudaloader:1 shows why"
                ));
            }
            (library.cuda_memory_init_once)();
        }
        library.check_sizes()?;
        Ok(library)
    }

    /// The class of the buffer pool is extended, so its structures must have the expected size.
    fn check_sizes(&self) -> Result<(), String> {
        // SAFETY: a registered type, and memory for the result.
        let query = unsafe {
            let mut query = MaybeUninit::uninit();
            gst::glib::gobject_ffi::g_type_query(
                (self.cuda_buffer_pool_get_type)(),
                query.as_mut_ptr(),
            );
            query.assume_init()
        };
        let found: [c_uint; 2] = [query.class_size, query.instance_size];
        let thought = [
            size_of::<GstCudaBufferPoolClass>(),
            size_of::<GstCudaBufferPool>(),
        ];
        if found.map(|size| size as usize) == thought {
            Ok(())
        } else {
            Err(format!(
                "{SONAME} is of a version that is not known: its buffer pool has {found:?} bytes, not {thought:?}"
            ))
        }
    }
}
