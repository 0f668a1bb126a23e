// SPDX-License-Identifier: MPL-2.0

//! Buffers in the memory of CUDA devices: in a slot, in memory of upstream's that can be shared, or with one copy on the
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
    enums::{XmemSinkCopy, XmemSinkCudaIpcMode},
    imports,
    log::CAT,
    outcome::{Cause, Failure, Outcome},
    parts::{self, lie_in},
    settings::Settings,
    started::Started,
    stream::Stream,
};
use crate::{
    buffers::tied::{Tie, tie, tied},
    cuda::{self, CudaMemory, Deferred, Layout, SlotMemory, XmemCudaBufferPool},
    later::drop_later,
    stream::frame::Format,
};

/// Why a memory is not shared: sharing is not tried anew for each frame.
#[derive(Debug, Clone)]
struct Refused(&'static str);

impl Tie for Refused {
    const NAME: &'static glib::GStr = glib::gstr!("xmem-refused");
}

/// How many buffers upstream is to keep. Decoders give out as many surfaces and a few more, and go on decoding meanwhile.
const UPSTREAM_KEEPS: u32 = 4;

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

/// Offers upstream a pool of slots on a device, if it works in the same context.
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
    config.set_params(Some(caps), 0, UPSTREAM_KEEPS, 0);
    config.add_option(gst_video::BUFFER_POOL_OPTION_VIDEO_META);
    if let Err(error) = pool.set_config(config) {
        gst::debug!(CAT, obj = sink, "No pool on a CUDA device: {error}");
        return;
    }
    let size = pool.config().params().map_or(0, |(_, size, ..)| size);
    // No maximum: some decoders discard a pool that has one.
    query.add_allocation_pool(Some(&pool), size, UPSTREAM_KEEPS, 0);
}

/// Publishes a buffer that lies on a device. `None`: it does not.
#[inline(never)]
pub(super) fn publish(
    started: &Started,
    buffer: &gst::Buffer,
    meta: &FrameMeta,
    stream: &Stream,
    cancel: &Canceller,
) -> Result<Option<Outcome>, Failure> {
    if buffer.n_memory() != 1 {
        return Ok(None);
    }
    let memory = buffer.peek_memory(0);
    let Some(on_device) = CudaMemory::of(memory) else {
        return Ok(None);
    };
    // Each time: this call puts bytes that a CPU wrote on the device.
    let ptr = on_device.device_ptr().ok_or(Failure::Unreadable)?;
    let cause = match SlotMemory::of(memory) {
        // Consumers get slots and memory from their first byte on.
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
            if let Some(outcome) = parts::publish(started, buffer, meta, cancel)? {
                return Ok(Some(outcome));
            }
            Cause::Unreachable(
                "it is of a pool whose memory ends with its producer, or which a consumer cannot reach",
            )
        }
        Some(_) => Cause::Unreachable("it is of another pool"),
        None => match share(started, buffer, on_device, ptr, meta, cancel)? {
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

/// Publishes a frame in memory of upstream's, which consumers open once. `Err`: why that is impossible.
fn share(
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
    lie_in(&mut lease, parts, buffer);
    let published = match memory.stream() {
        Some(stream) => lease.publish_on(stream, meta.clone()),
        None => lease.publish(meta.clone()),
    };
    match published {
        Ok(_) => Ok(Ok(Outcome::InPlace)),
        Err(failure) => Err(failure.error.into()),
    }
}

/// Memory of upstream's, as imported into the pool: its consumers open it once, for as long as upstream uses it again.
fn import(
    producer: &Producer,
    memory: &gst::MemoryRef,
    ptr: u64,
    device: &Device,
) -> Result<ImportedMemory, &'static str> {
    if let Some(known) = imports::known(memory, producer) {
        return Ok(known);
    }
    if let Some(Refused(why)) = tied(memory) {
        return Err(why);
    }
    let (deferred, released) = Deferred::new();
    // SAFETY: it is not freed before every process has closed it, since its end is put off until then.
    let imported = unsafe {
        let size = memory.size();
        producer.import_cuda(ptr, size, device, released)
    };
    match imported {
        Ok(imported) => {
            imports::remember(memory, imported.clone());
            deferred.apply_to(memory, give_up);
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

/// Publishes a frame with one copy, on its device. `false`: there was no slot for it.
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
    let mut meta = meta.clone().with_layout(layout);
    meta.size = size as u64;
    let slot = lease.cuda().ok_or(failed(CudaError::NotOnDevice))?;
    // SAFETY: the buffer is kept until the stream has copied it, whether that is published or not.
    let copied = unsafe {
        copy(
            slot,
            stream,
            (ptr, buffer.size()),
            &memory.info(),
            copier.layout(),
        )
    };
    let published = match copied {
        Ok(()) => {
            started.producer.note_copied();
            lease
                .publish_on(stream, meta)
                .map_err(|failure| (failure.lease, failure.error.into()))
        }
        Err(error) => Err((lease, failed(error))),
    };
    // A decoder's surface is written again by a part of the device that has no streams, and a slot perhaps on another stream:
    // both wait for this copy.
    let kept = buffer.clone();
    match published {
        Ok(frame) => {
            stream.when_done(&device, move || {
                drop(frame);
                drop_later(kept);
            });
            Ok(true)
        }
        Err((lease, failure)) => {
            stream.when_done(&device, move || {
                drop(lease);
                drop_later(kept);
            });
            Err(failure)
        }
    }
}

fn failed(error: CudaError) -> Failure {
    Failure::Device(error.to_string())
}

/// Puts the copy of a frame on a stream.
///
/// # Safety
///
/// There are so many bytes of the frame, laid out as in `info`, and they stay until the stream has copied them.
unsafe fn copy(
    slot: CudaSlot<'_>,
    stream: xmem_core::cuda::Stream,
    (from, size): (u64, usize),
    info: &gst_video::VideoInfo,
    to: &Layout,
) -> Result<(), CudaError> {
    slot.wait_on(stream)?;
    if to.is_of(info.offset(), info.stride(), size) {
        // SAFETY: the caller's promise.
        return unsafe { slot.copy_from(stream, from, to.info().size()) };
    }
    // Something may have cut off rows; of NV21 with an odd height, libgstcuda's own memory lacks one.
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

/// A memory is about to be freed: consumers release it.
fn give_up(memory: &gst::MemoryRef) {
    // Its allocator may use it again for another frame, and then this would come for each.
    tie(
        memory,
        Refused("upstream gives each frame memory of its own"),
    );
    imports::forget(memory);
}
