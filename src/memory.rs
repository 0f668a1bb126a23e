// SPDX-License-Identifier: MPL-2.0

//! A GstMemory over a slot: writable for the producer alone, and read-only for all once it is published.

// GstMemory is a C structure with C virtual functions; there is no safe way to make a new kind of it.
#![allow(unsafe_code)]

use std::{
    fmt, mem, ptr,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicU32, Ordering},
    },
};

use gst::{glib, glib::translate::*, prelude::*};
use xmem_core::{FrameMeta, PartLease, Parts, Producer, PublishError, ReadLease, WriteLease};

use crate::{allocator::XmemAllocator, lock, tally::Tally};

/// What `gst_memory_is_type` knows the memory as.
pub(crate) const MEMORY_TYPE: &glib::GStr = glib::gstr!("XmemMemory");

/// How far a slot is.
#[expect(
    clippy::large_enum_variant,
    reason = "a box would be an allocation for each frame"
)]
enum Lease {
    Writable(WriteLease),
    Published(ReadLease),
    /// It is a piece of a published frame that lies in several slots.
    Piece(PartLease),
    /// Between the two, under the lock only.
    Gone,
}

/// What all memories over one slot, or over one piece of a received frame, share.
struct Slot {
    /// The memories' first byte; offsets of a GstMemory count from here.
    base: *mut u8,
    /// Where `base` lies in the slot.
    base_offset: u64,
    /// Which piece of a received frame it is.
    index: usize,
    lease: Mutex<Lease>,
    tally: Arc<Tally>,
}

// SAFETY: `base` points into memory that `lease` keeps mapped. Nothing here reads or writes through it but the
// GstMemory functions below, under GStreamer's own rules for mapped memory, which hold in any thread.
unsafe impl Send for Slot {}
// SAFETY: as above; everything else in a Slot is Sync.
unsafe impl Sync for Slot {}

impl Slot {
    fn lease(&self) -> MutexGuard<'_, Lease> {
        lock(&self.lease)
    }
}

#[allow(unreachable_pub, missing_debug_implementations)] // the wrapper's public traits name it
mod ffi {
    use std::sync::Arc;

    /// The C structure behind [`XmemMemory`](super::XmemMemory).
    #[repr(C)]
    pub struct XmemMemory {
        pub(super) mem: gst::ffi::GstMemory,
        pub(super) slot: Arc<super::Slot>,
    }
}

// The macro below is written for use inside gstreamer-rs and expects this one to be there.
macro_rules! skip_assert_initialized {
    () => {};
}

