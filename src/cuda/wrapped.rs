// SPDX-License-Identifier: MPL-2.0

//! Slots on a device as GstCudaMemory, each made once.
//!
//! Elements keep textures of a memory with it, and would make them anew for a memory per frame. When the last reference to such
//! a memory goes, only the lease in it ends; the memory itself waits at home for the next frame in the same slot, as the
//! memories of GStreamer's own CUDA allocator do.
#![allow(unsafe_code)] // GstMemory is a C structure, and its end a C function

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
use crate::buffers::memory::access::freeze;
use crate::buffers::tally::Tally;
use crate::buffers::tied::tie;
use crate::later::drop_later;
use crate::lock;

/// The state of a slot.
#[derive(Debug)]
enum Lease {
    Writable(WriteLease),
    /// Of this process's own pool.
    Published(ReadLease),
    Received(Reading),
    /// The memory is not in use.
    Gone,
}

/// A received frame, and the streams that read it.
#[derive(Debug)]
struct Reading {
    frame: CudaFrame,
    /// The stream on which downstream works, which need not be the memory's. `None`: not known.
    stream: Option<Arc<Stream>>,
    _tally: Arc<Tally>,
}

impl Reading {
    /// Releases the frame when the streams are done with it that may read it.
    fn end(self, own: &Stream) {
        let device = self.frame.device().clone();
        let other = match &self.stream {
            Some(stream) => stream.handle(),
            // It waits for all of the context that do not ask to be left out; GStreamer's never do.
            None => cuda::Stream::LEGACY_DEFAULT,
        };
        let streams = [own.handle(), other];
        if let Err(failure) = self.frame.release_on_all(&streams) {
            gst::warning!(CAT, "A CPU waits for a frame to be read: {}", failure.error);
            let _ = streams[1].synchronize(&device);
            failure.release_after(streams[0]);
        }
    }
}

/// Where memory lies: the number of the memory that it is a part of, and its address.
type Place = (u128, u64);

/// The allocation behind one memory.
#[derive(Debug)]
struct Slot {
    lease: Mutex<Lease>,
    home: Weak<Home>,
    place: Place,
    device: Device,
    stream: Arc<Stream>,
}

impl Slot {
    fn lease(&self) -> MutexGuard<'_, Lease> {
        lock(&self.lease)
    }
}

/// The memories of one layout, stream and context that are not in use.
#[derive(Debug)]
pub(crate) struct Home {
    context: CudaContext,
    device: Device,
    stream: Arc<Stream>,
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
    /// The stream is of the context, and the context of the device.
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
    pub(crate) fn stream(&self) -> &Arc<Stream> {
        &self.stream
    }

    /// A slot to write, which has room for the layout. `None`: it has not, or the library refuses.
    pub(crate) fn writable(self: &Arc<Self>, lease: WriteLease) -> Option<gst::Memory> {
        let slot = lease.cuda()?;
        let place = (slot.memory_number(), slot.ptr());
        if slot.len() < self.layout.info().size() {
            return None;
        }
        // The slot may have been written on another stream.
        slot.wait_on(self.stream.handle())
            .inspect_err(|error| gst::warning!(CAT, "Cannot wait for a slot: {error}"))
            .ok()?;
        self.memory(place, Lease::Writable(lease), 0)
    }

    /// A received frame, for reading; `reader` is the stream on which downstream works, if that is known. Work put on the
    /// memory's stream from here on waits for the producer's work; that order exists already.
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

    /// Private memory, for when no slot is free. Its layout is its own.
    pub(crate) fn private(&self) -> Option<gst::Memory> {
        let memory = memory::allocate(&self.context, Some(&self.stream), self.layout.info())?;
        tie(&memory, OneFrame);
        Some(memory)
    }

    /// Private memory of ours, which has the layout.
    pub(crate) fn wrap_private(&self, private: PrivateMemory) -> Option<gst::Memory> {
        if private.len() < self.layout.info().size() {
            return None;
        }
        let ptr = private.ptr();
        // SAFETY: the memory lives as long as the GstMemory around it, and is freed as private memory.
        let memory = unsafe { self.wrap(ptr, Box::new(private)) }?;
        // To open it in other processes would take longer than a copy.
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
        // SAFETY: the memory has no other user yet.
        unsafe { (*raw).mini_object.flags |= flags | GST_CUDA_MEMORY_TRANSFER_NEED_DOWNLOAD };
        Some(memory)
    }

    fn take(&self, place: Place) -> Option<gst::Memory> {
        let mut idle = self.idle();
        idle.taken += 1;
        idle.memories.remove(&place).map(|(_, memory)| memory)
    }

    /// A new memory for a place, in which nothing is leased yet.
    fn of_slot(self: &Arc<Self>, place: Place) -> Option<gst::Memory> {
        let slot = Box::new(Slot {
            lease: Mutex::new(Lease::Gone),
            home: Arc::downgrade(self),
            place,
            device: self.device.clone(),
            stream: self.stream.clone(),
        });
        // SAFETY: the lease keeps the address valid while the memory is in use. It has no other user yet.
        unsafe {
            let memory = self.wrap(place.1, slot)?;
            (*memory.as_ptr().cast_mut()).mini_object.dispose = Some(dispose);
            Some(memory)
        }
    }

