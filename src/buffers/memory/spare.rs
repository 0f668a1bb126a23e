// SPDX-License-Identifier: MPL-2.0

//! Buffers that are kept when their last reference is gone, and handed out again with another slot.
//!
//! A kept buffer is a GstBuffer with one GstMemory, and a GstVideoMeta where the caps are video. It has no slot, and nothing
//! else of a pool. A buffer is kept only if there is no other reference to its memory or a copy of that, and nothing is
//! tied to either.

// Fields of GstBuffer, GstMemory and GstVideoMeta are written that the bindings have no functions for.
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
    slot::{Contents, Room},
};
use xmem_core::ReadLease;

use crate::buffers::tally::Tally;

/// The bits of a lock state that stand for mappings. The others stand for owners.
const MAPPED: i32 = 0xffff;

/// How a buffer, its memory and its meta were when they were made. All of one layout were the same.
#[derive(Clone, Copy)]
struct Fresh {
    buffer: GstBuffer,
    memory: GstMemory,
    planes: Option<GstVideoMeta>,
}

/// The buffer that a memory was made for.
pub(super) struct Home {
    buffer: *mut GstBuffer,
    /// Null if it has none.
    planes: *mut GstVideoMeta,
    layout: Arc<Layout>,
    /// Where the buffer goes with its last reference. `None`: it is kept or being freed, or a GstBufferPool returns it. Only the
    /// thread that has the buffer alone reads or writes it. Others may look at the home meanwhile, since they have the memory.
    list: UnsafeCell<Option<Arc<SpareBuffers>>>,
}

struct Layout {
    fresh: Fresh,
    size: usize,
    params: gst::AllocationParams,
}

// SAFETY: the pointers in `fresh` are never followed.
unsafe impl Send for Layout {}
// SAFETY: as above.
unsafe impl Sync for Layout {}

/// The buffers of one layout that are kept.
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
    /// Whether a buffer is like those that are made now, and is to be kept.
    fn has_layout_of(&self, spare: &Spare) -> bool {
        let layout = self.layout.as_ref().filter(|_| self.is_open);
        layout.is_some_and(|layout| {
            let home = spare.home();
            home.is_some_and(|home| Arc::ptr_eq(layout, &home.layout))
        })
    }
}

impl SpareBuffers {
    /// From now on buffers are kept.
    pub(crate) fn open(&self) {
        self.lock().is_open = true;
    }

    /// Frees the buffers that are kept. No more are kept.
    pub(crate) fn close(&self) {
        let list = mem::take(&mut *self.lock());
        drop(list);
    }

