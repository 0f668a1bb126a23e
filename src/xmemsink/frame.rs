// SPDX-License-Identifier: MPL-2.0

//! One buffer on its way into the pool: described, then published in place if upstream wrote it into a slot of this pool,
//! otherwise elsewhere or with one copy.

use xmem_core::{Canceller, FrameMeta, OwnSlot, PublishError, SlotSpec};

use super::{
    base::{self, CAT, Data},
    clip::{self, Clipped},
    consumers::Requests,
    device, outside,
    run::{Cause, Failure, Outcome, Started},
    settings::XmemSinkCopy,
    stream::{Described, Mismatch, SinkStream},
    when::SinkContext,
};
use crate::{
    buffers::memory::{XmemMemory, XmemMemoryRef},
    stream::{
        frame::{self, Memory},
        meta::{self, Losses},
    },
};

/// So many frames in a row that do not match their caps are an error. Fewer are not published, because where inputs are switched, a
/// frame of the previous input can follow the caps of the next one.
const MOST_MISMATCHES: u32 = 10;

/// Describes a buffer and reports lost metas. The times on CLOCK_MONOTONIC are set later. `None`: it is not published as a whole,
/// since it does not match its caps, or since samples of it are outside of the segment.
pub(super) fn describe(
    ctx: SinkContext<'_>,
    buffer: &gst::BufferRef,
    losses: &Losses,
) -> Result<Option<Described>, gst::FlowError> {
    match ctx.stream.describe(buffer) {
        Some(described) => Ok(Some(described)),
        None => describe_fully(ctx, buffer, losses),
    }
}

#[inline(never)]
fn describe_fully(
    ctx: SinkContext<'_>,
    buffer: &gst::BufferRef,
    losses: &Losses,
) -> Result<Option<Described>, gst::FlowError> {
    ctx.stream.settle_caps(buffer);
    let format = ctx.stream.format();
    let info = format.audio_info.as_ref();
    if info.is_some_and(|info| !matches!(clip(ctx, info, buffer), Clipped::Whole)) {
        return Ok(None);
    }
    let layout = format.layout(buffer, ctx.started.program);
    let layout = match ctx.stream.check(layout, buffer.size()) {
        Ok(layout) => layout,
        Err(mismatch) => return refuse(ctx.sink, mismatch).map(|()| None),
    };
    let attachments = meta::of_buffer(buffer, losses);
    for (name, why) in losses.news() {
        gst::element_warning!(
            ctx.sink,
            gst::StreamError::Format,
            ("Frames lose their {name}: {why}. See the field dropped-metas of stats")
        );
    }
    ctx.stream.note_described(buffer, &attachments);
    Ok(Some(Described {
        meta: frame::describe(buffer, layout, &attachments),
        memory: format.memory,
    }))
}

fn clip(ctx: SinkContext<'_>, info: &gst_audio::AudioInfo, buffer: &gst::BufferRef) -> Clipped {
    clip::clip(base::segment(ctx.sink), info, buffer)
}

/// The samples inside the segment, of a buffer that was not described, and how many were outside. `None`: there are none inside, or
/// it does not contain samples.
#[cold]
pub(super) fn part(ctx: SinkContext<'_>, buffer: &gst::BufferRef) -> Option<(gst::Buffer, u64)> {
    match clip(ctx, ctx.stream.format().audio_info.as_ref()?, buffer) {
        Clipped::Part(part, outside) => Some((part, outside)),
        Clipped::Whole | Clipped::Nothing => None,
    }
}

/// Reports a frame that consumers would refuse.
#[cold]
fn refuse(sink: &gst_base::BaseSink, mismatch: Mismatch) -> Result<(), gst::FlowError> {
    let Mismatch { reason, in_a_row } = mismatch;
    if in_a_row >= MOST_MISMATCHES {
        gst::element_error!(
            sink,
            gst::StreamError::Format,
            ("{in_a_row} frames in a row do not match their caps and their GstVideoMeta: {reason}. The upstream element must \
                 correct them")
        );
        return Err(gst::FlowError::Error);
    }
    if in_a_row == 1 {
        gst::element_warning!(
            sink,
            gst::StreamError::Format,
            ("A frame is not published, since it does not match its caps and its GstVideoMeta: {reason}. The upstream element must \
                 correct them")
        );
    }
    Ok(())
}

