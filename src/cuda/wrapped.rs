// SPDX-License-Identifier: MPL-2.0

//! Slots on a device as GstCudaMemory, each made once.
//!
//! Elements keep textures of a memory with it, so that one for each frame would have them made anew. When the last reference
//! to such a memory goes, only the lease in it ends; the memory itself waits at home for the next frame in the same slot, as
//! the memories of GStreamer's own CUDA allocator do.
#![allow(unsafe_code)] // GstMemory is a C structure, and its end a C function

use std::collections::HashMap;
use std::mem;
use std::ptr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use gst::ffi::{GstMemory, GstMiniObject};
use gst::glib::ffi::{GFALSE, GTRUE, gboolean, gpointer};
use gst::glib::translate::*;
use gst::prelude::*;
use xmem_core::cuda::{self, CudaFrame, Device};
use xmem_core::{FrameMeta, Producer, PublishError, ReadLease, WriteLease};

use super::context::CudaContext;
use super::ffi::{
    GST_CUDA_MEMORY_TRANSFER_NEED_DOWNLOAD, GST_CUDA_MEMORY_TRANSFER_NEED_SYNC,
    GST_CUDA_MEMORY_TRANSFER_NEED_UPLOAD, GstCudaMemory, GstCudaStream,
};
use super::layout::Layout;
use super::library::{CAT, Library};
use super::memory::CudaMemory;
use crate::memory::{Tally, freeze, thaw};

/// A GstCudaStream.
#[derive(Debug)]
pub(crate) struct Stream(ptr::NonNull<GstCudaStream>);

// SAFETY: a mini object, whose reference count is atomic, around a stream, which may be used from any thread.
unsafe impl Send for Stream {}
// SAFETY: as above.
unsafe impl Sync for Stream {}

impl Stream {
    /// A stream of its own in a context.
    pub(crate) fn new(context: &CudaContext) -> Option<Self> {
        let library = Library::get()?;
        // SAFETY: a live context.
        let stream = unsafe { (library.cuda_stream_new)(context.as_ptr()) };
        ptr::NonNull::new(stream).map(Self)
    }

    /// The one that whoever uses a pool wants its memory to have.
    pub(crate) fn of_config(config: &gst::BufferPoolConfigRef) -> Option<Self> {
        let library = Library::get()?;
        // SAFETY: a live structure, which is only read. It returns a reference of its own.
        let stream =
            unsafe { (library.buffer_pool_config_get_cuda_stream)(config.as_ptr().cast_mut()) };
        ptr::NonNull::new(stream).map(Self)
    }

    /// The stream itself.
    pub(crate) fn handle(&self) -> cuda::Stream {
        // SAFETY: a live stream, which nobody destroys while there are references.
        Library::get().map_or(cuda::Stream::LEGACY_DEFAULT, |library| unsafe {
            cuda::Stream::from_raw((library.cuda_stream_get_handle)(self.0.as_ptr()).addr() as u64)
        })
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // SAFETY: the reference that this is.
        unsafe { gst::ffi::gst_mini_object_unref(self.0.as_ptr().cast()) };
    }
}

/// How far a slot is.
#[derive(Debug)]
enum Lease {
    Writable(WriteLease),
    /// Of this process's own pool.
    Published(ReadLease),
    Received(CudaFrame, Arc<Tally>),
    /// Nobody has the memory.
    Gone,
}

/// Where memory lies: the number of what it is a part of, and its address.
type Place = (u128, u64);

/// What is behind one memory.
#[derive(Debug)]
struct Slot {
    lease: Mutex<Lease>,
    home: Weak<Home>,
    place: Place,
    device: Device,
    stream: cuda::Stream,
}

impl Slot {
    fn lease(&self) -> MutexGuard<'_, Lease> {
        self.lease.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The memories of one layout, stream and context that nobody uses just now.
#[derive(Debug)]
pub(crate) struct Home {
    context: CudaContext,
    device: Device,
    stream: Option<Stream>,
    layout: Layout,
    idle: Mutex<Idle>,
}

#[derive(Debug, Default)]
struct Idle {
    memories: HashMap<Place, (u64, gst::Memory)>,
    /// How many were taken.
    taken: u64,
}

/// A memory that was not taken in so many frames goes: its slot is not used any more, or not there any more.
const KEPT_FOR: u64 = 1000;

impl Home {
    /// Without a stream, memory is on the default stream of the context.
    pub(crate) fn new(
        context: CudaContext,
        device: Device,
        stream: Option<Stream>,
        layout: Layout,
    ) -> Arc<Self> {
        Arc::new(Self {
            context,
            device,
            stream,
            layout,
            idle: Mutex::default(),
        })
    }

    /// Where the planes are in each of its memories.
    pub(crate) fn layout(&self) -> &Layout {
        &self.layout
    }

    /// The context that its memories are in.
    pub(crate) fn context(&self) -> &CudaContext {
        &self.context
    }

    /// The device.
    pub(crate) fn device(&self) -> &Device {
        &self.device
    }