    /// A memory around device memory, with user data that is dropped with it.
    ///
    /// # Safety
    ///
    /// As long as the memory is in use, there is room for the layout at this address.
    unsafe fn wrap<T: Send + 'static>(&self, ptr: u64, user_data: Box<T>) -> Option<gst::Memory> {
        let library = Library::get()?;
        let info = self.layout.to_wrap().ok()?;
        let user_data = Box::into_raw(user_data);
        // SAFETY: live objects; by the caller. The user data is dropped by `free`, with the memory; here, if there is none.
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

    /// Keeps a memory that is no longer in use. `Err`: there is one for its place already.
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
            .for_each(|memory| end(memory, &self.device, &self.stream));
        Ok(())
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        let idle = mem::take(self.idle.get_mut().unwrap_or_else(PoisonError::into_inner));
        for (_, (_, memory)) in idle.memories {
            end(memory, &self.device, &self.stream);
        }
    }
}

/// Frees a memory that is no longer in use. Work on the stream may still use its textures, and freeing it waits for the
/// stream, which may be blocked if a producer was killed.
fn end(memory: gst::Memory, device: &Device, stream: &Stream) {
    // SAFETY: this is its only reference. It does not go home again.
    unsafe { (*memory.as_ptr().cast_mut()).mini_object.dispose = None };
    stream
        .handle()
        .when_done(device, move || drop_later(memory));
}

/// `GDestroyNotify` of a wrapped memory.
unsafe extern "C" fn free<T>(user_data: gpointer) {
    // SAFETY: made by Box in `Home::wrap`, of this type; the library calls this once.
    drop(unsafe { Box::from_raw(user_data.cast::<T>()) });
}

/// `GstMiniObject.dispose` of a slot's memory: its last reference is gone, and is taken up again here.
unsafe extern "C" fn dispose(object: *mut GstMiniObject) -> gboolean {
    let raw: *mut GstMemory = object.cast();
    // SAFETY: GStreamer calls this for the memory that has it, each time that its last reference is dropped.
    let Some(slot) = (unsafe { slot_of(raw) }) else {
        return GTRUE;
    };
    let lease = mem::replace(&mut *slot.lease(), Lease::Gone);
    let (home, place) = (slot.home.upgrade(), slot.place);
    let (device, stream) = (slot.device.clone(), slot.stream.clone());
    // SAFETY: there is no other reference; the memory becomes as it was when it was made.
    let memory: gst::Memory = unsafe {
        thaw(raw);
        (*raw).mini_object.flags &= !(GST_CUDA_MEMORY_TRANSFER_NEED_DOWNLOAD
            | GST_CUDA_MEMORY_TRANSFER_NEED_UPLOAD
            | GST_CUDA_MEMORY_TRANSFER_NEED_SYNC);
        ((*raw).offset, (*raw).size) = (0, (*raw).maxsize);
        from_glib_none(raw)
    };
    let kept = match home {
        Some(home) => home.keep(place, memory),
        None => Err(memory),
    };
    if let Err(memory) = kept {
        end(memory, &device, &stream);
    }
    // Last, so that the next user of the slot finds its memory. Work on the stream may still use the slot.
    match lease {
        Lease::Received(reading) => reading.end(&stream),
        Lease::Writable(lease) => stream.handle().when_done(&device, move || drop(lease)),
        Lease::Published(lease) => stream.handle().when_done(&device, move || drop(lease)),
        Lease::Gone => {}
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
            Lease::Published(lease) => producer.owns(lease),
            Lease::Received(..) | Lease::Gone => false,
        }
    }

    /// The lease of a frame that can be read.
    pub(crate) fn frame(self) -> Option<ReadLease> {
        match &*self.0.lease() {
            Lease::Published(lease) => Some(lease.clone()),
            Lease::Received(reading) => Some(reading.frame.lease().clone()),
            Lease::Writable(_) | Lease::Gone => None,
        }
    }

    /// The received frame that it is the whole of.
    pub(crate) fn received(self) -> Option<ReadLease> {
        match &*self.0.lease() {
            Lease::Received(reading) => Some(reading.frame.lease().clone()),
            _ => None,
        }
    }

    /// Publishes the slot as far as its stream has got, a second time with other metadata if it was published before. The
    /// memory is read-only from here on.
    pub(crate) fn publish(
        self,
        producer: &Producer,
        mut meta: FrameMeta,
    ) -> Result<u64, PublishError> {
        (meta.offset, meta.size) = (0, self.1.size() as u64);
        let mut lease = self.0.lease();
        match &*lease {
            Lease::Published(frame) => return producer.republish(frame, &meta),
            Lease::Received(..) | Lease::Gone => return Err(PublishError::OtherPool),
            Lease::Writable(_) => {}
        }
        // SAFETY: a live memory.
        unsafe { freeze(self.1.as_ptr().cast_mut()) };
        let Lease::Writable(write) = mem::replace(&mut *lease, Lease::Gone) else {
            return Err(PublishError::OtherPool);
        };
        match write.publish_on(self.0.stream.handle(), meta) {
            Ok(frame) => {
                let sequence = frame.info().sequence;
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

/// Gives write access back that [`freeze`] or the memory's own read-only flag took.
///
/// # Safety
///
/// `mem` is a GstMemory without references.
unsafe fn thaw(mem: *mut gst::ffi::GstMemory) {
    // SAFETY: by the caller; these words have no other user.
    unsafe {
        let object = &mut (*mem).mini_object;
        object.flags &=
            !(gst::ffi::GST_MINI_OBJECT_FLAG_LOCK_READONLY | gst::ffi::GST_MEMORY_FLAG_READONLY);
        // A memory without users has no lock but that of `freeze`.
        object.lockstate = 0;
    }
}
