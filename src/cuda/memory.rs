// SPDX-License-Identifier: MPL-2.0

//! The properties of a GstCudaMemory of any allocator.
#![allow(unsafe_code)] // reads a C structure, and calls a library that is loaded at run time

use std::mem::MaybeUninit;
use std::ptr;

use gst::glib::{self, translate::*};
use gst::prelude::*;
use xmem_core::cuda;

use super::context::CudaContext;
use super::ffi::{GST_CUDA_MEMORY_ALLOC_MALLOC, GST_MAP_CUDA, GstCudaMemory};
use super::library::Library;
use super::stream::Stream;
use crate::buffers::tied::{Tie, tied};

/// Private memory of the library. `None`: there is no memory, or the library does not know the format.
pub(crate) fn allocate(
    context: &CudaContext,
    stream: Option<&Stream>,
    info: &gst_video::VideoInfo,
) -> Option<gst::Memory> {
    let library = Library::get()?;
    // SAFETY: live objects. Null selects the library's allocator, and the default stream. The result is a new memory or null.
    unsafe {
        from_glib_full((library.cuda_allocator_alloc)(
            ptr::null_mut(),
            context.as_ptr(),
            stream.map_or(ptr::null_mut(), Stream::as_ptr),
            info.to_glib_none().0,
        ))
    }
}

/// A memory that was allocated for one frame.
#[derive(Debug, Clone)]
pub(super) struct OneFrame;

impl Tie for OneFrame {
    const NAME: &'static glib::GStr = glib::gstr!("xmem-one-frame");
}

/// A GstCudaMemory.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CudaMemory<'a> {
    memory: &'a gst::MemoryRef,
    library: &'static Library,
}

impl<'a> CudaMemory<'a> {
    /// `None`: it is another kind of memory.
    pub(crate) fn of(memory: &'a gst::MemoryRef) -> Option<Self> {
        let library = Library::get()?;
        // SAFETY: a live memory.
        let is_cuda = unsafe { (library.is_cuda_memory)(memory.as_ptr().cast_mut()) } != 0;
        is_cuda.then_some(Self { memory, library })
    }

    /// The memory of a buffer. `None`: the buffer has several, or another kind.
    pub(crate) fn of_buffer(buffer: &'a gst::BufferRef) -> Option<Self> {
        let memory = (buffer.n_memory() == 1).then(|| buffer.peek_memory(0))?;
        Self::of(memory)
    }

    pub(super) fn as_ptr(self) -> *mut GstCudaMemory {
        self.memory.as_ptr().cast_mut().cast()
    }

    /// The layout of its planes.
    pub(crate) fn info(self) -> gst_video::VideoInfo {
        // SAFETY: a live GstCudaMemory. Its info is set when it is made, and copied here.
        unsafe { from_glib_none(&raw const (*self.as_ptr()).info) }
    }

    /// The context of the memory.
    pub(crate) fn context(self) -> CudaContext {
        // SAFETY: a live GstCudaMemory, which holds a reference to its context.
        unsafe { from_glib_none((*self.as_ptr()).context) }
    }

    /// The stream on which it is written and read. `None`: its last user has already waited.
    pub(crate) fn stream(self) -> Option<cuda::Stream> {
        // SAFETY: a live memory, which holds a reference to its stream.
        unsafe {
            let stream = (self.library.cuda_memory_get_stream)(self.as_ptr());
            let handle =
                (!stream.is_null()).then(|| (self.library.cuda_stream_get_handle)(stream))?;
            Some(cuda::Stream::from_raw(handle.addr() as u64))
        }
    }

    /// The address on the device. Bytes that the CPU wrote are first copied there, on the memory's stream. `None`: it cannot be
    /// mapped, for example because it is mapped for writing.
    pub(crate) fn device_ptr(self) -> Option<u64> {
        let memory = self.memory.as_ptr().cast_mut();
        // SAFETY: a live memory, unmapped in the same way as it was mapped. The address is valid while the memory lives.
        unsafe {
            let mut map = MaybeUninit::zeroed();
            let flags = gst::ffi::GST_MAP_READ | GST_MAP_CUDA;
            if gst::ffi::gst_memory_map(memory, map.as_mut_ptr(), flags) == 0 {
                return None;
            }
            let mut map = map.assume_init();
            let ptr = map.data.addr() as u64;
            gst::ffi::gst_memory_unmap(memory, &raw mut map);
            Some(ptr)
        }
    }

    /// Why other processes cannot open the memory. `None`: no reason is known.
    pub(crate) fn why_not_exportable(self) -> Option<&'static str> {
        let memory = self.memory.as_ptr().cast_mut();
        let has = |function: Option<unsafe extern "C" fn(_) -> _>| {
            // SAFETY: a live GstCudaMemory.
            function.is_some_and(|function| unsafe { function(memory) } != 0)
        };
        // SAFETY: as above.
        let method = unsafe { (self.library.cuda_memory_get_alloc_method)(self.as_ptr()) };
        if has(self.library.cuda_memory_is_from_fixed_pool) {
            Some("it is a decoder's surface")
        } else if has(self.library.cuda_memory_is_stream_ordered) {
            Some("it is of a stream-ordered pool")
        } else if tied::<OneFrame>(self.memory).is_some() {
            Some("it was allocated for this frame, since no slot was free or as a copy")
        } else if method != GST_CUDA_MEMORY_ALLOC_MALLOC {
            Some("it was not allocated by cuMemAlloc")
        } else {
            None
        }
    }
}