/// Publishes a described buffer. Sets its times on CLOCK_MONOTONIC first.
pub(super) fn offer(
    ctx: SinkContext<'_>,
    requests: &Requests,
    buffer: &gst::Buffer,
    described: &mut Described,
) -> Result<Outcome, gst::FlowError> {
    loop {
        let mapping = ctx.prepare(Data::Buffer(buffer))?;
        let stamps = mapping.stamps(ctx.sink, buffer);
        described.meta.timestamp = stamps.presentation;
        described.meta.decode_timestamp = stamps.decoding;
        if let Some(outcome) = attempt(ctx, requests, buffer, described)? {
            return Ok(outcome);
        }
    }
}

/// Tries once. `None`: a wait was cancelled. After a pause the frame has other times.
fn attempt(
    ctx: SinkContext<'_>,
    requests: &Requests,
    buffer: &gst::Buffer,
    described: &mut Described,
) -> Result<Option<Outcome>, gst::FlowError> {
    let Described { meta, memory } = described;
    let num_requested = requests.num_requested();
    let mut attempt =
        |cancel: &Canceller| place(ctx.started, buffer, meta, *memory, ctx.stream, cancel);
    let result = if ctx.started.is_lossless() {
        let is_cancelled = |failure: &Failure| matches!(failure, Failure::Cancelled);
        let data = Data::Buffer(buffer);
        let tried = ctx
            .interrupts
            .try_once(ctx.sink, data, attempt, is_cancelled)?;
        let Some(result) = tried else {
            return Ok(None);
        };
        result
    } else {
        // Live delivery does not wait.
        attempt(ctx.interrupts.canceller())
    };
    let outcome = result.map_err(|failure| fail(ctx.sink, failure))?;
    gst::trace!(CAT, obj = ctx.sink, "{outcome:?} {meta:?}");
    let is_key_frame = !buffer.flags().contains(gst::BufferFlags::DELTA_UNIT);
    if is_key_frame && !matches!(outcome, Outcome::Dropped | Outcome::Spared(_)) {
        requests.note_key_frame(num_requested);
    }
    Ok(Some(outcome))
}

/// Warns in the category GST_PERFORMANCE that frames are copied or dropped, with the reason. Once for each format.
#[inline(never)]
pub(super) fn report(ctx: SinkContext<'_>, buffer: &gst::Buffer, outcome: Outcome) {
    match outcome {
        Outcome::Copied(Cause::Scarce(Some(most))) if ctx.stream.is_first_scarcity() => {
            warn_of_scarcity(ctx.sink, "copied", most);
        }
        Outcome::Spared(Some(most)) if ctx.stream.is_first_scarcity() => {
            warn_of_scarcity(ctx.sink, "dropped", most);
        }
        Outcome::Copied(cause) if ctx.stream.is_first_copy() => {
            let cause = cause.describe(buffer, &ctx.started.slots);
            gst::warning!(
                gst::CAT_PERFORMANCE,
                obj = ctx.sink,
                "Frames are copied into their slots: {cause}"
            );
        }
        Outcome::Dropped if ctx.stream.is_first_drop() => gst::warning!(
            gst::CAT_PERFORMANCE,
            obj = ctx.sink,
            "Frames are dropped: consumers and upstream hold all slots. Raise max-slots or max-bytes. If the category xmemcore \
             reports that the pool cannot grow, remove the cause that it names"
        ),
        _ => {}
    }
}

/// Warns that upstream has few buffers left. The caller holds no lock.
#[cold]
fn warn_of_scarcity(sink: &gst_base::BaseSink, verb: &str, most: u32) {
    gst::element_warning!(
        sink,
        gst::ResourceError::NoSpaceLeft,
        ("Frames are {verb}: upstream has {most} buffers, and consumers hold most of them. `xmem show` lists the consumers. \
             v4l2src io-mode=userptr writes into the slots of the pool instead, of which there are more")
    );
}

