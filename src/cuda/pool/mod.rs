// SPDX-License-Identifier: MPL-2.0

//! Buffers for upstream, each in a slot of its own on a device.
#![allow(unsafe_code)] // a class of a library that is loaded

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
    /// GstCudaBufferPool: elements take a pool of no other class for CUDA memory.
    pub(crate) struct CudaBufferPool(Object<ffi::GstCudaBufferPool, ffi::GstCudaBufferPoolClass>)
        @extends gst::BufferPool, gst::Object;

    match fn {
        type_ => || Library::get().map_or(glib::gobject_ffi::G_TYPE_INVALID, |library| (library.cuda_buffer_pool_get_type)()),
    }
}

// SAFETY: the structures are as large as the library's (`Library::check_sizes`), and the class adds nothing to its parent's.
unsafe impl<T: BufferPoolImpl> IsSubclassable<T> for CudaBufferPool {}

glib::wrapper! {
    /// A pool whose buffers lie in slots on a device, and in private device memory when none is free.
    pub(crate) struct XmemCudaBufferPool(ObjectSubclass<imp::XmemCudaBufferPool>)
        @extends CudaBufferPool, gst::BufferPool, gst::Object;
}

impl XmemCudaBufferPool {
    /// `None`: the library is not there.
    pub(crate) fn new(
        context: &CudaContext,
        device: &Device,
        slots: &Arc<SlotSource>,
    ) -> Option<Self> {
        Library::get()?;
        let pool = glib::Object::new::<Self>();
        let raw: *mut ffi::GstCudaBufferPool = pool.upcast_ref::<CudaBufferPool>().as_ptr();
        // SAFETY: a new pool. The class that it is of gives this reference up when the pool goes.
        unsafe {
            debug_assert!(ptr::eq((*raw).context, ptr::null()));
            (*raw).context = context.to_glib_full();
        }
        pool.imp()
            .set_backing(context.clone(), device.clone(), slots.clone());
        Some(pool)
    }
}
