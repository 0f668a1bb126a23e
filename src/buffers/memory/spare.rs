// SPDX-License-Identifier: MPL-2.0

//! Keeps buffers after their last reference is dropped, and reuses them with another slot.
//!
//! A kept buffer is a GstBuffer with one GstMemory, and with a GstVideoMeta if the caps are video. It holds no slot and no
//! other resource of a pool. A buffer is kept only if its memory and copies of that have no other reference, and nothing is
//! attached to buffer or memory.

// Writes fields of GstBuffer, GstMemory and GstVideoMeta for which the bindings have no functions.
#![allow(unsafe_code)]

use std::{
    cell::UnsafeCell,
    fmt, mem, ptr,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, TryLockError,
        atomic::{AtomicI32, Ordering},
    },
};

use gst::{
    ffi::{GstBuffer, GstMemory, GstMeta, GstMiniObject},
    glib,
};
use gst_video::ffi::{GstVideoMeta, gst_video_meta_api_get_type};

use super::{
    ffi,
    slot::{Contents, SlotRange},
};
use xmem_core::ReadLease;

use crate::buffers::tally::Tally;

/// The bits of a lock state that count mappings. The others count owners.
const MAPPED: i32 = 0xffff;

/// The initial state of a buffer, its memory and its meta. It is the same for all buffers of one layout.
#[derive(Clone, Copy)]
struct Initial {
    buffer: GstBuffer,
    memory: GstMemory,
    planes: Option<GstVideoMeta>,
}

/// The buffer that a memory belongs to.
pub(super) struct Owner {
    buffer: *mut GstBuffer,
    /// Null if it has none.
    planes: *mut GstVideoMeta,
    layout: Arc<Layout>,
    /// The list that keeps the buffer when its last reference is dropped. `None`: it is kept or being freed, or a GstBufferPool
    /// returns it. Only the thread that owns the buffer alone reads or writes this field. Other threads that hold the memory
    /// may read the other fields.
    list: UnsafeCell<Option<Arc<SpareBuffers>>>,
}

struct Layout {
    initial: Initial,
    size: usize,
    params: gst::AllocationParams,
}

// SAFETY: the pointers in `initial` are never dereferenced.
unsafe impl Send for Layout {}
// SAFETY: as above.
unsafe impl Sync for Layout {}

/// The kept buffers of one layout.
#[derive(Default)]
pub(crate) struct SpareBuffers(Mutex<List>);

#[derive(Default)]
struct List {
    is_open: bool,
    layout: Option<Arc<Layout>>,
    buffers: Vec<Spare>,
}

impl fmt::Debug for SpareBuffers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SpareBuffers").finish_non_exhaustive()
    }
}

impl List {
    /// Whether a buffer has the present layout, and buffers are kept.
    fn has_layout_of(&self, spare: &Spare) -> bool {
        let layout = self.layout.as_ref().filter(|_| self.is_open);
        layout.is_some_and(|layout| {
            let owner = spare.owner();
            owner.is_some_and(|owner| Arc::ptr_eq(layout, &owner.layout))
        })
    }
}

impl SpareBuffers {
    /// From now on buffers are kept.
    pub(crate) fn open(&self) {
        self.lock().is_open = true;
    }

    /// Frees the kept buffers. From now on none are kept.
    pub(crate) fn close(&self) {
        let list = mem::take(&mut *self.lock());
        drop(list);
    }

