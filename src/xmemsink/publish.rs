// SPDX-License-Identifier: MPL-2.0

//! Publishes a buffer in a slot: in place if upstream wrote it into one of this pool, otherwise with one copy.

use xmem_core::{Canceller, FrameMeta, OwnSlot, PublishError, SlotSpec};

use super::{
    device,
    enums::XmemSinkCopy,
    outcome::{Cause, Failure, Outcome},
    parts,
    started::Started,
    stream::Stream,
};
use crate::buffers::memory::{XmemMemory, XmemMemoryRef};
use crate::stream::frame::Memory;

/// Publishes the buffer that `meta` describes. Its caps require the kind of memory `memory`.
pub(super) fn publish(
    started: &Started,
    buffer: &gst::Buffer,
    meta: &FrameMeta,
    memory: Memory,
    stream: &Stream,
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
    publish_other(started, buffer, meta, memory, cause, cancel)
}

/// Publishes a buffer that is not in one slot of this pool.
#[inline(never)]
fn publish_other(
    started: &Started,
    buffer: &gst::Buffer,
    meta: &FrameMeta,
    memory: Memory,
    cause: Cause,
    cancel: &Canceller,
) -> Result<Outcome, Failure> {
    let may_copy = started.settings.copy != XmemSinkCopy::Forbid && memory != Memory::Dmabuf;
    let cause = match parts::publish(started, buffer, meta, may_copy, cancel)? {
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
    OwnSlot::from(lease).publish(0, meta)?;
    Ok(Outcome::Copied(cause))
}

/// The buffer's memory, if it has only one and that is an XmemMemory.
fn one_memory(buffer: &gst::BufferRef) -> Option<&XmemMemoryRef> {
    if buffer.n_memory() != 1 {
        return None;
    }
    buffer.peek_memory(0).downcast_memory_ref::<XmemMemory>()
}
