// SPDX-License-Identifier: MPL-2.0

//! Buffers in the memory of CUDA devices: in a slot, in memory of upstream's that can be shared, or with one copy on the
//! device.

use gst::{glib, prelude::*};
use xmem_core::cuda::{CudaError, Device};
use xmem_core::{Canceller, FrameMeta, ImportedMemory, Parts, PublishError};

use super::{
    XmemSinkCopy,
    imp::{CAT, Started},
    imports,
    publish::{Cause, Failure, Outcome},
};
use crate::{
    cuda::{self, CudaMemory, Deferred, SlotMemory, XmemCudaBufferPool},
    tied::{Tie, tie, tied},
};

/// Why a memory is not shared: that is not tried anew for each frame.
#[derive(Debug, Clone)]
struct Refused(&'static str);

impl Tie for Refused {
    const NAME: &'static glib::GStr = glib::gstr!("xmem-refused");
}

/// Offers upstream a pool of slots on a device. Who works in another context than ours does not take it.
pub(super) fn offer(
    sink: &gst::Element,
    started: &Started,
    caps: &gst::Caps,
    query: &mut gst::query::Allocation,
) -> Result<(), gst::LoggableError> {
    let refused = |why: &str| gst::loggable_error!(CAT, "No pool on a CUDA device: {why}");
    let context = cuda::shared(sink, started.settings.cuda_device())
        .ok_or_else(|| refused("there is no context"))?;
    let device = context
        .device()
        .ok_or_else(|| refused("there is no device"))?;
    let pool = XmemCudaBufferPool::new(&context, &device, &started.slots)
        .ok_or_else(|| refused("libgstcuda is gone"))?;
    let mut config = pool.config();
    config.set_params(Some(caps), 0, 0, 0);
    config.add_option(gst_video::BUFFER_POOL_OPTION_VIDEO_META);
    pool.set_config(config)?;
    let size = pool.config().params().map_or(0, |(_, size, ..)| size);
    // No maximum: some decoders throw away a pool that has one.
    query.add_allocation_pool(Some(&pool), size, 0, 0);
    Ok(())
}

impl Started {
    /// Publishes a buffer that lies on a device. `None`: it does not, or it is a frame of another pool that is passed on.
    pub(super) fn publish_device(
        &self,
        buffer: &gst::Buffer,
        meta: &FrameMeta,
        cancel: &Canceller,
    ) -> Result<Option<Outcome>, Failure> {
        if buffer.n_memory() != 1 {
            return Ok(None);
        }
        let memory = buffer.peek_memory(0);
        let Some(on_device) = CudaMemory::of(memory) else {
            return Ok(None);
        };
        let mut cause = Cause::Foreign;
        if let Some(slot) = SlotMemory::of(memory) {
            if slot.belongs_to(&self.producer) {
                match slot.publish(&self.producer, meta.clone()) {
                    Ok(_) => return Ok(Some(Outcome::InPlace)),
                    Err(PublishError::NoRoomForAttachments { needed, room }) => {
                        cause = Cause::Metas { needed, room };
                    }
                    Err(error) => return Err(error.into()),
                }
            } else if slot.received().is_some()
                && let Some(outcome) = self.publish_pieces(buffer, meta, cancel)?
            {
                return Ok(Some(outcome));
            }
        } else {
            match self.share(buffer, on_device, meta, cancel)? {
                Ok(outcome) => return Ok(Some(outcome)),
                Err(why) => cause = Cause::Unreachable(why),
            }
        }
        self.publish_copy(buffer, on_device, meta, cause, cancel)
            .map(Some)
    }

    /// Publishes a frame in memory of upstream's, which consumers open once. `Err`: why that cannot be.
    fn share(
        &self,
        buffer: &gst::Buffer,
        memory: CudaMemory<'_>,
        meta: &FrameMeta,
        cancel: &Canceller,
    ) -> Result<Result<Outcome, &'static str>, Failure> {
        if let Some(why) = memory.why_not_exportable() {
            return Ok(Err(why));
        }
        let context = memory.context();
        let Some(device) = context.device().filter(|device| context.is_of(device)) else {
            return Ok(Err(
                "it is of a context other than the device's primary one",
            ));
        };
        // For each frame: what a CPU wrote is put on the stream.
        let Some(ptr) = memory.device_ptr() else {
            return Ok(Err("it cannot be mapped"));
        };
        let imported = match self.import_device(buffer.peek_memory(0), ptr, &device) {
            Ok(imported) => imported,
            Err(why) => return Ok(Err(why)),
        };
        let mut parts = Parts::new();
        parts.add_imported(&imported, 0, buffer.size() as u64, 0);
        let room = parts.room() + meta.attachments.encoded_len();
        let Some(mut lease) =
            self.slot_by(cancel, || self.producer.acquire_cuda_event(room, &device))?
        else {
            self.producer.note_dropped();
            return Ok(Ok(Outcome::Dropped));
        };
        lease.set_parts(parts);
        // Upstream has its memory back when the last consumer is done with it. The buffer itself, not a copy: its pool would
        // not use the memory again.
        let kept = buffer.clone();
        lease.set_release_hook(move || drop(kept));
        match lease
            .publish_on(memory.stream(), meta.clone())
            .map_err(|failure| failure.error)
        {
            Ok(_) => Ok(Ok(Outcome::InPlace)),
            Err(error) => Err(error.into()),
        }
    }

    /// Memory of upstream's, as the pool knows it: its consumers open it once, for as long as upstream uses it again and
    /// again.
    fn import_device(
        &self,
        memory: &gst::MemoryRef,
        ptr: u64,
        device: &Device,
    ) -> Result<ImportedMemory, &'static str> {
        if let Some(known) = imports::known(memory, &self.producer) {
            return Ok(known);
        }
        if let Some(Refused(why)) = tied(memory) {
            return Err(why);
        }
        // It is not freed before every process has closed it: its end is put off until then.
        let (deferred, released) = Deferred::new();
        match self
            .producer
            .import_cuda(ptr, memory.size(), device, released)
        {
            Ok(imported) => {
                imports::remember(memory, imported.clone());
                deferred.apply_to(memory, give_up);
                Ok(imported)
            }
            Err(reason) => {
                gst::debug!(CAT, "Copying {memory:?}: {reason}");
                let why = "the driver gives no handle for it";
                tie(memory, Refused(why));
                Err(why)
            }
        }
    }

    /// Publishes a frame with one copy, on its device.
    fn publish_copy(
        &self,
        buffer: &gst::Buffer,
        memory: CudaMemory<'_>,
        meta: &FrameMeta,
        cause: Cause,
        cancel: &Canceller,
    ) -> Result<Outcome, Failure> {
        if self.settings.copy == XmemSinkCopy::Forbid {
            return Err(Failure::CopyForbidden(self.why_copied(buffer, cause)));
        }
        let (Some(device), Some(ptr)) = (memory.context().device(), memory.device_ptr()) else {
            return Err(Failure::Unreadable);
        };
        let (size, room) = (buffer.size(), meta.attachments.encoded_len());
        let acquire = || {
            self.producer
                .acquire_cuda_with_room(size.max(1), room, &device)
        };
        let Some(lease) = self.slot_by(cancel, acquire)? else {
            self.producer.note_dropped();
            return Ok(Outcome::Dropped);
        };
        let stream = memory.stream();
        let slot = lease
            .cuda()
            .ok_or(Failure::Device(CudaError::NotOnDevice))?;
        slot.copy_from(stream, ptr, size).map_err(Failure::Device)?;
        self.producer.note_copied();
        let published = lease.publish_on(stream, meta.clone());
        // A decoder's surface is written again by a part of the device that knows no streams.
        let kept = buffer.clone();
        stream.when_done(&device, move || drop(kept));
        published.map_err(|failure| failure.error)?;
        Ok(Outcome::Copied(cause))
    }
}

/// A memory comes to its end: consumers let go of it.
fn give_up(memory: &gst::MemoryRef) {
    // Its allocator may use it again for another frame, and then this would come for each.
    tie(
        memory,
        Refused("upstream gives each frame memory of its own"),
    );
    imports::forget(memory);
}
