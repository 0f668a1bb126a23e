// SPDX-License-Identifier: MPL-2.0

//! Caches GstCudaMemory over slots on a device.
//!
//! Elements cache textures in a memory, and would create them again for each new memory. So when the last reference to such a
//! memory is dropped, only its lease ends. The memory is kept for the next frame in the same slot, as GStreamer's own CUDA
//! allocator does.
#![allow(unsafe_code)] // GstMemory is a C structure, and its dispose function is C

use std::collections::HashMap;
use std::mem;
use std::ptr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use gst::ffi::{GstMemory, GstMiniObject};
use gst::glib::ffi::{GFALSE, GTRUE, gboolean, gpointer};
use gst::glib::translate::*;
use gst::prelude::*;
use xmem_core::cuda::{self, CudaFrame, Device, PrivateMemory};
use xmem_core::{FrameMeta, Producer, PublishError, ReadLease, WriteLease};

use super::context::CudaContext;
use super::ffi::{
    GST_CUDA_MEMORY_TRANSFER_NEED_DOWNLOAD, GST_CUDA_MEMORY_TRANSFER_NEED_SYNC,
    GST_CUDA_MEMORY_TRANSFER_NEED_UPLOAD, GstCudaMemory,
};
use super::layout::Layout;
use super::library::{CAT, Library};
use super::memory::{self, OneFrame};
use super::stream::Stream;
use crate::buffers::allocator::Tally;
use crate::buffers::memory::slot::{freeze, thaw};
use crate::buffers::tied::tie;
use crate::later::drop_later;
use crate::lock;

/// The state of a slot.
#[derive(Debug)]
enum Lease {
    Writable(WriteLease),
    /// Of a pool of this process. `is_locked`: what [`freeze`] returned.
    Published {
        frame: ReadLease,
        is_locked: bool,
    },
    Received(Reading),
    /// The memory is not in use.
    Gone,
}

/// A received frame, and the stream that reads it besides the memory's.
#[derive(Debug)]
struct Reading {
    frame: CudaFrame,
    /// The stream that downstream uses, which may differ from the memory's. `None`: unknown.
    stream: Option<Arc<Stream>>,
    _tally: Arc<Tally>,
}

impl Reading {
    /// Releases the frame after the work of the streams that may read it.
    fn end(self, own: &Stream) {
        let device = self.frame.device().clone();
        let streams = [own.handle(), of_reader(self.stream.as_ref())];
        if let Err(failure) = self.frame.release_on_all(&streams) {
            gst::warning!(CAT, "A CPU waits for a frame to be read: {}", failure.error);
            let _ = streams[1].synchronize(&device);
            failure.release_after(streams[0]);
        }
    }
}

/// The stream that downstream uses.
fn of_reader(stream: Option<&Arc<Stream>>) -> cuda::Stream {
    // The legacy default stream waits for all streams of the context except non-blocking ones, and GStreamer creates none of those.
    stream.map_or(cuda::Stream::LEGACY_DEFAULT, |stream| stream.handle())
}

/// Private memory, and the streams that read it: the memory's and the one that downstream uses.
struct Private {
    memory: Option<PrivateMemory>,
    stream: Arc<Stream>,
    reader: Option<Arc<Stream>>,
}

/// Frees the memory after the work of the streams, because the driver need not wait for it.
impl Drop for Private {
    fn drop(&mut self) {
        let Some(memory) = self.memory.take() else {
            return;
        };
        let device = memory.device().clone();
        let streams = vec![self.stream.handle(), of_reader(self.reader.as_ref())];
        let kept = KeptStreams(Some((self.stream.clone(), self.reader.take())));
        cuda::drop_later((memory, kept), &device, streams);
    }
}

/// The streams exist until the memory is freed.
struct KeptStreams(Option<(Arc<Stream>, Option<Arc<Stream>>)>);

/// On another thread, because the last reference to a stream destroys it.
impl Drop for KeptStreams {
    fn drop(&mut self) {
        drop_later(self.0.take());
    }
}

/// Identifies memory: the number of the allocation, and the address.
type Place = (u128, u64);

/// The slot behind one memory.
#[derive(Debug)]
struct Slot {
    lease: Mutex<Lease>,
    cache: Weak<MemoryCache>,
    place: Place,
    device: Device,
    stream: Arc<Stream>,
}

impl Slot {
    fn lease(&self) -> MutexGuard<'_, Lease> {
        lock(&self.lease)
    }
}

