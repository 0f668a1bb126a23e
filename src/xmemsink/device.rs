// SPDX-License-Identifier: MPL-2.0

//! Buffers in the memory of CUDA devices: in a slot, in upstream's own memory if it can be shared, or copied once on the
//! device.
#![allow(unsafe_code)] // addresses of device memory

use std::time::Duration;

use gst::{glib, prelude::*};
use xmem_core::cuda::{CudaError, CudaSlot, Device, Mode, Rows};
use xmem_core::{
    Canceller, FrameMeta, ImportError, ImportedMemory, Parts, Producer, ProducerBuilder,
    PublishError, SlotSpec,
};

use super::{
    base::CAT,
    outside::{self, set_buffer_parts},
    run::{Cause, Failure, Outcome, Started},
    settings::{Settings, XmemSinkCopy, XmemSinkCudaIpcMode},
    stream::SinkStream,
};
use crate::{
    buffers::tied::{Tie, tie, tied},
    cuda::{self, CudaMemory, Deferred, Layout, SlotMemory, XmemCudaBufferPool},
    later::drop_later,
    stream::frame::Format,
};

/// Why a memory cannot be shared. It is kept with the memory, so that sharing is not tried again for each frame.
#[derive(Debug, Clone)]
struct Refused(&'static str);

impl Tie for Refused {
    const NAME: &'static glib::GStr = glib::gstr!("xmem-refused");
}

/// The minimum number of buffers of the pool. Decoders output this many surfaces and a few more without a wait.
const MIN_BUFFERS: u32 = 4;

/// Sets how the pool shares slots on devices.
pub(super) fn configure(builder: ProducerBuilder, settings: &Settings) -> ProducerBuilder {
    builder
        .cuda_mode(match settings.cuda_ipc_mode {
            XmemSinkCudaIpcMode::Auto => Mode::Auto,
            XmemSinkCudaIpcMode::Vmm => Mode::Vmm,
            XmemSinkCudaIpcMode::Legacy => Mode::Legacy,
        })
        .release_timeout(Duration::from_nanos(settings.release_timeout))
}

/// Offers upstream a pool of slots on a device, if upstream uses the same CUDA context.
pub(super) fn offer(
    sink: &gst::Element,
    started: &Started,
    caps: &gst::Caps,
    query: &mut gst::query::Allocation,
) {
    let ordinal = started.settings.cuda_device();
    let Some(context) = cuda::shared_by_all(sink, ordinal) else {
        gst::debug!(
            CAT,
            obj = sink,
            "No pool on a CUDA device: upstream works in a context of its own"
        );
        return;
    };
    let pool = context
        .device()
        .and_then(|device| XmemCudaBufferPool::new(&context, &device, &started.slots));
    let Some(pool) = pool else { return };
    let mut config = pool.config();
    config.set_params(Some(caps), 0, MIN_BUFFERS, 0);
    config.add_option(gst_video::BUFFER_POOL_OPTION_VIDEO_META);
    if let Err(error) = pool.set_config(config) {
        gst::debug!(CAT, obj = sink, "No pool on a CUDA device: {error}");
        return;
    }
    let size = pool.config().params().map_or(0, |(_, size, ..)| size);
    // No maximum: some decoders discard a pool that has one.
    query.add_allocation_pool(Some(&pool), size, MIN_BUFFERS, 0);
}

/// Publishes a buffer in device memory. `None`: it is not in device memory.
#[inline(never)]
pub(super) fn publish(
    started: &Started,
    buffer: &gst::Buffer,
    meta: &FrameMeta,
    stream: &SinkStream,
    cancel: &Canceller,
) -> Result<Option<Outcome>, Failure> {
    if buffer.n_memory() != 1 {
        return Ok(None);
    }
    let memory = buffer.peek_memory(0);
    let Some(on_device) = CudaMemory::of(memory) else {
        return Ok(None);
    };
    // Needed for each frame: if a CPU wrote the bytes, this call copies them to the device.
    let ptr = on_device.device_ptr().ok_or(Failure::Unreadable)?;
    let cause = match SlotMemory::of(memory) {
        // Consumers map slots and memories from their first byte.
        _ if memory.offset() > 0 => Cause::Unreachable("its first bytes were cut off"),
        Some(slot) if slot.belongs_to(&started.producer) => {
            match slot.publish(&started.producer, meta.clone()) {
                Ok(_) => return Ok(Some(Outcome::InPlace)),
                Err(PublishError::NoRoomForAttachments { needed, room }) => {
                    Cause::Metas { needed, room }
                }
                Err(error) => return Err(error.into()),
            }
        }
        Some(slot) if slot.received().is_some() => {
            if let Ok(outcome) = outside::publish(started, buffer, meta, true, cancel)? {
                return Ok(Some(outcome));
            }
            Cause::Unreachable(
                "it is of a pool whose memory ends with its producer, or which a consumer cannot reach",
            )
        }
        Some(_) => Cause::Unreachable("it is of another pool"),
        None => match publish_imported(started, buffer, on_device, ptr, meta, cancel)? {
            Ok(outcome) => return Ok(Some(outcome)),
            Err(why) => Cause::Unreachable(why),
        },
    };
    if started.settings.copy == XmemSinkCopy::Forbid {
        return Err(Failure::CopyForbidden(
            cause.describe(buffer, &started.slots),
        ));
    }
    let format = stream.format();
    publish_copy(started, buffer, on_device, ptr, meta, &format, cancel).map(|is_out| {
        Some(if is_out {
            Outcome::Copied(cause)
        } else {
            Outcome::Dropped
        })
    })
}

/// Publishes a frame in upstream's own memory, which each consumer opens once. `Err`: the reason why that is impossible.
fn publish_imported(
    started: &Started,
    buffer: &gst::Buffer,
    memory: CudaMemory<'_>,
    ptr: u64,
    meta: &FrameMeta,
    cancel: &Canceller,
) -> Result<Result<Outcome, &'static str>, Failure> {
    if let Some(why) = memory.why_not_exportable() {
        return Ok(Err(why));
    }
    let info = memory.info();
    if cuda::planes(&info).any(|plane| plane.rows_in(buffer.size()) < plane.height) {
        return Ok(Err("its planes are larger than it is"));
    }
    let context = memory.context();
    let Some(device) = context.device().filter(|device| context.is_of(device)) else {
        return Ok(Err(
            "it is of a context other than the device's primary one",
        ));
    };
    let imported = match import(&started.producer, buffer.peek_memory(0), ptr, &device) {
        Ok(imported) => imported,
        Err(why) => return Ok(Err(why)),
    };
    let mut parts = Parts::new();
    parts.add_imported(&imported, 0, buffer.size() as u64, 0);
    let room = parts.room() + meta.attachments.encoded_len();
    let spec = SlotSpec::device_event(&device).attachments(room);
    let Some(mut lease) = started.slot(spec, cancel)? else {
        started.producer.note_dropped();
        return Ok(Ok(Outcome::Dropped));
    };
    set_buffer_parts(&mut lease, parts, buffer.clone());
    let published = match memory.stream() {
        Some(stream) => lease.publish_on(stream, meta.clone()),
        None => lease.publish(meta.clone()),
    };
    match published {
        Ok(_) => Ok(Ok(Outcome::InPlace)),
        Err(failure) => Err(failure.error.into()),
    }
}

