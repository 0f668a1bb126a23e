// SPDX-License-Identifier: MPL-2.0

//! A GstMemory over a slot: writable only by the producer, and read-only after it is published.

// GstMemory is a C structure with C virtual functions. There is no safe way to define a new kind.
#![allow(unsafe_code)]

mod calls;
mod make;
pub(crate) mod slot;

use std::fmt;

use gst::{
    glib::{self, translate::*},
    prelude::*,
};
use xmem_core::ReadLease;

pub(crate) use calls::{copy, free, is_span, map, share, unmap};
pub(crate) use make::{Content, empty, release, total};

use crate::buffers::allocator::XmemAllocator;
use slot::{Lease, Slot};

/// The type name of the memory, for `gst_memory_is_type`. A static, because its address is compared, and the compiler may copy a
/// constant.
pub(crate) static MEMORY_TYPE: &glib::GStr = glib::gstr!("XmemMemory");

/// The C structure behind [`XmemMemory`].
#[repr(C)]
#[allow(unreachable_pub, missing_debug_implementations)] // the public traits of the wrapper name it
pub struct RawMemory {
    mem: gst::ffi::GstMemory,
    /// Changes only while no other code has the memory.
    slot: SlotOf,
    /// How often `freeze` locked the memory. Changes under the lock of the slot.
    locks: u32,
}

/// The slot of a memory.
enum SlotOf {
    Own(Slot),
    /// That of another memory, which has it as `Own`.
    Other(gst::Memory),
}

// The macro below is meant for use inside gstreamer-rs, and expects this macro.
macro_rules! skip_assert_initialized {
    () => {};
}

gst::memory_object_wrapper!(
    XmemMemory,
    XmemMemoryRef,
    RawMemory,
    |mem: &gst::MemoryRef| mem.allocator().is_some_and(|a| a.is::<XmemAllocator>()),
    gst::Memory,
    gst::MemoryRef
);

impl fmt::Debug for XmemMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&**self, f)
    }
}

impl fmt::Debug for XmemMemoryRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("XmemMemory")
            .field("pool", &self.pool())
            .field("slot", &self.slot())
            .field("generation", &self.generation())
            .field("sequence", &self.sequence())
            .finish_non_exhaustive()
    }
}

impl XmemMemoryRef {
    fn shared(&self) -> &Slot {
        let raw: *const RawMemory = self.as_ptr();
        // SAFETY: an XmemMemoryRef is a live RawMemory.
        unsafe { calls::slot_of(raw.cast_mut().cast()).0 }
    }

    /// The pool that the frame came from. `None` before it is published.
    pub fn pool(&self) -> Option<String> {
        match &*self.shared().lease() {
            Lease::Own(slot) => slot.sequence().map(|_| slot.pool().to_owned()),
            Lease::Received(lease) => Some(lease.pool().to_owned()),
            Lease::Part(_) | Lease::Gone => None,
        }
    }

    /// Number of the slot in its pool.
    pub fn slot(&self) -> Option<u32> {
        match &*self.shared().lease() {
            Lease::Own(slot) => Some(slot.slot()),
            Lease::Part(lease) => Some(lease.slot()),
            Lease::Received(lease) => Some(lease.info().slot),
            Lease::Gone => None,
        }
    }

    /// How often the slot was reused, never 0.
    pub fn generation(&self) -> Option<u32> {
        match &*self.shared().lease() {
            Lease::Own(slot) => Some(slot.generation()),
            Lease::Part(lease) => Some(lease.generation()),
            Lease::Received(lease) => Some(lease.info().generation),
            Lease::Gone => None,
        }
    }

    /// Number of the frame in its pool. `None` before it is published.
    pub fn sequence(&self) -> Option<u64> {
        match &*self.shared().lease() {
            Lease::Own(slot) => slot.sequence(),
            Lease::Received(lease) => Some(lease.info().sequence),
            Lease::Part(_) | Lease::Gone => None,
        }
    }

    /// Whether the memory is published: consumers may read it, and it can no longer be written.
    pub fn is_published(&self) -> bool {
        match &*self.shared().lease() {
            Lease::Own(slot) => slot.sequence().is_some(),
            Lease::Received(_) | Lease::Part(_) => true,
            Lease::Gone => false,
        }
    }

    /// The received frame, and the index of the part that this memory covers completely.
    pub(crate) fn received(&self) -> Option<(ReadLease, usize)> {
        let slot = self.shared();
        let lease = slot.lease();
        let Lease::Received(frame) = &*lease else {
            return None;
        };
        let size = match frame.parts() {
            [] => frame.size() as usize,
            parts => parts.get(slot.index)?.len(),
        };
        (self.offset() == 0 && self.size() == size).then(|| (frame.clone(), slot.index))
    }
}