/// The unused memories of one layout, stream and context.
#[derive(Debug)]
pub(crate) struct MemoryCache {
    context: CudaContext,
    device: Device,
    stream: Arc<Stream>,
    layout: Layout,
    idle: Mutex<Idle>,
}

#[derive(Debug, Default)]
struct Idle {
    memories: HashMap<Place, (u64, gst::Memory)>,
    /// Counts the memories that were taken.
    taken: u64,
}

/// A memory that was not taken for this many frames is freed, because its slot is unused or no longer exists.
const KEPT_FOR: u64 = 1000;

impl MemoryCache {
    /// `stream` belongs to `context`, and `context` to `device`.
    pub(crate) fn new(
        context: CudaContext,
        device: Device,
        stream: Arc<Stream>,
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

    /// The layout of all its memories.
    pub(crate) fn layout(&self) -> &Layout {
        &self.layout
    }

    /// The context of its memories.
    pub(crate) fn context(&self) -> &CudaContext {
        &self.context
    }

    /// The device.
    pub(crate) fn device(&self) -> &Device {
        &self.device
    }

    /// The stream on which its memories are written and read.
    pub(crate) fn stream(&self) -> &Arc<Stream> {
        &self.stream
    }

    /// A memory for a slot that is to be written. `None`: the slot is too small for the layout, or the library fails.
    pub(crate) fn writable(self: &Arc<Self>, lease: WriteLease) -> Option<gst::Memory> {
        let slot = lease.cuda()?;
        let place = (slot.memory_number(), slot.ptr());
        if slot.len() < self.layout.info().size() {
            return None;
        }
        // Another stream may have used the slot.
        slot.wait_on(self.stream.handle())
            .inspect_err(|error| gst::warning!(CAT, "Cannot wait for a slot: {error}"))
            .ok()?;
        self.memory(place, Lease::Writable(lease), 0)
    }

    /// A read-only memory for a received frame. `reader` is the stream that downstream uses, if known. The caller has already
    /// made the memory's stream wait for the producer's work.
    pub(crate) fn readable(
        self: &Arc<Self>,
        frame: CudaFrame,
        reader: Option<&Arc<Stream>>,
        tally: &Arc<Tally>,
    ) -> Option<gst::Memory> {
        let place = (frame.memory_number(), frame.ptr());
        let flags = gst::ffi::GST_MEMORY_FLAG_READONLY | GST_CUDA_MEMORY_TRANSFER_NEED_SYNC;
        let reading = Reading {
            frame,
            stream: reader.cloned(),
            _tally: tally.clone(),
        };
        self.memory(place, Lease::Received(reading), flags)
    }

    /// Private memory, used if no slot is free. It has its own layout.
    pub(crate) fn private(&self) -> Option<gst::Memory> {
        let memory = memory::allocate(&self.context, Some(&self.stream), self.layout.info())?;
        tie(&memory, OneFrame);
        Some(memory)
    }

    /// Wraps private memory of xmem that has this layout. `reader` is the stream that downstream uses, if known.
    pub(crate) fn wrap_private(
        &self,
        private: PrivateMemory,
        reader: Option<&Arc<Stream>>,
    ) -> Option<gst::Memory> {
        if private.len() < self.layout.info().size() {
            return None;
        }
        let ptr = private.ptr();
        let private = Private {
            memory: Some(private),
            stream: self.stream.clone(),
            reader: reader.cloned(),
        };
        // SAFETY: the GstMemory owns the private memory, and frees it when it is freed.
        let memory = unsafe { self.wrap(ptr, Box::new(private)) }?;
        // Opening it in other processes would take longer than a copy.
        tie(&memory, OneFrame);
        Some(memory)
    }

    fn idle(&self) -> MutexGuard<'_, Idle> {
        lock(&self.idle)
    }

    fn memory(self: &Arc<Self>, place: Place, lease: Lease, flags: u32) -> Option<gst::Memory> {
        let memory = self.take(place).or_else(|| self.of_slot(place))?;
        *SlotMemory::of(&memory)?.0.lease() = lease;
        let raw = memory.as_ptr().cast_mut();
        // SAFETY: no other code has the memory yet.
        unsafe { (*raw).mini_object.flags |= flags | GST_CUDA_MEMORY_TRANSFER_NEED_DOWNLOAD };
        Some(memory)
    }