/// Imports upstream's memory into the pool. Consumers open it once, and keep it open while upstream reuses it.
fn import(
    producer: &Producer,
    memory: &gst::MemoryRef,
    ptr: u64,
    device: &Device,
) -> Result<ImportedMemory, &'static str> {
    if let Some(known) = outside::known(memory, producer) {
        return Ok(known);
    }
    if let Some(Refused(why)) = tied(memory) {
        return Err(why);
    }
    let (deferred, released) = Deferred::new();
    // SAFETY: the memory is not freed before every process has closed it, because `deferred` postpones that.
    let imported = unsafe {
        let size = memory.size();
        producer.import_cuda(ptr, size, device, released)
    };
    match imported {
        Ok(imported) => {
            outside::remember(memory, imported.clone());
            deferred.apply_to(memory, release_import);
            Ok(imported)
        }
        Err(reason) => {
            gst::debug!(CAT, "Copying {memory:?}: {reason}");
            let ImportError::Cuda(_) = reason else {
                return Err("the pool cannot take it in now");
            };
            let why = "the driver gives no handle for it";
            tie(memory, Refused(why));
            Err(why)
        }
    }
}

/// Publishes a frame with one copy on its device. `false`: no slot was free.
fn publish_copy(
    started: &Started,
    buffer: &gst::Buffer,
    memory: CudaMemory<'_>,
    ptr: u64,
    meta: &FrameMeta,
    format: &Format,
    cancel: &Canceller,
) -> Result<bool, Failure> {
    let device = memory.context().device().ok_or(Failure::Unreadable)?;
    let copier = started
        .copier
        .ready(&device, &memory.info())
        .map_err(failed)?;
    let stream = memory.stream().unwrap_or(copier.stream());
    let (size, room) = (
        copier.layout().info().size(),
        meta.attachments.encoded_len(),
    );
    let spec = SlotSpec::new(size).attachments(room).on(&device);
    let Some(lease) = started.slot(spec, cancel)? else {
        started.producer.note_dropped();
        return Ok(false);
    };
    let layout = format.layout_of_copy(&meta.layout, copier.layout().info());
    let mut meta = meta.clone().layout(layout);
    meta.size = size as u64;
    let slot = lease.cuda().ok_or(failed(CudaError::NotOnDevice))?;
    // SAFETY: `kept` below holds the buffer until the stream has copied it, whether publishing succeeds or not.
    let copied = unsafe {
        copy(
            slot,
            stream,
            (ptr, buffer.size()),
            &memory.info(),
            copier.layout(),
        )
    };
    let (slot, result) = match copied {
        Ok(()) => {
            started.producer.note_copied();
            match lease.publish_on(stream, meta) {
                Ok(frame) => (Ok(frame), Ok(true)),
                Err(failure) => (Err(failure.lease), Err(failure.error.into())),
            }
        }
        Err(error) => (Err(lease), Err(failed(error))),
    };
    // Keep the buffer and the slot until the copy has ended. The decoder hardware that writes the surface again does not wait
    // for streams, and another stream may write the slot.
    let kept = buffer.clone();
    stream.when_done(&device, move || {
        drop(slot);
        drop_later(kept);
    });
    result
}