gst::memory_object_wrapper!(
    XmemMemory,
    XmemMemoryRef,
    ffi::XmemMemory,
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
        let raw: *const ffi::XmemMemory = self.as_ptr();
        // SAFETY: an XmemMemoryRef is a live ffi::XmemMemory, and its slot is set before anybody sees it.
        unsafe { &(*raw).slot }
    }

    /// The pool that the frame came from. `None` before it is published.
    pub fn pool(&self) -> Option<String> {
        match &*self.shared().lease() {
            Lease::Published(lease) => Some(lease.pool().to_owned()),
            Lease::Writable(_) | Lease::Piece(_) | Lease::Gone => None,
        }
    }

    /// Number of the slot in its pool.
    pub fn slot(&self) -> Option<u32> {
        match &*self.shared().lease() {
            Lease::Writable(lease) => Some(lease.slot()),
            Lease::Piece(lease) => Some(lease.slot()),
            Lease::Published(lease) => Some(lease.info().slot),
            Lease::Gone => None,
        }
    }

    /// How often the slot was reused, never 0.
    pub fn generation(&self) -> Option<u32> {
        match &*self.shared().lease() {
            Lease::Writable(lease) => Some(lease.generation()),
            Lease::Piece(lease) => Some(lease.generation()),
            Lease::Published(lease) => Some(lease.info().generation),
            Lease::Gone => None,
        }
    }

    /// Number of the frame in its pool. `None` before it is published.
    pub fn sequence(&self) -> Option<u64> {
        match &*self.shared().lease() {
            Lease::Published(lease) => Some(lease.info().sequence),
            Lease::Writable(_) | Lease::Piece(_) | Lease::Gone => None,
        }
    }

    /// The frame. `None` before it is published.
    pub(crate) fn frame(&self) -> Option<ReadLease> {
        match &*self.shared().lease() {
            Lease::Published(lease) => Some(lease.clone()),
            Lease::Writable(_) | Lease::Piece(_) | Lease::Gone => None,
        }
    }

    /// Whether consumers may read it, and it can no longer be written.
    pub fn is_published(&self) -> bool {
        matches!(
            *self.shared().lease(),
            Lease::Published(_) | Lease::Piece(_)
        )
    }

    /// Whether the slot is one that `producer` can publish.
    pub(crate) fn belongs_to(&self, producer: &Producer) -> bool {
        match &*self.shared().lease() {
            Lease::Writable(lease) => producer.owns(lease),
            Lease::Published(lease) => producer.owns(lease),
            Lease::Piece(_) | Lease::Gone => false,
        }
    }

    /// Publishes the bytes that this memory covers, where they lie; a second time with other metadata if they were
    /// published before. The memory is read-only from here on.
    pub(crate) fn publish(
        &self,
        producer: &Producer,
        mut meta: FrameMeta,
    ) -> Result<u64, PublishError> {
        let slot = self.shared();
        let offset = slot.base_offset + self.offset() as u64;
        (meta.offset, meta.size) = (offset, self.size() as u64);
        // The slot's own lock, held so that the memory is not mapped for writing in between. Publishing never waits.
        let mut lease = slot.lease();
        match &*lease {
            Lease::Published(frame) => return producer.republish(frame, &meta),
            Lease::Piece(_) | Lease::Gone => return Err(PublishError::OtherPool),
            Lease::Writable(_) => {}
        }
        // Before anybody else sees the frame; should publishing fail, a writer gets a copy.
        let raw: *mut gst::ffi::GstMemory = self.as_ptr().cast_mut().cast();
        // SAFETY: `raw` is a live memory, and its parent lives as long as it does.
        unsafe {
            freeze(raw);
            if !(*raw).parent.is_null() {
                freeze((*raw).parent);
            }
        }
        let Lease::Writable(write) = mem::replace(&mut *lease, Lease::Gone) else {
            return Err(PublishError::OtherPool);
        };
        let sequence = match write.publish(meta) {
            Ok(frame) => {
                let sequence = frame.info().sequence;
                *lease = Lease::Published(frame);
                sequence
            }
            Err(failure) => {
                *lease = Lease::Writable(failure.lease);
                return Err(failure.error);
            }
        };
        Ok(sequence)
    }
}

impl XmemMemoryRef {
    /// Adds the bytes that this memory covers to the pieces of a frame. They are read-only from here on. `None`: they are not
    /// in a slot of this producer that can still become a piece.
    pub(crate) fn add_to(&self, parts: &mut Parts, producer: &Producer) -> Option<()> {
        let slot = self.shared();
        let mut lease = slot.lease();
        let is_its_own = match &*lease {
            Lease::Writable(write) => producer.owns(write),
            Lease::Piece(piece) => producer.owns(piece),
            Lease::Published(_) | Lease::Gone => false,
        };
        if !is_its_own {
            return None;
        }
        let raw: *mut gst::ffi::GstMemory = self.as_ptr().cast_mut().cast();
        // SAFETY: a live memory.
        unsafe { freeze(raw) };
        *lease = match mem::replace(&mut *lease, Lease::Gone) {
            Lease::Writable(write) => Lease::Piece(write.into_part()),
            before => before,
        };
        let Lease::Piece(piece) = &*lease else {
            return None;
        };
        let offset = slot.base_offset + self.offset() as u64;
        parts.add_slot(piece, offset, self.size() as u64, 0);
        Some(())
    }

    /// The received frame that this memory is the whole of a piece of, and which one.
    pub(crate) fn received(&self) -> Option<(ReadLease, usize)> {
        let slot = self.shared();
        let lease = slot.lease();
        let Lease::Published(frame) = &*lease else {
            return None;
        };
        let size = match frame.parts() {
            [] => frame.len(),
            parts => parts.get(slot.index)?.len(),
        };
        (self.offset() == 0 && self.size() == size).then(|| (frame.clone(), slot.index))
    }
}

