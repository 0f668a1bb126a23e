// SPDX-License-Identifier: MPL-2.0

//! GstBuffers over slots: the allocator, the buffer pool, the memory, and the layout of planes.

pub(crate) mod allocator;
pub(crate) mod bufferpool;
mod kept;
pub(crate) mod memory;
pub(crate) mod planes;
pub(crate) mod tied;