    fn lock(&self) -> MutexGuard<'_, List> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// `None`: another thread has the list, or a thread had it that a forked child does not have.
    fn try_lock(&self) -> Option<MutexGuard<'_, List>> {
        match self.0.try_lock() {
            Ok(list) => Some(list),
            Err(TryLockError::Poisoned(error)) => Some(error.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// A kept buffer, if there is one.
    pub(crate) fn take(&self) -> Option<Spare> {
        self.try_lock()?.buffers.pop()
    }

    /// A kept buffer, or one that `make` makes. It comes back with its last reference.
    pub(crate) fn take_or(
        self: &Arc<Self>,
        make: impl FnOnce() -> Option<gst::Buffer>,
    ) -> Option<Spare> {
        let spare = match self.take() {
            Some(spare) => spare,
            None => {
                let mut buffer = make()?;
                self.note_made(buffer.make_mut(), 0, &gst::AllocationParams::default());
                // SAFETY: a new buffer, which no other code has.
                unsafe {
                    (*buffer.as_mut_ptr()).mini_object.dispose = Some(dispose);
                    let memory = memory_of(buffer.as_mut_ptr())?;
                    Spare { buffer, memory }
                }
            }
        };
        // SAFETY: no other code has the memory.
        if let Some(home) = unsafe { &mut (*spare.memory).home } {
            *home.list.get_mut() = Some(self.clone());
        }
        Some(spare)
    }

    /// Takes back an unused buffer.
    pub(crate) fn put(&self, spare: Spare) {
        // A buffer that cannot be kept is freed after the list is released.
        let _rest = match self.try_lock() {
            Some(mut list) if list.has_layout_of(&spare) => {
                list.buffers.push(spare);
                None
            }
            _ => Some(spare),
        };
    }

    /// A buffer was made that may be kept later. All have been made in the same way since these were opened.
    pub(crate) fn note_made(
        &self,
        buffer: &mut gst::BufferRef,
        size: usize,
        params: &gst::AllocationParams,
    ) {
        if let Some(mut list) = self.try_lock().filter(|list| list.is_open) {
            // SAFETY: the caller has the buffer alone.
            unsafe { settle(buffer.as_mut_ptr(), &mut list.layout, size, params) };
        }
    }

    /// Keeps a buffer that its last owner released, or frees it. Its lease ends with it.
    pub(crate) fn keep(&self, buffer: gst::Buffer) {
        // SAFETY: a live buffer.
        if let Some(memory) = unsafe { empty(buffer.as_mut_ptr()) } {
            self.put(Spare { buffer, memory });
        }
    }
}

/// A buffer that was kept. No other code has it or its memory, which has no slot.
pub(crate) struct Spare {
    buffer: gst::Buffer,
    memory: *mut ffi::XmemMemory,
}

// SAFETY: the pointers are to the buffer's own parts, which go where it goes.
unsafe impl Send for Spare {}

impl Spare {
    fn home(&self) -> Option<&Home> {
        // SAFETY: the buffer keeps its memory, and no other code has either.
        unsafe { (*self.memory).home.as_ref() }
    }

    /// The layout of the slot to acquire.
    pub(crate) fn layout(&self) -> Option<(usize, &gst::AllocationParams)> {
        let layout = &self.home()?.layout;
        Some((layout.size, &layout.params))
    }

    /// The buffer in a slot. The room is one for its layout.
    pub(crate) fn fill(self, room: Room, tally: &Arc<Tally>) -> gst::Buffer {
        if let Some((size, params)) = self.layout() {
            // SAFETY: as in `home`.
            let slot = unsafe { &(*self.memory).slot };
            room.enter(&mut slot.lock(), size, params, tally);
        }
        self.buffer
    }

    /// The buffer, for its description.
    pub(crate) fn buffer_mut(&mut self) -> &mut gst::BufferRef {
        // SAFETY: no other code has the buffer.
        unsafe { gst::BufferRef::from_mut_ptr(self.buffer.as_mut_ptr()) }
    }

    /// The buffer with a received frame that lies in its slot.
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

/// `GstMiniObject::dispose`: keeps the buffer, or has it freed.
///
/// # Safety
///
/// GStreamer calls this with a buffer of [`SpareBuffers::take_or`] that has no references.
unsafe extern "C" fn dispose(object: *mut GstMiniObject) -> glib::ffi::gboolean {
    let buffer: *mut GstBuffer = object.cast();
    // SAFETY: by the caller. Without a reference no other code has the buffer, so none has the list. Other code may have its
    // memory, and read the rest of `home`.
    unsafe {
        let home = memory_of(buffer).and_then(|memory| (*memory).home.as_ref());
        let home = home.filter(|home| home.buffer == buffer);
        let Some(list) = home.and_then(|home| (*home.list.get()).take()) else {
            return glib::ffi::GTRUE;
        };
        // The list's. If it is dropped, this is called again, without a list.
        gst::ffi::gst_mini_object_ref(object);
        list.keep(gst::Buffer::from_glib_full(buffer));
        glib::ffi::GFALSE
    }
}

/// The one memory of a buffer, if it is one of ours.
///
/// # Safety
///
/// `buffer` is live.
unsafe fn memory_of(buffer: *mut GstBuffer) -> Option<*mut ffi::XmemMemory> {
    // SAFETY: by the caller. The name is that of our allocators alone, and all their memories are ours.
    unsafe {
        if gst::ffi::gst_buffer_n_memory(buffer) != 1 {
            return None;
        }
        let memory = gst::ffi::gst_buffer_peek_memory(buffer, 0);
        ptr::eq((*(*memory).allocator).mem_type, ffi::MEMORY_TYPE.as_ptr()).then_some(memory.cast())
    }
}

/// Makes a buffer the home of its memory, unless something is tied to the buffer already, as a tracer does: what is tied to it
/// later would not be noticed.
///
/// # Safety
///
/// The caller has the buffer and its memory alone.
unsafe fn settle(
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
            // As pools of GStreamer do, so that elements leave it there.
            planes.meta.flags |= gst::ffi::GST_META_FLAG_POOLED | gst::ffi::GST_META_FLAG_LOCKED;
        }
        let layout = layout.get_or_insert_with(|| {
            let fresh = Fresh {
                buffer: *buffer,
                memory: (*memory).mem,
                planes: planes.as_ref().copied(),
            };
            Arc::new(Layout {
                fresh,
                size,
                params: *params,
            })
        });
        (*memory).home = Some(Home {
            buffer,
            planes,
            layout: layout.clone(),
            list: UnsafeCell::default(),
        });
    }
}

/// Gives back the slot of a buffer that is to be kept, and makes the buffer as it was when it was new. `None`: it cannot be
/// kept.
///
/// # Safety
///
/// `buffer` is live, and the caller has a reference.
unsafe fn empty(buffer: *mut GstBuffer) -> Option<*mut ffi::XmemMemory> {
    // SAFETY: by the caller. The checks come first: this reference is the only one to the buffer, the buffer's is the only one
    // to its memory, and the memory's the only one to the slot. So no other thread reads or writes any of them.
    unsafe {
        let memory = memory_of(buffer)?;
        let home = (*memory).home.as_ref()?;
        let fresh = &home.layout.fresh;
        let object = &raw mut (*memory).mem.mini_object;
        let is_unchanged = home.buffer == buffer
            && (*buffer).mini_object.flags & gst::ffi::GST_BUFFER_FLAG_TAG_MEMORY == 0
            && is_alone(&raw const (*buffer).mini_object, &fresh.buffer.mini_object)
            && is_alone(object, &fresh.memory.mini_object)
            && (*object).priv_pointer == buffer.cast()
            && (*object).lockstate & MAPPED == 0;
        if !is_unchanged || !clear_metas(buffer, home.planes.cast()) {
            return None;
        }
        // A copy of the memory may share the slot, without a reference to the memory.
        let slot = Arc::get_mut(&mut (*memory).slot)?;
        slot.get_mut().clear();
        renew(buffer, &raw mut (*memory).mem, home);
        Some(memory)
    }
}

/// Whether there is one reference, and nothing is tied to the object that was not from the beginning: parents, weak
/// references, data.
///
/// # Safety
///
/// `object` is live, and the caller has a reference.
unsafe fn is_alone(object: *const GstMiniObject, fresh: &GstMiniObject) -> bool {
    // SAFETY: by the caller. GStreamer changes both words atomically. Acquire: the operations of other owners come before their
    // release of the object.
    unsafe {
        AtomicI32::from_ptr((&raw const (*object).refcount).cast_mut()).load(Ordering::Acquire) == 1
            && (*object).priv_uint == fresh.priv_uint
    }
}

/// Removes the metas that others put on a buffer. `false`: one cannot be removed, or `planes` is not there any more.
///
/// # Safety
///
/// The caller has the buffer alone.
unsafe fn clear_metas(buffer: *mut GstBuffer, planes: *mut GstMeta) -> bool {
    // SAFETY: by the caller. `planes` is not followed before it was found.
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

/// Writes all that others can write.
///
/// # Safety
///
/// The caller has the buffer and its memory alone, and `planes` of `home` is on it.
unsafe fn renew(buffer: *mut GstBuffer, memory: *mut GstMemory, home: &Home) {
    let fresh = &home.layout.fresh;
    // SAFETY: by the caller.
    unsafe {
        (*buffer).mini_object.flags = fresh.buffer.mini_object.flags;
        (*buffer).pts = fresh.buffer.pts;
        (*buffer).dts = fresh.buffer.dts;
        (*buffer).duration = fresh.buffer.duration;
        (*buffer).offset = fresh.buffer.offset;
        (*buffer).offset_end = fresh.buffer.offset_end;
        // Without the owner that `freeze` added.
        (*memory).mini_object.lockstate = fresh.memory.mini_object.lockstate;
        (*memory).mini_object.flags = fresh.memory.mini_object.flags;
        (*memory).maxsize = fresh.memory.maxsize;
        (*memory).align = fresh.memory.align;
        (*memory).offset = fresh.memory.offset;
        (*memory).size = fresh.memory.size;
        if let (Some(planes), Some(fresh)) = (home.planes.as_mut(), &fresh.planes) {
            *planes = GstVideoMeta {
                meta: GstMeta {
                    flags: fresh.meta.flags,
                    info: planes.meta.info,
                },
                buffer,
                ..*fresh
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
    fn a_buffer_comes_back_with_its_last_reference_until_the_list_is_closed() {
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
    fn buffers_that_are_released_while_others_are_taken_all_end_with_the_list() {
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
    fn a_buffer_that_something_is_tied_to_is_not_kept() {
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
