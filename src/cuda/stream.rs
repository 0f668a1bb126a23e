// SPDX-License-Identifier: MPL-2.0

//! GstCudaStream.
#![allow(unsafe_code)] // calls a library that is loaded at run time

use std::ptr;

use gst::prelude::*;
use xmem_core::cuda;

use super::context::CudaContext;
use super::ffi::GstCudaStream;
use super::library::Library;

/// A GstCudaStream.
#[derive(Debug)]
pub(crate) struct Stream(ptr::NonNull<GstCudaStream>);

// SAFETY: a mini object with an atomic reference count. Any thread may use the CUDA stream.
unsafe impl Send for Stream {}
// SAFETY: as above.
unsafe impl Sync for Stream {}

impl Stream {
    /// A new stream in a context.
    pub(crate) fn new(context: &CudaContext) -> Option<Self> {
        let library = Library::get()?;
        // SAFETY: a live context.
        let stream = unsafe { (library.cuda_stream_new)(context.as_ptr()) };
        ptr::NonNull::new(stream).map(Self)
    }

    /// The stream in the configuration of a buffer pool.
    pub(crate) fn of_config(config: &gst::BufferPoolConfigRef) -> Option<Self> {
        let library = Library::get()?;
        // SAFETY: a live structure, which is only read. The function returns a new reference.
        let stream =
            unsafe { (library.buffer_pool_config_get_cuda_stream)(config.as_ptr().cast_mut()) };
        ptr::NonNull::new(stream).map(Self)
    }

    /// Whether the stream is of this context.
    pub(super) fn is_of(&self, context: &CudaContext) -> bool {
        // SAFETY: a live stream, which has a context.
        ptr::eq(unsafe { (*self.as_ptr()).context }, context.as_ptr())
    }

    pub(super) fn as_ptr(&self) -> *mut GstCudaStream {
        self.0.as_ptr()
    }

    /// The CUDA stream.
    pub(crate) fn handle(&self) -> cuda::Stream {
        // SAFETY: a live stream. Callers keep a reference until their work is done, or drop the last one after queuing it: work
        // on a destroyed stream still runs to its end.
        Library::get().map_or(cuda::Stream::LEGACY_DEFAULT, |library| unsafe {
            cuda::Stream::from_raw((library.cuda_stream_get_handle)(self.0.as_ptr()).addr() as u64)
        })
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // SAFETY: drops the reference of this value.
        unsafe { gst::ffi::gst_mini_object_unref(self.0.as_ptr().cast()) };
    }
}
