// SPDX-License-Identifier: MPL-2.0

//! The properties of a GstCudaMemory of any allocator.
#![allow(unsafe_code)] // a C structure, and a library that is loaded

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

/// Private memory of the library's own. `None`: there is no room, or it does not know the format.
pub(crate) fn allocate(
    context: &CudaContext,
    stream: Option<&Stream>,
    info: &gst_video::VideoInfo,
) -> Option<gst::Memory> {
    let library = Library::get()?;
    // SAFETY: live objects; null is the library's own allocator, and the default stream. It returns a new memory or null.
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
    /// `None`: it is of another kind.
    pub(crate) fn of(memory: &'a gst::MemoryRef) -> Option<Self> {
        let library = Library::get()?;
        // SAFETY: a live memory.
        let is_cuda = unsafe { (library.is_cuda_memory)(memory.as_ptr().cast_mut()) } != 0;
        is_cuda.then_some(Self { memory, library })
    }

    /// The one memory of a buffer. `None`: it has several, or one of another kind.
    pub(crate) fn of_buffer(buffer: &'a gst::BufferRef) -> Option<Self> {
        let memory = (buffer.n_memory() == 1).then(|| buffer.peek_memory(0))?;
        Self::of(memory)
    }

    pub(super) fn as_ptr(self) -> *mut GstCudaMemory {
        self.memory.as_ptr().cast_mut().cast()
    }

    /// Where its planes lie.
    pub(crate) fn info(self) -> gst_video::VideoInfo {
        // SAFETY: a live GstCudaMemory, whose info is set when it is made, and copied here.
        unsafe { from_glib_none(&raw const (*self.as_ptr()).info) }
    }

    /// The context it is in.
    pub(crate) fn context(self) -> CudaContext {
        // SAFETY: a live GstCudaMemory, which holds a reference on its context.
        unsafe { from_glib_none((*self.as_ptr()).context) }
    }

    /// The stream on which it is written and read. `None`: its last user has waited for its work.
    pub(crate) fn stream(self) -> Option<cuda::Stream> {
        // SAFETY: a live memory, which holds a reference on its stream.
        unsafe {
            let stream = (self.library.cuda_memory_get_stream)(self.as_ptr());
            let handle =
                (!stream.is_null()).then(|| (self.library.cuda_stream_get_handle)(stream))?;
            Some(cuda::Stream::from_raw(handle.addr() as u64))
        }
    }

    /// Its address on the device. Bytes that the CPU wrote are put there first, on its stream. `None`: it cannot be mapped, for
    /// example because it is mapped for writing.
    pub(crate) fn device_ptr(self) -> Option<u64> {
        let memory = self.memory.as_ptr().cast_mut();
        // SAFETY: a live memory, unmapped as it was mapped. The address stays good for as long as the memory lives.
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

    /// Why other processes cannot have it where it lies. `None`: perhaps they can.
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