    /// The stream on which its memories are written and read.
    pub(crate) fn stream(&self) -> cuda::Stream {
        self.stream
            .as_ref()
            .map_or(cuda::Stream::LEGACY_DEFAULT, Stream::handle)
    }

    /// A slot to write, which has room for the layout. `None`: it has not, or the library refuses.
    pub(crate) fn writable(self: &Arc<Self>, lease: WriteLease) -> Option<gst::Memory> {
        let slot = lease.cuda()?;
        let place = (slot.memory_number(), slot.ptr());
        if slot.len() < self.layout.info().size() {
            return None;
        }
        self.memory(place, Lease::Writable(lease), 0)
    }

    /// A received frame, for reading. What is put on the stream from here on waits for its producer's work; that was seen to
    /// before.
    pub(crate) fn readable(
        self: &Arc<Self>,
        frame: CudaFrame,
        tally: &Arc<Tally>,
    ) -> Option<gst::Memory> {
        let place = (frame.memory_number(), frame.ptr());
        let flags = gst::ffi::GST_MEMORY_FLAG_READONLY | GST_CUDA_MEMORY_TRANSFER_NEED_SYNC;
        self.memory(place, Lease::Received(frame, tally.clone()), flags)
    }

    /// Private memory, for when no slot is free.
    pub(crate) fn private(&self) -> Option<gst::Memory> {
        let library = Library::get()?;
        // SAFETY: live objects; null is the library's own allocator. It returns a new memory or null.
        unsafe {
            from_glib_full::<_, Option<gst::Memory>>((library.cuda_allocator_alloc)(
                ptr::null_mut(),
                self.context.as_ptr(),
                self.raw_stream(),
                self.layout.info().to_glib_none().0,
            ))
        }
    }

    fn raw_stream(&self) -> *mut GstCudaStream {
        self.stream
            .as_ref()
            .map_or(ptr::null_mut(), |stream| stream.0.as_ptr())
    }

    fn idle(&self) -> MutexGuard<'_, Idle> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn memory(self: &Arc<Self>, place: Place, lease: Lease, flags: u32) -> Option<gst::Memory> {
        let memory = self.take(place).or_else(|| self.wrap(place))?;
        *SlotMemory::of(&memory)?.0.lease() = lease;
        let raw = memory.as_ptr().cast_mut();
        // SAFETY: nobody else has the memory yet.
        unsafe { (*raw).mini_object.flags |= flags | GST_CUDA_MEMORY_TRANSFER_NEED_DOWNLOAD };
        Some(memory)
    }

    fn take(&self, place: Place) -> Option<gst::Memory> {
        let mut idle = self.idle();
        idle.taken += 1;
        idle.memories.remove(&place).map(|(_, memory)| memory)
    }

    /// A new memory for a place, in which nothing is leased yet.
    fn wrap(self: &Arc<Self>, place: Place) -> Option<gst::Memory> {
        let library = Library::get()?;
        let info = self.layout.to_wrap().ok()?;
        let slot = Box::new(Slot {
            lease: Mutex::new(Lease::Gone),
            home: Arc::downgrade(self),
            place,
            device: self.device.clone(),
            stream: self.stream(),
        });
        let slot = Box::into_raw(slot);
        // SAFETY: live objects, and an address on the device that the lease keeps valid while anybody uses the memory. The
        // slot is freed by `free`, with the memory; here, if there is none.
        unsafe {
            let memory = (library.cuda_allocator_alloc_wrapped)(
                ptr::null_mut(),
                self.context.as_ptr(),
                self.raw_stream(),
                info.to_glib_none().0,
                place.1,
                slot.cast(),
                Some(free),
            );
            if memory.is_null() {
                gst::warning!(CAT, "Cannot wrap device memory of {:?}", self.layout);
                drop(Box::from_raw(slot));
                return None;
            }
            (*memory.cast::<GstCudaMemory>()).info = *self.layout.info().to_glib_none().0;
            (*memory).mini_object.dispose = Some(dispose);
            Some(from_glib_full(memory))
        }
    }

    /// Keeps a memory whose last reference this is.
    fn keep(&self, place: Place, memory: gst::Memory) {
        // What goes is dropped when the lock is not held: memories are freed with the context pushed.
        let (replaced, old) = {
            let mut idle = self.idle();
            let taken = idle.taken;
            let old: Vec<_> = idle
                .memories
                .extract_if(|_, (at, _)| taken.saturating_sub(*at) > KEPT_FOR)
                .collect();
            (idle.memories.insert(place, (taken, memory)), old)
        };
        drop((replaced, old));
    }
}

/// `GDestroyNotify` of a wrapped memory.
unsafe extern "C" fn free(slot: gpointer) {
    // SAFETY: made by Box in `Home::wrap`; the library calls this once.
    drop(unsafe { Box::from_raw(slot.cast::<Slot>()) });
}

