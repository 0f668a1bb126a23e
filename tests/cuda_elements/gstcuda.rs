// SPDX-License-Identifier: MPL-2.0

//! Functions of libgstcuda and of the driver for the child processes. GStreamer's elements with separate streams need features that
//! a stand-in does not have (kernels that are compiled at run time, decoders).
#![allow(unsafe_code)] // libraries that are loaded

use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;
use std::sync::LazyLock;

use gst::glib::translate::*;
use gst::prelude::*;
use libloading::{Library, Symbol};

/// `GST_MAP_CUDA`.
const GST_MAP_CUDA: u32 = gst::ffi::GST_MAP_FLAG_LAST << 1;

static GSTCUDA: LazyLock<Library> = LazyLock::new(|| open("libgstcuda-1.0.so.0"));
static CUDA: LazyLock<Library> = LazyLock::new(|| open("libcuda.so.1"));

fn open(name: &str) -> Library {
    // SAFETY: libraries that do nothing when they are loaded.
    unsafe { Library::new(name) }.unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// # Safety
///
/// The function must have the type `T`.
unsafe fn function<T>(library: &'static Library, name: &str) -> Symbol<'static, T> {
    // SAFETY: by the caller.
    unsafe { library.get(name) }.unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// The device address of a memory.
pub fn device_address(memory: &gst::MemoryRef) -> Option<u64> {
    let memory = memory.as_ptr().cast_mut();
    // SAFETY: a live memory, unmapped as it was mapped.
    unsafe {
        let mut map = MaybeUninit::zeroed();
        let flags = gst::ffi::GST_MAP_READ | GST_MAP_CUDA;
        if gst::ffi::gst_memory_map(memory, map.as_mut_ptr(), flags) == 0 {
            return None;
        }
        let mut map = map.assume_init();
        // GStreamer 1.28 clears the address when it unmaps the memory.
        let address = map.data.addr() as u64;
        gst::ffi::gst_memory_unmap(memory, &raw mut map);
        Some(address)
    }
}

/// Whether a memory can be mapped for writing, by the CPU or on the device.
pub fn is_writable(memory: &gst::MemoryRef) -> bool {
    let memory = memory.as_ptr().cast_mut();
    [0, GST_MAP_CUDA].into_iter().any(|more| {
        // SAFETY: a live memory, unmapped as it was mapped.
        unsafe {
            let mut map = MaybeUninit::zeroed();
            let flags = gst::ffi::GST_MAP_WRITE | more;
            let is_mapped = gst::ffi::gst_memory_map(memory, map.as_mut_ptr(), flags) != 0;
            if is_mapped {
                gst::ffi::gst_memory_unmap(memory, map.as_mut_ptr());
            }
            is_mapped
        }
    })
}

/// Creates and starts a pool whose memory uses a new stream, optionally with stream-ordered allocation. `pool` is `None` for
/// GStreamer's own pool.
pub fn pool_with_stream(
    pool: Option<gst::BufferPool>,
    context: usize,
    caps: &gst::Caps,
    is_ordered: bool,
) -> Result<gst::BufferPool, String> {
    let context = std::ptr::without_provenance_mut::<c_void>(context);
    // SAFETY: the types are those of the headers; the context is a live GstCudaContext, which an element has.
    unsafe {
        let pool = pool.unwrap_or_else(|| {
            let new: Symbol<'_, unsafe extern "C" fn(*mut c_void) -> *mut gst::ffi::GstBufferPool> =
                function(&GSTCUDA, "gst_cuda_buffer_pool_new");
            from_glib_full(new(context))
        });
        let new: Symbol<'_, unsafe extern "C" fn(*mut c_void) -> *mut gst::ffi::GstMiniObject> =
            function(&GSTCUDA, "gst_cuda_stream_new");
        let stream = new(context);
        assert!(!stream.is_null(), "no stream");
        let mut config = pool.config();
        let size = gst_video::VideoInfo::from_caps(caps)
            .map_err(|error| error.to_string())?
            .size();
        config.set_params(Some(caps), u32::try_from(size).unwrap(), 0, 0);
        config.add_option(gst_video::BUFFER_POOL_OPTION_VIDEO_META);
        let set: Symbol<
            '_,
            unsafe extern "C" fn(*mut gst::ffi::GstStructure, *mut gst::ffi::GstMiniObject),
        > = function(&GSTCUDA, "gst_buffer_pool_config_set_cuda_stream");
        set(config.as_mut_ptr(), stream);
        gst::ffi::gst_mini_object_unref(stream);
        if is_ordered {
            let set: Symbol<'_, unsafe extern "C" fn(*mut gst::ffi::GstStructure, c_int)> =
                function(
                    &GSTCUDA,
                    "gst_buffer_pool_config_set_cuda_stream_ordered_alloc",
                );
            set(config.as_mut_ptr(), 1);
        }
        pool.set_config(config).map_err(|error| error.to_string())?;
        pool.set_active(true).map_err(|error| error.to_string())?;
        Ok(pool)
    }
}

/// The stream of a GstCudaMemory.
pub fn stream_of(memory: &gst::MemoryRef) -> *mut c_void {
    // SAFETY: the types are those of the headers, and a live GstCudaMemory; null is a stream too.
    unsafe {
        let get: Symbol<'_, unsafe extern "C" fn(*mut gst::ffi::GstMemory) -> *mut c_void> =
            function(&GSTCUDA, "gst_cuda_memory_get_stream");
        let handle: Symbol<'_, unsafe extern "C" fn(*mut c_void) -> *mut c_void> =
            function(&GSTCUDA, "gst_cuda_stream_get_handle");
        handle(get(memory.as_ptr().cast_mut()))
    }
}

/// Calls a function with a device's primary context.
pub fn in_primary<T>(call: impl FnOnce() -> T) -> T {
    let device = xmem_core::cuda::Device::new(0).unwrap();
    // SAFETY: the driver's functions, and a context that is kept for as long as the process runs.
    unsafe {
        let push: Symbol<'_, unsafe extern "C" fn(u64) -> c_int> =
            function(&CUDA, "cuCtxPushCurrent_v2");
        let pop: Symbol<'_, unsafe extern "C" fn(*mut u64) -> c_int> =
            function(&CUDA, "cuCtxPopCurrent_v2");
        assert_eq!(push(device.primary_context()), 0);
        let result = call();
        assert_eq!(pop(&mut 0), 0);
        result
    }
}

/// Creates a blocking stream, as GStreamer's are: it is ordered with the default stream. It is never destroyed.
pub fn blocking_stream() -> u64 {
    let mut stream = std::ptr::null_mut::<c_void>();
    in_primary(|| {
        // SAFETY: the driver's function, with a place for the stream.
        let result = unsafe {
            let create: Symbol<'_, unsafe extern "C" fn(*mut *mut c_void, u32) -> c_int> =
                function(&CUDA, "cuStreamCreate");
            create(&mut stream, 0)
        };
        assert_eq!(result, 0);
    });
    stream.expose_provenance() as u64
}

/// Writes bytes to device memory and waits.
pub fn upload(to: u64, bytes: &[u8]) {
    in_primary(|| {
        // SAFETY: the driver's function; the caller has memory of that size at the address.
        let result = unsafe {
            let copy: Symbol<'_, unsafe extern "C" fn(u64, *const u8, usize) -> c_int> =
                function(&CUDA, "cuMemcpyHtoD_v2");
            copy(to, bytes.as_ptr(), bytes.len())
        };
        assert_eq!(result, 0);
        // The call has read the bytes, but they may not have arrived.
        synchronize();
    });
}

/// Waits for all work in the current context.
pub fn synchronize() {
    // SAFETY: the driver's function.
    let result = unsafe {
        let wait: Symbol<'_, unsafe extern "C" fn() -> c_int> = function(&CUDA, "cuCtxSynchronize");
        wait()
    };
    assert_eq!(result, 0);
}

/// A queued copy of a memory.
pub struct LateCopy {
    address: u64,
    size: usize,
}

impl LateCopy {
    /// Queues the copy on the memory's stream.
    pub fn begin(memory: &gst::MemoryRef) -> Self {
        Self::begin_on(memory, stream_of(memory), 0)
    }

    /// Queues the copy on a separate stream behind other work, as GStreamer's converters do: they wait for the memory's stream and
    /// read on the stream of their output.
    pub fn begin_elsewhere(memory: &gst::MemoryRef) -> Self {
        in_primary(|| {
            // SAFETY: the driver's function, and a stream that the memory has.
            let result = unsafe {
                let wait: Symbol<'_, unsafe extern "C" fn(*mut c_void) -> c_int> =
                    function(&CUDA, "cuStreamSynchronize");
                wait(stream_of(memory))
            };
            assert_eq!(result, 0);
        });
        let stream = std::ptr::with_exposed_provenance_mut(blocking_stream() as usize);
        Self::begin_on(memory, stream, 400)
    }

    fn begin_on(memory: &gst::MemoryRef, stream: *mut c_void, before: usize) -> Self {
        let (from, size) = (device_address(memory), memory.size());
        let mut address = 0;
        in_primary(|| {
            // SAFETY: the driver's functions, memory that is mapped, and new memory of the same size.
            unsafe {
                let alloc: Symbol<'_, unsafe extern "C" fn(*mut u64, usize) -> c_int> =
                    function(&CUDA, "cuMemAlloc_v2");
                assert_eq!(alloc(&mut address, size), 0);
                let copy: Symbol<'_, unsafe extern "C" fn(u64, u64, usize, *mut c_void) -> c_int> =
                    function(&CUDA, "cuMemcpyDtoDAsync_v2");
                for _ in 0..before {
                    assert_eq!(copy(address, address + 1, 1, stream), 0);
                }
                assert_eq!(copy(address, from.unwrap(), size, stream), 0);
            }
        });
        Self { address, size }
    }

    /// Waits for the device, and returns the bytes.
    pub fn end(self) -> Vec<u8> {
        let mut bytes = vec![0; self.size];
        in_primary(|| {
            synchronize();
            // SAFETY: the driver's functions, and memory that this owns.
            unsafe {
                let copy: Symbol<'_, unsafe extern "C" fn(*mut u8, u64, usize) -> c_int> =
                    function(&CUDA, "cuMemcpyDtoH_v2");
                assert_eq!(copy(bytes.as_mut_ptr(), self.address, self.size), 0);
                let free: Symbol<'_, unsafe extern "C" fn(u64) -> c_int> =
                    function(&CUDA, "cuMemFree_v2");
                assert_eq!(free(self.address), 0);
            }
        });
        bytes
    }
}