fn failed(error: CudaError) -> Failure {
    Failure::Device(error.to_string())
}

/// Queues the copy of a frame on a stream.
///
/// # Safety
///
/// `from` points to `size` bytes with the layout `info`. They stay valid and unchanged until the stream has copied them.
unsafe fn copy(
    slot: CudaSlot<'_>,
    stream: xmem_core::cuda::Stream,
    (from, size): (u64, usize),
    info: &gst_video::VideoInfo,
    to: &Layout,
) -> Result<(), CudaError> {
    slot.wait_on(stream)?;
    if to.is_of(info.offset(), info.stride(), size) {
        // SAFETY: promised by the caller.
        return unsafe { slot.copy_from(stream, from, to.info().size()) };
    }
    // Rows may have been cut off. libgstcuda's own memory lacks one row of NV21 with an odd height.
    let rows = to.planes().zip(cuda::planes(info)).map(|(to, own)| Rows {
        from: own.offset,
        from_pitch: own.pitch,
        to: to.offset,
        to_pitch: to.pitch,
        width: to.width,
        height: own.rows_in(size),
    });
    // SAFETY: as above.
    unsafe { slot.copy_rows_from(stream, from, &rows.collect::<Vec<_>>()) }
}

/// Called before a memory is freed: makes consumers release it.
fn release_import(memory: &gst::MemoryRef) {
    // The allocator may use it again for another frame. Without this, every frame would be imported and released.
    tie(
        memory,
        Refused("upstream gives each frame memory of its own"),
    );
    outside::forget(memory);
}
