// SPDX-License-Identifier: MPL-2.0

//! Buffers for upstream, each in a slot on a device.
#![allow(unsafe_code)] // extends a class of a library that is loaded at run time

mod imp;

use std::ptr;
use std::sync::Arc;

use gst::glib::subclass::types::IsSubclassable;
use gst::glib::translate::*;
use gst::{glib, prelude::*, subclass::prelude::*};
use xmem_core::cuda::Device;

use super::context::CudaContext;
use super::ffi;
use super::library::Library;
use crate::buffers::allocator::SlotSource;

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
    pub(crate) struct XmemCudaBufferPool(ObjectSubclass<imp::XmemCudaBufferPool>)
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
        pool.imp()
            .set_backing(context.clone(), device.clone(), slots.clone());
        Some(pool)
    }
}