/// Takes write access away from a memory for good.
///
/// # Safety
///
/// `mem` is a live GstMemory.
pub(crate) unsafe fn freeze(mem: *mut gst::ffi::GstMemory) {
    // SAFETY: both are words inside the live memory. GStreamer changes the lock state atomically, and does not
    // change the flags of a memory that is in use.
    unsafe {
        AtomicU32::from_ptr(&raw mut (*mem).mini_object.flags).fetch_or(
            gst::ffi::GST_MINI_OBJECT_FLAG_LOCK_READONLY,
            Ordering::Relaxed,
        );
        // A second exclusive owner for good: an upstream's own pool that used our allocator must not
        // take the memory back for its next frame. It fails while libav has the memory mapped, and then the
        // refusal in mem_map is what protects the slot.
        gst::ffi::gst_mini_object_lock(mem.cast(), gst::ffi::GST_LOCK_FLAG_EXCLUSIVE);
    }
}

/// Gives write access back that [`freeze`] or the memory's own read-only flag took.
///
/// # Safety
///
/// `mem` is a GstMemory without references.
pub(crate) unsafe fn thaw(mem: *mut gst::ffi::GstMemory) {
    // SAFETY: by the caller; these words have no other user.
    unsafe {
        let object = &mut (*mem).mini_object;
        object.flags &=
            !(gst::ffi::GST_MINI_OBJECT_FLAG_LOCK_READONLY | gst::ffi::GST_MEMORY_FLAG_READONLY);
        // A memory without users has no lock but that of `freeze`.
        object.lockstate = 0;
    }
}

/// A memory for a slot that is still to be written. It covers `size` bytes, `params.prefix()` bytes after the first
/// one at `base_offset` in the slot.
///
/// `None`: that does not fit into the slot.
pub(crate) fn writable(
    allocator: &XmemAllocator,
    lease: WriteLease,
    base_offset: usize,
    size: usize,
    params: &gst::AllocationParams,
    tally: &Arc<Tally>,
) -> Option<gst::Memory> {
    let maxsize = size
        .checked_add(params.prefix())?
        .checked_add(params.padding())?;
    if base_offset.checked_add(maxsize)? > lease.capacity() {
        return None;
    }
    let base = lease.as_ptr().wrapping_add(base_offset);
    let flags = params.flags();
    if flags.contains(gst::MemoryFlags::ZERO_PREFIXED) {
        // SAFETY: the lease is the only right to write these bytes, and they lie within it.
        unsafe { ptr::write_bytes(base, 0, params.prefix()) };
    }
    if flags.contains(gst::MemoryFlags::ZERO_PADDED) {
        // SAFETY: as above.
        unsafe { ptr::write_bytes(base.add(params.prefix() + size), 0, params.padding()) };
    }
    let slot = Slot {
        base,
        base_offset: base_offset as u64,
        index: 0,
        lease: Mutex::new(Lease::Writable(lease)),
        tally: tally.clone(),
    };
    let shape = Shape {
        flags: flags.into_glib(),
        maxsize,
        align: params.align(),
        offset: params.prefix(),
        size,
    };
    // SAFETY: the wrapper takes over the one reference that `raw` returns.
    let memory = unsafe {
        from_glib_full(raw(
            allocator.as_ptr().cast(),
            Arc::new(slot),
            ptr::null_mut(),
            shape,
        ))
    };
    Some(memory)
}

/// A read-only memory over a received frame, or over one piece of it, which is mapped.
pub(crate) fn readable(lease: ReadLease, piece: Option<usize>, tally: &Arc<Tally>) -> gst::Memory {
    let bytes = match piece.and_then(|index| lease.parts().get(index)) {
        Some(part) => part.map().unwrap_or_default(),
        None => lease.data(),
    };
    let size = bytes.len();
    let slot = Slot {
        base: bytes.as_ptr().cast_mut(),
        base_offset: lease.meta().offset,
        index: piece.unwrap_or(0),
        lease: Mutex::new(Lease::Published(lease)),
        tally: tally.clone(),
    };
    let shape = Shape {
        flags: gst::ffi::GST_MEMORY_FLAG_READONLY,
        maxsize: size,
        align: 0,
        offset: 0,
        size,
    };
    let allocator = XmemAllocator::of_received_frames();
    // SAFETY: the wrapper takes over the one reference that `raw` returns.
    unsafe {
        from_glib_full(raw(
            allocator.as_ptr().cast(),
            Arc::new(slot),
            ptr::null_mut(),
            shape,
        ))
    }
}

