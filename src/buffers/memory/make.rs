// SPDX-License-Identifier: MPL-2.0

//! Creates memories, and fills and empties those of buffers that are kept.

// GstMemory is a C structure with C virtual functions. There is no safe way to define a new kind.
#![allow(unsafe_code)]

use std::{
    mem, ptr,
    sync::{
        Arc,
        atomic::{AtomicI32, Ordering},
    },
};

use gst::{glib::translate::*, prelude::*};
use xmem_core::{OwnSlot, ReadLease, WriteLease};

use super::{
    RawMemory, SlotOf, XmemMemory, XmemMemoryRef,
    slot::{Lease, Slot, thaw},
};
use crate::buffers::allocator::{Tally, XmemAllocator};

/// The size of a memory with its prefix and padding, in bytes.
pub(crate) fn total(size: usize, params: &gst::AllocationParams) -> Option<usize> {
    size.checked_add(params.prefix())?
        .checked_add(params.padding())
}

/// A slot, and the fields of the memory that is to cover it.
pub(crate) struct Content {
    slot: Slot,
    shape: Shape,
}

#[derive(Default)]
pub(super) struct Shape {
    pub(super) flags: gst::ffi::GstMemoryFlags,
    pub(super) maxsize: usize,
    pub(super) align: usize,
    pub(super) offset: usize,
    pub(super) size: usize,
}

impl Content {
    /// `size` bytes of a slot that is to be written. Their prefix begins at `base_offset` in the slot. `None`: the slot is too
    /// small.
    pub(crate) fn writable(
        lease: WriteLease,
        base_offset: usize,
        size: usize,
        params: &gst::AllocationParams,
        tally: &Arc<Tally>,
    ) -> Option<Self> {
        let maxsize = total(size, params)?;
        let end = base_offset.checked_add(maxsize)?;
        if end > lease.capacity() {
            return None;
        }
        let own = OwnSlot::from(lease);
        let base = own.as_ptr().wrapping_add(base_offset);
        let slot = Slot::new(Lease::Own(own), base, base_offset as u64, tally);
        let flags = params.flags();
        if flags.contains(gst::MemoryFlags::ZERO_PREFIXED) {
            // SAFETY: the slot is not published, so only its `OwnSlot` may write these bytes, and they end before `end`.
            unsafe { ptr::write_bytes(slot.base, 0, params.prefix()) };
        }
        if flags.contains(gst::MemoryFlags::ZERO_PADDED) {
            // SAFETY: as above.
            unsafe { ptr::write_bytes(slot.base.add(params.prefix() + size), 0, params.padding()) };
        }
        let shape = Shape {
            flags: flags.into_glib(),
            maxsize,
            align: params.align(),
            offset: params.prefix(),
            size,
        };
        Some(Self { slot, shape })
    }

    /// A received frame, or one mapped part of it. It is read-only.
    pub(crate) fn received(lease: ReadLease, part: Option<usize>, tally: &Arc<Tally>) -> Self {
        let bytes = match part.and_then(|index| lease.parts().get(index)) {
            Some(part) => part.map().unwrap_or_default(),
            None => lease.bytes().unwrap_or_default(),
        };
        let (base, size) = (bytes.as_ptr().cast_mut(), bytes.len());
        let offset = lease.meta().offset;
        let mut slot = Slot::new(Lease::Received(lease), base, offset, tally);
        slot.index = part.unwrap_or(0);
        let shape = Shape {
            flags: gst::ffi::GST_MEMORY_FLAG_READONLY,
            maxsize: size,
            size,
            ..Shape::default()
        };
        Self { slot, shape }
    }

    /// A new memory.
    pub(crate) fn into_memory(self, allocator: &XmemAllocator) -> gst::Memory {
        // SAFETY: the allocator is live. The wrapper takes over the only reference, which `raw` returns.
        unsafe {
            from_glib_full(raw(
                allocator.as_ptr().cast(),
                SlotOf::Own(self.slot),
                ptr::null_mut(),
                self.shape,
            ))
        }
    }

    /// Fills the memory of a buffer, which [`empty`] made or [`release`] emptied.
    pub(crate) fn put_into(self, buffer: &mut gst::BufferRef) -> Option<()> {
        let memory = buffer.peek_memory_mut(0).ok()?;
        let memory = memory.downcast_memory_mut::<XmemMemory>()?;
        let raw: *mut RawMemory = memory.as_mut_ptr();
        // SAFETY: a live memory that only the caller has.
        unsafe {
            (*raw).slot = SlotOf::Own(self.slot);
            let flags = self.shape.flags | gst::ffi::GST_MINI_OBJECT_FLAG_LOCKABLE;
            (*raw).mem.mini_object.flags = flags;
            (*raw).mem.maxsize = self.shape.maxsize;
            (*raw).mem.align = self.shape.align;
            (*raw).mem.offset = self.shape.offset;
            (*raw).mem.size = self.shape.size;
        }
        Some(())
    }
}

/// A memory without a slot, for a buffer that is kept.
pub(crate) fn empty(allocator: &XmemAllocator) -> gst::Memory {
    let content = Content {
        slot: Slot::default(),
        shape: Shape::default(),
    };
    content.into_memory(allocator)
}

/// Releases the slot of a buffer, so that its memory can be filled again. `false`: the memory is of another kind or not alone in
/// the buffer, or something else has it. Then the slot is released with the memory.
pub(crate) fn release(buffer: &mut gst::BufferRef) -> bool {
    if buffer.n_memory() != 1 {
        return false;
    }
    let memory = buffer.peek_memory(0).downcast_memory_ref::<XmemMemory>();
    let Some(raw) = memory.map(XmemMemoryRef::as_ptr) else {
        return false;
    };
    let raw: *mut RawMemory = raw.cast_mut();
    // SAFETY: a live memory. Nothing else has it if there is one reference, that of the buffer: parts and aliases of it have a
    // reference too. Acquire: pairs with the release of the other references.
    unsafe {
        let references = AtomicI32::from_ptr(&raw mut (*raw).mem.mini_object.refcount);
        if references.load(Ordering::Acquire) != 1 {
            return false;
        }
        let SlotOf::Own(slot) = &mut (*raw).slot else {
            return false;
        };
        if slot.is_mapped() {
            return false;
        }
        mem::take(slot);
        for _ in 0..mem::take(&mut (*raw).locks) {
            thaw(raw.cast(), true);
        }
    }
    buffer.peek_memory_mut(0).is_ok()
}

/// # Safety
///
/// `allocator` is a live XmemAllocator, and `parent` is null or a live memory of it over the same slot.
pub(super) unsafe fn raw(
    allocator: *mut gst::ffi::GstAllocator,
    slot: SlotOf,
    parent: *mut gst::ffi::GstMemory,
    shape: Shape,
) -> *mut gst::ffi::GstMemory {
    let memory = Box::into_raw(Box::<RawMemory>::new_uninit()).cast::<RawMemory>();
    // SAFETY: freshly allocated, and all fields are written before other code gets it. gst_memory_init takes its own references
    // to allocator and parent.
    unsafe {
        (&raw mut (*memory).slot).write(slot);
        (&raw mut (*memory).locks).write(0);
        gst::ffi::gst_memory_init(
            memory.cast(),
            shape.flags,
            allocator,
            parent,
            shape.maxsize,
            shape.align,
            shape.offset,
            shape.size,
        );
    }
    memory.cast()
}
