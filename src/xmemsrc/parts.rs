// SPDX-License-Identifier: MPL-2.0

//! Received frames that are not in their slot, as GstMemory.

// To wrap a descriptor is unsafe: it must be of the right kind and size.
#![allow(unsafe_code)]

use std::{
    os::fd::AsRawFd,
    sync::{Arc, LazyLock},
};

use gst::prelude::*;
use gst_allocators::{FdMemoryFlags, prelude::*};
use xmem_core::{Part, ReadLease};

use super::outcome::InvalidFrame;
use crate::{
    buffers::{memory, tally::Tally, tied::tie},
    stream::received::{ReceivedPart, TAG_DMABUF},
};

/// The memories of a frame in parts.
pub(super) fn memories(
    lease: &ReadLease,
    tally: &Arc<Tally>,
) -> Result<Vec<gst::Memory>, InvalidFrame> {
    let memory = |(index, part): (usize, &Part)| {
        if part.tag() == TAG_DMABUF
            && let Some(memory) = dmabuf(lease, index, part, tally)
        {
            return Ok(memory);
        }
        bytes(part)?;
        Ok(memory::readable(lease.clone(), Some(index), tally))
    };
    lease.parts().iter().enumerate().map(memory).collect()
}

/// The bytes of a part.
pub(super) fn bytes(part: &Part) -> Result<&[u8], InvalidFrame> {
    let unmappable = |error| InvalidFrame(format!("its memory cannot be mapped: {error}"));
    part.map().map_err(unmappable)
}

fn dmabuf(lease: &ReadLease, index: usize, part: &Part, tally: &Arc<Tally>) -> Option<gst::Memory> {
    static ALLOCATOR: LazyLock<gst_allocators::DmaBufAllocator> = LazyLock::new(|| {
        let allocator = gst_allocators::DmaBufAllocator::new();
        // SAFETY: every GstAllocator is a GstObject. The bindings do not declare it for this type.
        let object = unsafe { allocator.unsafe_cast_ref::<gst::Object>() };
        object.set_object_flags(gst::ObjectFlags::MAY_BE_LEAKED);
        allocator
    });
    let fd = part.fd()?.as_raw_fd();
    let end = part.offset().checked_add(part.len())?;
    // SAFETY: the lease that is tied to the memory below keeps the descriptor open, and DONT_CLOSE keeps the memory from
    // closing it.
    let memory = unsafe { ALLOCATOR.alloc_dmabuf_with_flags(fd, end, FdMemoryFlags::DONT_CLOSE) };
    let mut memory = memory.ok()?;
    let memory_ref = memory.get_mut()?;
    memory_ref.resize(part.offset()..end);
    // SAFETY: sets a flag of a memory that has no other user yet.
    unsafe {
        (*memory_ref.as_mut_ptr()).mini_object.flags |= gst::ffi::GST_MEMORY_FLAG_READONLY;
    }
    let received = ReceivedPart {
        frame: lease.clone(),
        index,
        _tally: tally.clone(),
    };
    tie(&memory, received);
    Some(memory)
}
