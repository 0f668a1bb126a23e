// SPDX-License-Identifier: MPL-2.0

//! The types of libgstcuda-1.0 that are read or extended here.
//!
//! The library has no bindings. The build needs neither it nor its headers, because it is loaded at run time. The structures
//! are those of `gst/cuda/gstcudamemory.h`, `gstcudabufferpool.h` and `gstcudacontext.h`, unchanged from 1.22 to 1.28. If the
//! headers are installed, `tests/elements/layouts.rs` compares them with the C compiler's.

use std::ffi::{c_int, c_void};

/// `CUdeviceptr`: an address on a device.
pub(crate) type CuDevicePtr = u64;
/// `CUdevice`: a device by its ordinal.
pub(crate) type CuDevice = c_int;
/// `CUcontext`, opaque.
pub(crate) type CuContext = *mut c_void;
/// `CUstream`, opaque; null is the default stream.
pub(crate) type CuStream = *mut c_void;

/// A GstObject, for pointers only.
#[repr(C)]
pub(crate) struct GstCudaContext {
    _opaque: [u8; 0],
}

/// A mini object, since 1.24.
#[repr(C)]
pub(crate) struct GstCudaStream {
    parent: gst::ffi::GstMiniObject,
    /// The context of the stream.
    pub(crate) context: *mut GstCudaContext,
    priv_: *mut c_void,
}

/// A GstObject, for pointers only.
#[repr(C)]
pub(crate) struct GstCudaAllocator {
    _opaque: [u8; 0],
}

/// A memory that [`gst_is_cuda_memory`](super::library::Library) accepts.
#[repr(C)]
pub(crate) struct GstCudaMemory {
    pub(crate) mem: gst::ffi::GstMemory,
    pub(crate) context: *mut GstCudaContext,
    /// The offsets and strides in this memory, which may differ from those of the caps.
    pub(crate) info: gst_video::ffi::GstVideoInfo,
    priv_: *mut c_void,
    _gst_reserved: [*mut c_void; GST_PADDING],
}

#[repr(C)]
pub(crate) struct GstCudaBufferPool {
    pub(crate) parent: gst::ffi::GstBufferPool,
    /// Elements read this field of a pool that is offered to them, and compare it with their own context.
    pub(crate) context: *mut GstCudaContext,
    priv_: *mut c_void,
}

#[repr(C)]
pub(crate) struct GstCudaBufferPoolClass {
    pub(crate) parent_class: gst::ffi::GstBufferPoolClass,
}

/// `GstCudaMemoryAllocMethod`, since 1.24. Wrapped memory has the value of cuMemAlloc.
pub(crate) type GstCudaMemoryAllocMethod = c_int;
/// cuMemAlloc or cuMemAllocPitch.
pub(crate) const GST_CUDA_MEMORY_ALLOC_MALLOC: GstCudaMemoryAllocMethod = 1;

/// `GST_PADDING` of gstconfig.h.
const GST_PADDING: usize = 4;

/// `GST_MAP_CUDA`: maps the device memory. The address is then on the device.
pub(crate) const GST_MAP_CUDA: gst::ffi::GstMapFlags = gst::ffi::GST_MAP_FLAG_LAST << 1;

/// The host copy is older than the device memory.
pub(crate) const GST_CUDA_MEMORY_TRANSFER_NEED_DOWNLOAD: gst::ffi::GstMemoryFlags =
    gst::ffi::GST_MEMORY_FLAG_LAST;
/// The device memory is older than the host copy.
pub(crate) const GST_CUDA_MEMORY_TRANSFER_NEED_UPLOAD: gst::ffi::GstMemoryFlags =
    gst::ffi::GST_MEMORY_FLAG_LAST << 1;
/// A CPU or another stream must wait for the work on the memory's stream before it reads. Since 1.24.
pub(crate) const GST_CUDA_MEMORY_TRANSFER_NEED_SYNC: gst::ffi::GstMemoryFlags =
    gst::ffi::GST_MEMORY_FLAG_LAST << 2;

/// `GST_CUDA_CONTEXT_TYPE`: the type of the GstContext, and the field in it that holds the GstCudaContext.
pub(crate) const CONTEXT_TYPE: &str = "gst.cuda.context";
