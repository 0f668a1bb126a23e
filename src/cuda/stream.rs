// SPDX-License-Identifier: MPL-2.0

//! GstCudaStream.
#![allow(unsafe_code)] // a library that is loaded

use std::ptr;

use gst::prelude::*;
use xmem_core::cuda;

use super::context::CudaContext;
use super::ffi::GstCudaStream;
use super::library::Library;

/// A GstCudaStream.
#[derive(Debug)]
pub(crate) struct Stream(ptr::NonNull<GstCudaStream>);

// SAFETY: a mini object, whose reference count is atomic, around a stream, which may be used from any thread.
unsafe impl Send for Stream {}
// SAFETY: as above.
unsafe impl Sync for Stream {}

impl Stream {
    /// A stream of its own in a context.
    pub(crate) fn new(context: &CudaContext) -> Option<Self> {
        let library = Library::get()?;
        // SAFETY: a live context.
        let stream = unsafe { (library.cuda_stream_new)(context.as_ptr()) };
        ptr::NonNull::new(stream).map(Self)
    }

    /// The stream that the configuration of a pool asks for.
    pub(crate) fn of_config(config: &gst::BufferPoolConfigRef) -> Option<Self> {
        let library = Library::get()?;
        // SAFETY: a live structure, which is only read. It returns a reference of its own.
        let stream =
            unsafe { (library.buffer_pool_config_get_cuda_stream)(config.as_ptr().cast_mut()) };
        ptr::NonNull::new(stream).map(Self)
    }

    /// Whether it is of this context.
    pub(super) fn is_of(&self, context: &CudaContext) -> bool {
        // SAFETY: a live stream, which has a context.
        ptr::eq(unsafe { (*self.as_ptr()).context }, context.as_ptr())
    }

    pub(super) fn as_ptr(&self) -> *mut GstCudaStream {
        self.0.as_ptr()
    }

    /// The stream itself.
    pub(crate) fn handle(&self) -> cuda::Stream {
        // SAFETY: a live stream. A user keeps a reference until its work is done, or drops the last one after
        // it: work on a stream that is destroyed still runs to its end.
        Library::get().map_or(cuda::Stream::LEGACY_DEFAULT, |library| unsafe {
            cuda::Stream::from_raw((library.cuda_stream_get_handle)(self.0.as_ptr()).addr() as u64)
        })
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // SAFETY: the reference that this is.
        unsafe { gst::ffi::gst_mini_object_unref(self.0.as_ptr().cast()) };
    }
}
