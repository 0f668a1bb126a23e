// SPDX-License-Identifier: MPL-2.0

//! GstCudaMemory: slots on CUDA devices in the form that GStreamer's own elements use.
//!
//! All of it depends on libgstcuda, which is loaded at run time. If the library is missing or older than 1.24, or if there is
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
pub(crate) use wrapped::{MemoryCache, SlotMemory};

/// Whether GstCudaMemory can be read and created here.
pub(crate) fn is_offered() -> bool {
    library::Library::get().is_some()
}