    fn take(&self, place: Place) -> Option<gst::Memory> {
        let mut idle = self.idle();
        idle.taken += 1;
        idle.memories.remove(&place).map(|(_, memory)| memory)
    }

    /// A new memory for a slot, without a lease.
    fn of_slot(self: &Arc<Self>, place: Place) -> Option<gst::Memory> {
        let slot = Box::new(Slot {
            lease: Mutex::new(Lease::Gone),
            cache: Arc::downgrade(self),
            place,
            device: self.device.clone(),
            stream: self.stream.clone(),
        });
        // SAFETY: the lease keeps the address valid while the memory is in use. No other code has the memory yet.
        unsafe {
            let memory = self.wrap(place.1, slot)?;
            (*memory.as_ptr().cast_mut()).mini_object.dispose = Some(dispose);
            Some(memory)
        }
    }

    /// Wraps device memory in a GstMemory. `user_data` is dropped when the memory is freed.
    ///
    /// # Safety
    ///
    /// While the memory is in use, the layout fits at this address.
    unsafe fn wrap<T: Send + 'static>(&self, ptr: u64, user_data: Box<T>) -> Option<gst::Memory> {
        let library = Library::get()?;
        let info = self.layout.to_wrap().ok()?;
        let user_data = Box::into_raw(user_data);
        // SAFETY: live objects, and by the caller. `free` drops the user data with the memory. If there is no memory, it is
        // dropped here.
        unsafe {
            let memory = (library.cuda_allocator_alloc_wrapped)(
                ptr::null_mut(),
                self.context.as_ptr(),
                self.stream.as_ptr(),
                info.to_glib_none().0,
                ptr,
                user_data.cast(),
                Some(free::<T>),
            );
            if memory.is_null() {
                gst::warning!(CAT, "Cannot wrap device memory of {:?}", self.layout);
                drop(Box::from_raw(user_data));
                return None;
            }
            (*memory.cast::<GstCudaMemory>()).info = *self.layout.info().to_glib_none().0;
            Some(from_glib_full(memory))
        }
    }

    /// Keeps an unused memory. `Err`: one is already kept for the same slot.
    fn keep(&self, place: Place, memory: gst::Memory) -> Result<(), gst::Memory> {
        let old: Vec<_> = {
            let mut idle = self.idle();
            if idle.memories.contains_key(&place) {
                return Err(memory);
            }
            let taken = idle.taken;
            let is_old = |at: &u64| taken.saturating_sub(*at) > KEPT_FOR;
            let old = idle.memories.extract_if(|_, (at, _)| is_old(at));
            let old = old.map(|(_, (_, memory))| memory).collect();
            idle.memories.insert(place, (taken, memory));
            old
        };
        old.into_iter()
            .for_each(|memory| free_when_done(memory, &self.device, &self.stream));
        Ok(())
    }
}

impl Drop for MemoryCache {
    fn drop(&mut self) {
        let idle = mem::take(self.idle.get_mut().unwrap_or_else(PoisonError::into_inner));
        for (_, (_, memory)) in idle.memories {
            free_when_done(memory, &self.device, &self.stream);
        }
    }
}

/// Frees an unused memory after the work on its stream, which may still use its textures. Freeing waits for the stream, and the
/// stream may be blocked if a producer was killed.
fn free_when_done(memory: gst::Memory, device: &Device, stream: &Stream) {
    // SAFETY: this is the only reference. The memory is not kept again.
    unsafe { (*memory.as_ptr().cast_mut()).mini_object.dispose = None };
    stream
        .handle()
        .when_done(device, move || drop_later(memory));
}

/// `GDestroyNotify` of a wrapped memory.
unsafe extern "C" fn free<T>(user_data: gpointer) {
    // SAFETY: `wrap` made it with Box, with this type. The library calls this once.
    drop(unsafe { Box::from_raw(user_data.cast::<T>()) });
}