/// `GstMiniObject.dispose` of a wrapped memory: its last reference is gone.
unsafe extern "C" fn dispose(object: *mut GstMiniObject) -> gboolean {
    let memory: *mut GstMemory = object.cast();
    // SAFETY: GStreamer calls this for the memory that has it, once for each time that nobody has it any more.
    let Some(slot) = (unsafe { slot_of(memory) }) else {
        return GTRUE;
    };
    let lease = mem::replace(&mut *slot.lease(), Lease::Gone);
    let (device, stream) = (&slot.device, slot.stream);
    // What was put on the stream may still use the slot.
    match lease {
        Lease::Received(frame, tally) => {
            if let Err(failure) = frame.release_on(stream) {
                let error = failure.release_after(stream);
                gst::warning!(CAT, "A CPU waited for a frame to be read: {error}");
            }
            drop(tally);
        }
        Lease::Writable(lease) => stream.when_done(device, move || drop(lease)),
        Lease::Published(lease) => stream.when_done(device, move || drop(lease)),
        // It has waited at home, and is not wanted there any more.
        Lease::Gone => return GTRUE,
    }
    let Some(home) = slot.home.upgrade() else {
        return GTRUE;
    };
    // SAFETY: nobody has the memory; it becomes as it was when it was made, and the reference goes home.
    unsafe {
        thaw(memory);
        (*memory).mini_object.flags &= !(GST_CUDA_MEMORY_TRANSFER_NEED_DOWNLOAD
            | GST_CUDA_MEMORY_TRANSFER_NEED_UPLOAD
            | GST_CUDA_MEMORY_TRANSFER_NEED_SYNC);
        home.keep(slot.place, from_glib_none(memory));
    }
    GFALSE
}

/// # Safety
///
/// `memory` is a live memory.
unsafe fn slot_of<'a>(memory: *mut GstMemory) -> Option<&'a Slot> {
    let library = Library::get()?;
    // SAFETY: by the caller. Only our memories have this function, and those have a slot for as long as they live.
    unsafe {
        let is_ours = (*memory)
            .mini_object
            .dispose
            .is_some_and(|own| ptr::fn_addr_eq(own, dispose as unsafe extern "C" fn(_) -> _));
        let slot =
            is_ours.then(|| (library.cuda_memory_get_user_data)(memory.cast::<GstCudaMemory>()))?;
        slot.cast::<Slot>().as_ref()
    }
}

/// A memory of ours: a slot.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SlotMemory<'a>(&'a Slot, &'a gst::MemoryRef);

impl<'a> SlotMemory<'a> {
    /// `None`: it is another's.
    pub(crate) fn of(memory: &'a gst::MemoryRef) -> Option<Self> {
        // SAFETY: a live memory.
        unsafe { slot_of(memory.as_ptr().cast_mut()) }.map(|slot| Self(slot, memory))
    }

    /// Whether the slot is one that `producer` can publish.
    pub(crate) fn belongs_to(self, producer: &Producer) -> bool {
        match &*self.0.lease() {
            Lease::Writable(lease) => producer.owns(lease),
            Lease::Published(lease) => producer.owns_frame(lease),
            Lease::Received(..) | Lease::Gone => false,
        }
    }

    /// The lease of a frame that can be read.
    pub(crate) fn frame(self) -> Option<ReadLease> {
        match &*self.0.lease() {
            Lease::Published(lease) => Some(lease.clone()),
            Lease::Received(frame, _) => Some(frame.lease().clone()),
            Lease::Writable(_) | Lease::Gone => None,
        }
    }

    /// The received frame that it is the whole of.
    pub(crate) fn received(self) -> Option<ReadLease> {
        match &*self.0.lease() {
            Lease::Received(frame, _) => Some(frame.lease().clone()),
            _ => None,
        }
    }

    /// Publishes the slot, a second time with other metadata if it was published before. The memory is read-only from here on.
    pub(crate) fn publish(
        self,
        producer: &Producer,
        mut meta: FrameMeta,
    ) -> Result<u64, PublishError> {
        // Before the lock: what a CPU wrote is put on the stream.
        let memory = CudaMemory::of(self.1).filter(|memory| memory.device_ptr().is_some());
        let stream = memory.map_or(self.0.stream, CudaMemory::stream);
        meta.offset = 0;
        meta.size = self.1.size() as u64;
        let mut lease = self.0.lease();
        match &*lease {
            Lease::Published(frame) => return producer.republish(frame, meta),
            Lease::Received(..) | Lease::Gone => return Err(PublishError::OtherPool),
            Lease::Writable(_) => {}
        }
        // SAFETY: a live memory.
        unsafe { freeze(self.1.as_ptr().cast_mut()) };
        let Lease::Writable(write) = mem::replace(&mut *lease, Lease::Gone) else {
            return Err(PublishError::OtherPool);
        };
        match write.publish_on(stream, meta) {
            Ok(frame) => {
                let sequence = frame.meta().sequence;
                *lease = Lease::Published(frame);
                Ok(sequence)
            }
            Err(failure) => {
                *lease = Lease::Writable(failure.lease);
                Err(failure.error)
            }
        }
    }
}
