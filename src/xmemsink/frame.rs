// SPDX-License-Identifier: MPL-2.0

//! One buffer on its way into the pool: described, then published in place if upstream wrote it into a slot of this pool,
//! otherwise elsewhere or with one copy.

use gst::prelude::*;
use xmem_core::{Canceller, FrameMeta, OwnSlot, PublishError, SlotSpec};

use super::{
    base::{self, CAT, Data},
    consumers::Requests,
    device, outside,
    run::{Cause, Failure, Outcome, Started},
    settings::XmemSinkCopy,
    stream::{Described, Mismatch, Report, SinkStream, UNSHARED},
    when::SinkContext,
};
use crate::{
    buffers::memory::XmemMemory,
    stream::{
        frame::{self, Memory},
        meta::{self, Losses},
    },
};

/// So many frames in a row that do not match their caps are an error. Fewer are not published, because where inputs are switched, a
/// frame of the previous input can follow the caps of the next one.
const MOST_MISMATCHES: u32 = 10;

/// Describes a buffer that differs from the last one, and reports lost metas. The times on CLOCK_MONOTONIC are set later. `None`: it
/// is not published as a whole, since it does not match its caps, or since samples of it are outside of the segment.
#[inline(never)]
pub(super) fn describe(
    ctx: SinkContext<'_>,
    buffer: &gst::BufferRef,
    losses: &Losses,
) -> Result<Option<Described>, gst::FlowError> {
    ctx.stream.settle_caps(buffer);
    let format = ctx.stream.format();
    let info = format.audio_info.as_ref();
    if info
        .is_some_and(|info| !matches!(clip(base::segment(ctx.sink), info, buffer), Clipped::Whole))
    {
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

/// The samples inside the segment, of a buffer that was not described, and how many were outside. `None`: there are none inside, or
/// it does not contain samples.
#[cold]
pub(super) fn part(ctx: SinkContext<'_>, buffer: &gst::BufferRef) -> Option<(gst::Buffer, u64)> {
    let format = ctx.stream.format();
    match clip(base::segment(ctx.sink), format.audio_info.as_ref()?, buffer) {
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
    let data = Data::Buffer(buffer);
    let Described { meta, memory } = described;
    loop {
        let mapping = match ctx.prepare(data) {
            Err(UNSHARED) => {
                ctx.started.producer.note_dropped();
                return Ok(Outcome::Spared(None));
            }
            mapping => mapping?,
        };
        let stamps = mapping.stamps(ctx.sink, buffer);
        meta.timestamp = stamps.presentation;
        meta.decode_timestamp = stamps.decoding;
        let num_requested = requests.num_requested();
        let attempt =
            |cancel: &Canceller| place(ctx.started, buffer, meta, *memory, ctx.stream, cancel);
        let is_cancelled = |failure: &Failure| matches!(failure, Failure::Cancelled);
        // Live delivery does not wait.
        let waits = ctx.started.is_lossless();
        let Some(result) = ctx.try_once(data, waits, attempt, is_cancelled)? else {
            continue;
        };
        let outcome = result.map_err(|failure| fail(ctx.sink, failure))?;
        gst::trace!(CAT, obj = ctx.sink, "{outcome:?} {meta:?}");
        let is_key_frame = !buffer.flags().contains(gst::BufferFlags::DELTA_UNIT);
        if is_key_frame && !matches!(outcome, Outcome::Dropped | Outcome::Spared(_)) {
            requests.note_key_frame(num_requested);
        }
        return Ok(outcome);
    }
}

/// Warns in the category GST_PERFORMANCE that frames are copied or dropped, with the reason. Once for each format.
#[inline(never)]
pub(super) fn report(ctx: SinkContext<'_>, buffer: &gst::Buffer, outcome: Outcome) {
    match outcome {
        Outcome::Copied(Cause::Scarce(Some(most))) if ctx.stream.reports(Report::Scarcity) => {
            warn_of_scarcity(ctx.sink, "copied", most);
        }
        Outcome::Spared(Some(most)) if ctx.stream.reports(Report::Scarcity) => {
            warn_of_scarcity(ctx.sink, "dropped", most);
        }
        Outcome::Copied(cause) if ctx.stream.reports(Report::Copies) => {
            let cause = cause.describe(buffer, &ctx.started.slots);
            gst::warning!(
                gst::CAT_PERFORMANCE,
                obj = ctx.sink,
                "Frames are copied into their slots: {cause}"
            );
        }
        Outcome::Dropped if ctx.stream.reports(Report::Drops) => gst::warning!(
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
        Failure::Cancelled => return gst::FlowError::Flushing,
        Failure::Closed => gst::element_error!(
            sink,
            gst::ResourceError::Failed,
            ("The pool has ended, because its thread failed. The category xmemcore reports the cause")
        ),
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
    let only = (buffer.n_memory() == 1).then(|| buffer.peek_memory(0));
    let own = only.and_then(|memory| memory.downcast_memory_ref::<XmemMemory>());
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

/// What is left of a buffer of raw sound. Sinks and encoders remove the samples outside of its segment, by the segment, which
/// consumers do not have. So xmemsink removes them. The others stay where they are in memory.
#[derive(Debug)]
enum Clipped {
    /// It is inside as a whole, or has no time or no samples.
    Whole,
    /// The samples inside, and how many were outside.
    Part(gst::Buffer, u64),
    Nothing,
}

/// The part of a buffer that is inside its segment.
fn clip(segment: &gst::Segment, info: &gst_audio::AudioInfo, buffer: &gst::BufferRef) -> Clipped {
    let (Some(times), Some(start)) = (segment.downcast_ref::<gst::ClockTime>(), buffer.pts())
    else {
        return Clipped::Whole;
    };
    let end = start.saturating_add(duration(info, buffer));
    let samples = num_samples(info, buffer);
    if samples == 0 || times.clip(start, end) == Some((Some(start), Some(end))) {
        return Clipped::Whole;
    }
    // A copy of the buffer and not of its memory: GStreamer 1.22 would change the GstAudioMeta of a shared buffer.
    let part = gst_audio::audio_buffer_clip(buffer.copy(), segment, info.rate(), info.bpf());
    let left = part.as_ref().map_or(0, |part| num_samples(info, part));
    match part {
        // Less than a sample is outside.
        Some(_) if left == samples => Clipped::Whole,
        Some(part) if left > 0 => Clipped::Part(part, samples.saturating_sub(left)),
        _ => Clipped::Nothing,
    }
}

fn num_samples(info: &gst_audio::AudioInfo, buffer: &gst::BufferRef) -> u64 {
    let meta = buffer.meta::<gst_audio::AudioMeta>();
    let samples = meta.map_or_else(
        || buffer.size() / (info.bpf().max(1) as usize),
        |meta| meta.samples(),
    );
    samples as u64
}

/// A demuxer may leave out the duration.
fn duration(info: &gst_audio::AudioInfo, buffer: &gst::BufferRef) -> gst::ClockTime {
    let by_samples =
        || gst::ClockTime::SECOND.mul_div_floor(num_samples(info, buffer), info.rate().into());
    buffer.duration().or_else(by_samples).unwrap_or_default()
}