/// `GstMiniObject.dispose` of a slot's memory. Takes a new reference and keeps the memory.
unsafe extern "C" fn dispose(object: *mut GstMiniObject) -> gboolean {
    let raw: *mut GstMemory = object.cast();
    // SAFETY: GStreamer calls this each time when the last reference of such a memory is dropped.
    let Some(slot) = (unsafe { slot_of(raw) }) else {
        return GTRUE;
    };
    let lease = mem::replace(&mut *slot.lease(), Lease::Gone);
    let (cache, place) = (slot.cache.upgrade(), slot.place);
    let (device, stream) = (slot.device.clone(), slot.stream.clone());
    // SAFETY: there is no other reference. The memory returns to its initial state.
    let memory: gst::Memory = unsafe {
        thaw(
            raw,
            matches!(
                lease,
                Lease::Published {
                    is_locked: true,
                    ..
                }
            ),
        );
        (*raw).mini_object.flags &= !(GST_CUDA_MEMORY_TRANSFER_NEED_DOWNLOAD
            | GST_CUDA_MEMORY_TRANSFER_NEED_UPLOAD
            | GST_CUDA_MEMORY_TRANSFER_NEED_SYNC);
        ((*raw).offset, (*raw).size) = (0, (*raw).maxsize);
        from_glib_none(raw)
    };
    let kept = match cache {
        Some(cache) => cache.keep(place, memory),
        None => Err(memory),
    };
    if let Err(memory) = kept {
        free_when_done(memory, &device, &stream);
    }
    // At the end, so that the memory is already kept when the slot is used again. Work on the stream may still use the slot.
    match lease {
        Lease::Received(reading) => reading.end(&stream),
        Lease::Writable(lease) => stream.handle().when_done(&device, move || drop(lease)),
        Lease::Published { frame, .. } => stream.handle().when_done(&device, move || drop(frame)),
        Lease::Gone => {}
    }
    GFALSE
}

/// # Safety
///
/// `memory` is a live memory.
unsafe fn slot_of<'a>(memory: *mut GstMemory) -> Option<&'a Slot> {
    let library = Library::get()?;
    // SAFETY: by the caller. Only memories made here have this function, and they keep their `Slot` alive.
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

/// A memory over a slot, made by the cache.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SlotMemory<'a>(&'a Slot, &'a gst::MemoryRef);

impl<'a> SlotMemory<'a> {
    /// `None`: it is another memory.
    pub(crate) fn of(memory: &'a gst::MemoryRef) -> Option<Self> {
        // SAFETY: a live memory.
        unsafe { slot_of(memory.as_ptr().cast_mut()) }.map(|slot| Self(slot, memory))
    }

    /// Whether `producer` can publish the slot.
    pub(crate) fn belongs_to(self, producer: &Producer) -> bool {
        match &*self.0.lease() {
            Lease::Writable(lease) => lease.is_of(producer),
            Lease::Published { frame, .. } => frame.is_of(producer),
            Lease::Received(..) | Lease::Gone => false,
        }
    }

    /// The lease of a readable frame.
    pub(crate) fn frame(self) -> Option<ReadLease> {
        match &*self.0.lease() {
            Lease::Published { frame, .. } => Some(frame.clone()),
            Lease::Received(reading) => Some(reading.frame.lease().clone()),
            Lease::Writable(_) | Lease::Gone => None,
        }
    }

    /// The received frame.
    pub(crate) fn received(self) -> Option<ReadLease> {
        match &*self.0.lease() {
            Lease::Received(reading) => Some(reading.frame.lease().clone()),
            _ => None,
        }
    }

    /// Publishes the slot, ordered after the present work on its stream. Publishes again with other metadata if it was
    /// published before. Then the memory is read-only.
    pub(crate) fn publish(
        self,
        producer: &Producer,
        mut meta: FrameMeta,
    ) -> Result<u64, PublishError> {
        (meta.offset, meta.size) = (0, self.1.size() as u64);
        let mut lease = self.0.lease();
        match &*lease {
            Lease::Published { frame, .. } => return producer.republish(frame, &meta),
            Lease::Received(..) | Lease::Gone => return Err(PublishError::OtherPool),
            Lease::Writable(_) => {}
        }
        let Lease::Writable(write) = mem::replace(&mut *lease, Lease::Gone) else {
            return Err(PublishError::OtherPool);
        };
        let raw = self.1.as_ptr().cast_mut();
        // SAFETY: a live memory.
        let is_locked = unsafe { freeze(raw) };
        match write.publish_on(self.0.stream.handle(), meta) {
            Ok(frame) => {
                let sequence = frame.info().sequence;
                *lease = Lease::Published { frame, is_locked };
                Ok(sequence)
            }
            Err(failure) => {
                // SAFETY: as above. Nobody can read the frame.
                unsafe { thaw(raw, is_locked) };
                *lease = Lease::Writable(failure.lease);
                Err(failure.error)
            }
        }
    }
}