struct Shape {
    flags: gst::ffi::GstMemoryFlags,
    maxsize: usize,
    align: usize,
    offset: usize,
    size: usize,
}

/// # Safety
///
/// `allocator` is a live XmemAllocator, and `parent` is null or a live memory of it over the same slot.
unsafe fn raw(
    allocator: *mut gst::ffi::GstAllocator,
    slot: Arc<Slot>,
    parent: *mut gst::ffi::GstMemory,
    shape: Shape,
) -> *mut gst::ffi::GstMemory {
    let memory = Box::into_raw(Box::<ffi::XmemMemory>::new_uninit()).cast::<ffi::XmemMemory>();
    // SAFETY: freshly allocated, and both fields are written before anybody else sees it. gst_memory_init takes
    // references of its own on allocator and parent.
    unsafe {
        (&raw mut (*memory).slot).write(slot);
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

/// `GstAllocatorClass::free`.
///
/// # Safety
///
/// `mem` is an ffi::XmemMemory without references.
pub(crate) unsafe fn free(mem: *mut gst::ffi::GstMemory) {
    // SAFETY: made by Box in `raw`; GStreamer has finished with the C part.
    drop(unsafe { Box::from_raw(mem.cast::<ffi::XmemMemory>()) });
}

/// # Safety
///
/// `mem` is a live ffi::XmemMemory.
unsafe fn slot_of<'a>(mem: *mut gst::ffi::GstMemory) -> &'a Arc<Slot> {
    // SAFETY: by the caller; the slot is set before anybody sees the memory, and never changed.
    unsafe { &(*mem.cast::<ffi::XmemMemory>()).slot }
}

/// `GstAllocator::mem_map`. No write access to what is published, whatever the flags of this memory say: the frame
/// may have been published through another memory over the same slot.
pub(crate) unsafe extern "C" fn map(
    mem: *mut gst::ffi::GstMemory,
    _maxsize: usize,
    flags: gst::ffi::GstMapFlags,
) -> glib::ffi::gpointer {
    // SAFETY: GStreamer calls this with a live memory of our allocator.
    let slot = unsafe { slot_of(mem) };
    let allowed = match &*slot.lease() {
        Lease::Writable(_) => true,
        Lease::Published(_) | Lease::Piece(_) => flags & gst::ffi::GST_MAP_WRITE == 0,
        Lease::Gone => false,
    };
    if allowed {
        slot.base.cast()
    } else {
        ptr::null_mut()
    }
}

/// `GstAllocator::mem_unmap`. The slot stays mapped as long as it is out.
pub(crate) unsafe extern "C" fn unmap(_mem: *mut gst::ffi::GstMemory) {}

/// `GstAllocator::mem_copy`.
///
/// libav keeps the frames that it hands out mapped for writing, so that GStreamer, which then can take no second
/// exclusive reference, asks for a copy of each of them. Such a copy of a whole slot, asked for while it is
/// write-locked and before it is published, is a read-only alias of the slot. Any other copy is a real one.
pub(crate) unsafe extern "C" fn copy(
    mem: *mut gst::ffi::GstMemory,
    offset: isize,
    size: isize,
) -> *mut gst::ffi::GstMemory {
    // SAFETY: GStreamer calls this with a live memory of our allocator; `raw` gets that allocator and no parent
    // (a parent would have to be locked exclusively, which is what just failed).
    unsafe {
        let slot = slot_of(mem);
        let whole = offset == 0 && (size == -1 || size as usize == (*mem).size);
        let lockstate = AtomicU32::from_ptr((&raw mut (*mem).mini_object.lockstate).cast());
        let write_locked = lockstate.load(Ordering::Relaxed) & gst::ffi::GST_LOCK_FLAG_WRITE != 0;
        if whole && write_locked && matches!(*slot.lease(), Lease::Writable(_)) {
            let shape = Shape {
                flags: gst::ffi::GST_MEMORY_FLAG_READONLY,
                maxsize: (*mem).maxsize,
                align: (*mem).align,
                offset: (*mem).offset,
                size: (*mem).size,
            };
            return raw((*mem).allocator, slot.clone(), ptr::null_mut(), shape);
        }
        real_copy(mem, slot, offset, size)
    }
}

/// # Safety
///
/// `mem` is a live memory over `slot`.
unsafe fn real_copy(
    mem: *mut gst::ffi::GstMemory,
    slot: &Slot,
    offset: isize,
    size: isize,
) -> *mut gst::ffi::GstMemory {
    // SAFETY: by the caller. The copied range is checked against the memory's size; GstMemory's offsets are
    // unsigned numbers in signed types that may wrap.
    unsafe {
        let size = match size {
            -1 => (*mem).size.saturating_sub(offset as usize),
            size => size as usize,
        };
        let start = (*mem).offset.wrapping_add(offset as usize);
        if start
            .checked_add(size)
            .is_none_or(|end| end > (*mem).maxsize)
            || matches!(*slot.lease(), Lease::Gone)
        {
            return ptr::null_mut();
        }
        let copy = gst::ffi::gst_allocator_alloc(ptr::null_mut(), size, ptr::null_mut());
        let mut info = mem::MaybeUninit::<gst::ffi::GstMapInfo>::uninit();
        if copy.is_null() {
            return copy;
        }
        if gst::ffi::gst_memory_map(copy, info.as_mut_ptr(), gst::ffi::GST_MAP_WRITE)
            == glib::ffi::GFALSE
        {
            gst::ffi::gst_mini_object_unref(copy.cast());
            return ptr::null_mut();
        }
        ptr::copy_nonoverlapping(slot.base.add(start), (*info.as_ptr()).data, size);
        gst::ffi::gst_memory_unmap(copy, info.as_mut_ptr());
        slot.tally.note_copy();
        gst::debug!(
            gst::CAT_PERFORMANCE,
            "Copied {size} bytes out of a slot for an element that writes to them"
        );
        copy
    }
}

/// `GstAllocator::mem_share`: a read-only part of the memory, which refers to the whole.
pub(crate) unsafe extern "C" fn share(
    mem: *mut gst::ffi::GstMemory,
    offset: isize,
    size: isize,
) -> *mut gst::ffi::GstMemory {
    // SAFETY: GStreamer calls this with a live memory of our allocator, whose parent, if any, is one too.
    unsafe {
        let parent = if (*mem).parent.is_null() {
            mem
        } else {
            (*mem).parent
        };
        let start = (*mem).offset.wrapping_add(offset as usize);
        let size = match size {
            -1 => (*mem).size.wrapping_sub(offset as usize),
            size => size as usize,
        };
        if start
            .checked_add(size)
            .is_none_or(|end| end > (*mem).maxsize)
        {
            return ptr::null_mut();
        }
        let shape = Shape {
            flags: (*mem).mini_object.flags | gst::ffi::GST_MINI_OBJECT_FLAG_LOCK_READONLY,
            maxsize: (*mem).maxsize,
            align: (*mem).align,
            offset: start,
            size,
        };
        raw((*mem).allocator, slot_of(mem).clone(), parent, shape)
    }
}

/// `GstAllocator::mem_is_span`: whether the second part follows the first one. GStreamer has checked that both have
/// the same parent.
pub(crate) unsafe extern "C" fn is_span(
    first: *mut gst::ffi::GstMemory,
    second: *mut gst::ffi::GstMemory,
    offset: *mut usize,
) -> glib::ffi::gboolean {
    // SAFETY: GStreamer calls this with two live memories of our allocator that have a parent.
    unsafe {
        if !offset.is_null() {
            // Counted from the parent's own offset, as gst_memory_share on the parent wants it.
            *offset = (*first).offset.wrapping_sub((*(*first).parent).offset);
        }
        let end = (*first).offset.wrapping_add((*first).size);
        (end == (*second).offset).into_glib()
    }
}
