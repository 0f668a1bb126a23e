// SPDX-License-Identifier: MPL-2.0

//! GstCudaMemory: slots on CUDA devices in the form of GStreamer's own elements.
//!
//! All of it goes through libgstcuda, which is loaded at run time. Where it is missing or older than 1.24, or where there is
//! no driver, `memory:CUDAMemory` is not offered.

mod context;
mod copier;
mod deferred;
mod ffi;
mod layout;
mod library;
mod memory;
mod pool;
mod stream;
mod wrapped;

pub(crate) use context::{CudaContext, shared, shared_by_all, to_share};
pub(crate) use copier::Copier;
pub(crate) use deferred::Deferred;
pub(crate) use layout::{Layout, planes};
pub(crate) use memory::CudaMemory;
pub(crate) use pool::XmemCudaBufferPool;
pub(crate) use stream::Stream;
pub(crate) use wrapped::{Home, SlotMemory};

/// Whether GstCudaMemory can be read and made here.
pub(crate) fn is_offered() -> bool {
    library::Library::get().is_some()
}