    fn lock(&self) -> MutexGuard<'_, List> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// `None`: another thread has locked the list. In a forked child that thread may not exist.
    fn try_lock(&self) -> Option<MutexGuard<'_, List>> {
        match self.0.try_lock() {
            Ok(list) => Some(list),
            Err(TryLockError::Poisoned(error)) => Some(error.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Takes a kept buffer, if there is one.
    pub(crate) fn take(&self) -> Option<Spare> {
        self.try_lock()?.buffers.pop()
    }

    /// Takes a kept buffer, or makes one with `make`. It is kept again when its last reference is dropped.
    pub(crate) fn take_or(
        self: &Arc<Self>,
        make: impl FnOnce() -> Option<gst::Buffer>,
    ) -> Option<Spare> {
        let spare = match self.take() {
            Some(spare) => spare,
            None => {
                let mut buffer = make()?;
                self.register(buffer.make_mut(), 0, &gst::AllocationParams::default());
                // SAFETY: a new buffer that no other code has.
                unsafe {
                    (*buffer.as_mut_ptr()).mini_object.dispose = Some(dispose);
                    let memory = memory_of(buffer.as_mut_ptr())?;
                    Spare { buffer, memory }
                }
            }
        };
        // SAFETY: no other code has the memory.
        if let Some(owner) = unsafe { &mut (*spare.memory).owner } {
            *owner.list.get_mut() = Some(self.clone());
        }
        Some(spare)
    }

    /// Puts an unused buffer back.
    pub(crate) fn put(&self, spare: Spare) {
        // A buffer that cannot be kept is freed after the lock is released.
        let _rest = match self.try_lock() {
            Some(mut list) if list.has_layout_of(&spare) => {
                list.buffers.push(spare);
                None
            }
            _ => Some(spare),
        };
    }

    /// Registers a new buffer, so that it can be kept later. All buffers since `open` must be made in the same way.
    pub(crate) fn register(
        &self,
        buffer: &mut gst::BufferRef,
        size: usize,
        params: &gst::AllocationParams,
    ) {
        if let Some(mut list) = self.try_lock().filter(|list| list.is_open) {
            // SAFETY: the caller has the only reference to the buffer.
            unsafe { set_owner(buffer.as_mut_ptr(), &mut list.layout, size, params) };
        }
    }

    /// Keeps a buffer that its last owner released, or frees it. Its lease ends here.
    pub(crate) fn keep(&self, buffer: gst::Buffer) {
        // SAFETY: a live buffer.
        if let Some(memory) = unsafe { recycle(buffer.as_mut_ptr()) } {
            self.put(Spare { buffer, memory });
        }
    }
}

/// A kept buffer. No other code has it or its memory, which holds no slot.
pub(crate) struct Spare {
    buffer: gst::Buffer,
    memory: *mut ffi::XmemMemory,
}

// SAFETY: the pointers are to parts of the buffer, which move with it.
unsafe impl Send for Spare {}

impl Spare {
    fn owner(&self) -> Option<&Owner> {
        // SAFETY: the buffer keeps its memory alive, and no other code has either.
        unsafe { (*self.memory).owner.as_ref() }
    }

    /// The size and parameters for which a slot must be acquired.
    pub(crate) fn layout(&self) -> Option<(usize, &gst::AllocationParams)> {
        let layout = &self.owner()?.layout;
        Some((layout.size, &layout.params))
    }

    /// Puts the buffer into a slot. `range` was made for its layout.
    pub(crate) fn fill(self, range: SlotRange, tally: &Arc<Tally>) -> gst::Buffer {
        if let Some((size, params)) = self.layout() {
            // SAFETY: as in `owner`.
            let slot = unsafe { &(*self.memory).slot };
            range.assign_to(&mut slot.lock(), size, params, tally);
        }
        self.buffer
    }

    /// The buffer, so that it can be described.
    pub(crate) fn buffer_mut(&mut self) -> &mut gst::BufferRef {
        // SAFETY: no other code has the buffer.
        unsafe { gst::BufferRef::from_mut_ptr(self.buffer.as_mut_ptr()) }
    }

    /// Puts a received frame into the buffer. The frame is in its slot.
    pub(crate) fn fill_received(self, lease: ReadLease, tally: &Arc<Tally>) -> gst::Buffer {
        let (contents, size) = Contents::of_received(lease, None, tally);
        // SAFETY: no other code has the memory.
        unsafe {
            *(*self.memory).slot.lock() = contents;
            (*self.memory).mem.maxsize = size;
            (*self.memory).mem.size = size;
        }
        self.buffer
    }
}

/// `GstMiniObject::dispose`: keeps the buffer, or lets GStreamer free it.
///
/// # Safety
///
/// GStreamer calls this with a buffer of [`SpareBuffers::take_or`] that has no references.
unsafe extern "C" fn dispose(object: *mut GstMiniObject) -> glib::ffi::gboolean {
    let buffer: *mut GstBuffer = object.cast();
    // SAFETY: by the caller. The buffer has no reference, so no other code accesses `list`. Other code may hold its memory and
    // read the other fields of `owner`.
    unsafe {
        let owner = memory_of(buffer).and_then(|memory| (*memory).owner.as_ref());
        let owner = owner.filter(|owner| owner.buffer == buffer);
        let Some(list) = owner.and_then(|owner| (*owner.list.get()).take()) else {
            return glib::ffi::GTRUE;
        };
        // The reference of the list. If the list drops it, this is called again, then without a list.
        gst::ffi::gst_mini_object_ref(object);
        list.keep(gst::Buffer::from_glib_full(buffer));
        glib::ffi::GFALSE
    }
}

/// The memory of a buffer, if it has only one and that is an XmemMemory.
///
/// # Safety
///
/// `buffer` is live.
unsafe fn memory_of(buffer: *mut GstBuffer) -> Option<*mut ffi::XmemMemory> {
    // SAFETY: by the caller. Only our allocators have this type name, and all their memories are `ffi::XmemMemory`.
    unsafe {
        if gst::ffi::gst_buffer_n_memory(buffer) != 1 {
            return None;
        }
        let memory = gst::ffi::gst_buffer_peek_memory(buffer, 0);
        ptr::eq((*(*memory).allocator).mem_type, ffi::MEMORY_TYPE.as_ptr()).then_some(memory.cast())
    }
}

/// Makes a buffer the owner of its memory. Does nothing if something is already attached to the buffer, such as a tracer's
/// data, because later attachments could then not be detected.
///
/// # Safety
///
/// The caller has the only reference to the buffer and its memory.
unsafe fn set_owner(
    buffer: *mut GstBuffer,
    layout: &mut Option<Arc<Layout>>,
    size: usize,
    params: &gst::AllocationParams,
) {
    // SAFETY: by the caller.
    unsafe {
        if !(*buffer).mini_object.priv_pointer.is_null() {
            return;
        }
        let Some(memory) = memory_of(buffer) else {
            return;
        };
        let planes: *mut GstVideoMeta =
            gst::ffi::gst_buffer_get_meta(buffer, gst_video_meta_api_get_type()).cast();
        if let Some(planes) = planes.as_mut() {
            // Like pools of GStreamer, so that elements do not remove the meta.
            planes.meta.flags |= gst::ffi::GST_META_FLAG_POOLED | gst::ffi::GST_META_FLAG_LOCKED;
        }
        let layout = layout.get_or_insert_with(|| {
            let initial = Initial {
                buffer: *buffer,
                memory: (*memory).mem,
                planes: planes.as_ref().copied(),
            };
            Arc::new(Layout {
                initial,
                size,
                params: *params,
            })
        });
        (*memory).owner = Some(Owner {
            buffer,
            planes,
            layout: layout.clone(),
            list: UnsafeCell::default(),
        });
    }
}

/// Releases the slot of a buffer that is to be kept, and restores the buffer's initial state. `None`: it cannot be kept.
///
/// # Safety
///
/// `buffer` is live, and the caller has a reference.
unsafe fn recycle(buffer: *mut GstBuffer) -> Option<*mut ffi::XmemMemory> {
    // SAFETY: by the caller. The checks come first: this is the only reference to the buffer, the buffer has the only one to
    // its memory, and the memory the only one to the slot. So no other thread accesses any of them.
    unsafe {
        let memory = memory_of(buffer)?;
        let owner = (*memory).owner.as_ref()?;
        let initial = &owner.layout.initial;
        let object = &raw mut (*memory).mem.mini_object;
        let is_unchanged = owner.buffer == buffer
            && (*buffer).mini_object.flags & gst::ffi::GST_BUFFER_FLAG_TAG_MEMORY == 0
            && is_unshared(
                &raw const (*buffer).mini_object,
                &initial.buffer.mini_object,
            )
            && is_unshared(object, &initial.memory.mini_object)
            && (*object).priv_pointer == buffer.cast()
            && (*object).lockstate & MAPPED == 0;
        if !is_unchanged || !clear_metas(buffer, owner.planes.cast()) {
            return None;
        }
        // A copy of the memory may share the slot without a reference to the memory.
        let slot = Arc::get_mut(&mut (*memory).slot)?;
        slot.get_mut().clear();
        restore(buffer, &raw mut (*memory).mem, owner);
        Some(memory)
    }
}

/// Whether there is only one reference, and nothing was attached since the object was made: parents, weak references, data.
///
/// # Safety
///
/// `object` is live, and the caller has a reference.
unsafe fn is_unshared(object: *const GstMiniObject, initial: &GstMiniObject) -> bool {
    // SAFETY: by the caller. GStreamer changes both words atomically. Acquire: pairs with the release of other owners'
    // references, so their accesses are complete.
    unsafe {
        AtomicI32::from_ptr((&raw const (*object).refcount).cast_mut()).load(Ordering::Acquire) == 1
            && (*object).priv_uint == initial.priv_uint
    }
}

/// Removes the metas that others added to a buffer. `false`: one cannot be removed, or `planes` is missing.
///
/// # Safety
///
/// The caller has the only reference to the buffer.
unsafe fn clear_metas(buffer: *mut GstBuffer, planes: *mut GstMeta) -> bool {
    // SAFETY: by the caller. `planes` is dereferenced only after it was found on the buffer.
    unsafe {
        loop {
            let mut state = ptr::null_mut();
            let (mut has_planes, mut other) = (planes.is_null(), ptr::null_mut::<GstMeta>());
            loop {
                let meta = gst::ffi::gst_buffer_iterate_meta(buffer, &mut state);
                if meta.is_null() {
                    break;
                } else if meta == planes && (*(*meta).info).api == gst_video_meta_api_get_type() {
                    has_planes = true;
                } else {
                    other = meta;
                }
            }
            if other.is_null() {
                return has_planes;
            }
            let stays = gst::ffi::GST_META_FLAG_POOLED | gst::ffi::GST_META_FLAG_LOCKED;
            if (*other).flags & stays != 0 {
                return false;
            }
            gst::ffi::gst_buffer_remove_meta(buffer, other);
        }
    }
}

/// Restores each field that other code can write.
///
/// # Safety
///
/// The caller has the only reference to the buffer and its memory, and `planes` of `owner` is on the buffer.
unsafe fn restore(buffer: *mut GstBuffer, memory: *mut GstMemory, owner: &Owner) {
    let initial = &owner.layout.initial;
    // SAFETY: by the caller.
    unsafe {
        (*buffer).mini_object.flags = initial.buffer.mini_object.flags;
        (*buffer).pts = initial.buffer.pts;
        (*buffer).dts = initial.buffer.dts;
        (*buffer).duration = initial.buffer.duration;
        (*buffer).offset = initial.buffer.offset;
        (*buffer).offset_end = initial.buffer.offset_end;
        // Without the lock that `freeze` added.
        (*memory).mini_object.lockstate = initial.memory.mini_object.lockstate;
        (*memory).mini_object.flags = initial.memory.mini_object.flags;
        (*memory).maxsize = initial.memory.maxsize;
        (*memory).align = initial.memory.align;
        (*memory).offset = initial.memory.offset;
        (*memory).size = initial.memory.size;
        if let (Some(planes), Some(initial)) = (owner.planes.as_mut(), &initial.planes) {
            *planes = GstVideoMeta {
                meta: GstMeta {
                    flags: initial.meta.flags,
                    info: planes.meta.info,
                },
                buffer,
                ..*initial
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::mpsc, thread};

    use super::*;
    use crate::buffers::{bufferpool::buffer_of, memory};

    fn take(list: &Arc<SpareBuffers>) -> gst::Buffer {
        let make = || Some(buffer_of([memory::empty()]));
        list.take_or(make).unwrap().buffer
    }

    #[test]
    fn a_buffer_is_kept_at_its_last_reference_until_the_list_is_closed() {
        gst::init().unwrap();
        let list = Arc::<SpareBuffers>::default();
        list.open();
        let (kept, out) = (take(&list), take(&list));
        let address = kept.as_ptr();
        let second = kept.clone();
        drop(kept);
        assert!(list.take().is_none(), "there is another reference");
        drop(second);
        assert_eq!(take(&list).as_ptr(), address);
        let layout = Arc::downgrade(list.lock().layout.as_ref().unwrap());
        list.close();
        drop(out);
        assert!(list.take().is_none());
        assert!(layout.upgrade().is_none(), "both are freed");
        assert_eq!(Arc::strong_count(&list), 1);
    }

    #[test]
    fn all_buffers_are_freed_with_the_list_under_concurrent_use() {
        gst::init().unwrap();
        let list = Arc::<SpareBuffers>::default();
        list.open();
        let (sender, receiver) = mpsc::sync_channel(4);
        let releasing = thread::spawn(move || receiver.into_iter().for_each(drop::<gst::Buffer>));
        for _ in 0..10_000 {
            sender.send(take(&list)).unwrap();
        }
        drop(sender);
        releasing.join().unwrap();
        let layout = Arc::downgrade(list.lock().layout.as_ref().unwrap());
        list.close();
        assert!(layout.upgrade().is_none(), "all are freed");
        assert_eq!(Arc::strong_count(&list), 1);
    }

    #[test]
    fn a_buffer_with_an_attached_value_is_not_kept() {
        unsafe extern "C" fn ignore(_: glib::ffi::gpointer, _: *mut GstMiniObject) {}

        gst::init().unwrap();
        let list = Arc::<SpareBuffers>::default();
        list.open();
        let tie = |buffer: &gst::Buffer| {
            let object = buffer.as_mut_ptr().cast();
            // SAFETY: a live object, and a function that does nothing.
            unsafe { gst::ffi::gst_mini_object_weak_ref(object, Some(ignore), ptr::null_mut()) };
        };
        let make = || {
            let buffer = buffer_of([memory::empty()]);
            tie(&buffer);
            Some(buffer)
        };
        drop(list.take_or(make));
        assert!(list.take().is_none(), "before it was noted");
        let buffer = take(&list);
        tie(&buffer);
        drop(buffer);
        assert!(list.take().is_none(), "afterwards");
    }
}