/// Posts an error with the reason why a buffer cannot be published.
#[cold]
fn fail(sink: &gst_base::BaseSink, failure: Failure) -> gst::FlowError {
    match failure {
        Failure::Cancelled | Failure::Closed => return gst::FlowError::Flushing,
        Failure::CopyForbidden(cause) => gst::element_error!(
            sink,
            gst::ResourceError::Settings,
            ("A frame would have to be copied, and copy=forbid does not allow it: {cause}")
        ),
        Failure::NoSlot(error) => {
            gst::element_error!(
                sink,
                gst::ResourceError::NoSpaceLeft,
                ("No slot for a frame: {error}")
            );
        }
        Failure::NotShareable => {
            gst::element_error!(
                sink,
                gst::StreamError::Format,
                ("The caps say memory:DMABuf, and a frame is in no DMA buffer that can be shared: \
                     have upstream give video/x-raw without that feature")
            );
        }
        Failure::Device(error) => gst::element_error!(
            sink,
            gst::ResourceError::Failed,
            ("A frame on a CUDA device cannot be shared: {error}")
        ),
        Failure::Unreadable => {
            gst::element_error!(
                sink,
                gst::ResourceError::Read,
                ("A frame's memory cannot be mapped for reading: \
                     put an element before xmemsink that gives system memory")
            );
        }
        Failure::Publish(error) => {
            gst::element_error!(
                sink,
                gst::ResourceError::Write,
                ("Cannot publish a frame: {error}")
            );
        }
    }
    gst::FlowError::Error
}

/// Publishes the buffer that `meta` describes. Its caps require the kind of memory `memory`.
fn place(
    started: &Started,
    buffer: &gst::Buffer,
    meta: &mut FrameMeta,
    memory: Memory,
    stream: &SinkStream,
    cancel: &Canceller,
) -> Result<Outcome, Failure> {
    started.slots.expect_metas(meta.attachments.encoded_len());
    match memory {
        Memory::Cuda => {
            if let Some(outcome) = device::publish(started, buffer, meta, stream, cancel)? {
                return Ok(outcome);
            }
        }
        _ if !memory.is_of(buffer) => return Err(Failure::NotShareable),
        _ => {}
    }
    let own = one_memory(buffer);
    let published = own.and_then(|own| own.publish(&started.producer, meta));
    let cause = match published {
        Some(Ok(_)) => return Ok(Outcome::InPlace),
        Some(Err(PublishError::NoRoomForAttachments { needed, room })) => {
            Cause::Metas { needed, room }
        }
        Some(Err(error)) => return Err(error.into()),
        None => Cause::Foreign,
    };
    place_elsewhere(started, buffer, meta, memory, cause, cancel)
}

/// Publishes a buffer that is not in one slot of this pool.
#[inline(never)]
fn place_elsewhere(
    started: &Started,
    buffer: &gst::Buffer,
    meta: &mut FrameMeta,
    memory: Memory,
    cause: Cause,
    cancel: &Canceller,
) -> Result<Outcome, Failure> {
    // A copy is at the start of its slot.
    meta.offset = 0;
    let may_copy = started.settings.copy != XmemSinkCopy::Forbid && memory != Memory::Dmabuf;
    let cause = match outside::publish(started, buffer, meta, may_copy, cancel)? {
        Ok(outcome) => return Ok(outcome),
        Err(scarce) => scarce.unwrap_or(cause),
    };
    if let Cause::Scarce(most) = cause {
        started.producer.note_scarce();
        if !may_copy {
            started.producer.note_dropped();
            return Ok(Outcome::Spared(most));
        }
    }
    if started.settings.copy == XmemSinkCopy::Forbid {
        return Err(Failure::CopyForbidden(
            cause.describe(buffer, &started.slots),
        ));
    }
    if memory == Memory::Dmabuf {
        return Err(Failure::NotShareable);
    }
    // A slot has at least one byte, even for an empty frame.
    let room = meta.attachments.encoded_len();
    let spec = SlotSpec::new(buffer.size().max(1)).attachments(room);
    let Some(mut lease) = started.slot(spec, cancel)? else {
        started.producer.note_dropped();
        return Ok(Outcome::Dropped);
    };
    let payload = lease
        .as_mut_slice()
        .get_mut(..buffer.size())
        .ok_or(Failure::Unreadable)?;
    buffer
        .copy_to_slice(0, payload)
        .map_err(|_| Failure::Unreadable)?;
    started.producer.note_copied();
    OwnSlot::from(lease).publish(meta)?;
    Ok(Outcome::Copied(cause))
}

/// The buffer's memory, if it has only one and that is an XmemMemory.
fn one_memory(buffer: &gst::BufferRef) -> Option<&XmemMemoryRef> {
    if buffer.n_memory() != 1 {
        return None;
    }
    buffer.peek_memory(0).downcast_memory_ref::<XmemMemory>()
}
