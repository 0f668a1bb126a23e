// SPDX-License-Identifier: MPL-2.0

//! A buffer into a slot: where it lies if upstream wrote it into one of ours, with one copy if not.

use xmem_core::{Canceller, FrameMeta, OwnSlot, PublishError, SlotSpec};

use super::{
    device,
    enums::XmemSinkCopy,
    outcome::{Cause, Failure, Outcome},
    pieces,
    started::Started,
};
use crate::frame::{Format, Memory};
use crate::memory::{XmemMemory, XmemMemoryRef};

/// Publishes a buffer that `meta` describes.
pub(super) fn publish(
    started: &Started,
    buffer: &gst::Buffer,
    meta: &FrameMeta,
    format: &Format,
    cancel: &Canceller,
) -> Result<Outcome, Failure> {
    if !format.keeps_its_word(buffer) {
        return Err(Failure::NotShareable);
    }
    let room = meta.attachments.encoded_len();
    started.slots.expect_metas(room);
    if let Some(outcome) = device::publish(started, buffer, meta, format, cancel)? {
        return Ok(outcome);
    }
    let mut cause = Cause::Foreign;
    let own = one_memory(buffer);
    if let Some(result) = own.and_then(|own| own.publish(&started.producer, meta)) {
        match result {
            Ok(_) => return Ok(Outcome::InPlace),
            Err(PublishError::NoRoomForAttachments { needed, room }) => {
                cause = Cause::Metas { needed, room };
            }
            Err(error) => return Err(error.into()),
        }
    }
    if let Some(outcome) = pieces::publish(started, buffer, meta, cancel)? {
        return Ok(outcome);
    }
    if started.settings.copy == XmemSinkCopy::Forbid {
        return Err(Failure::CopyForbidden(
            cause.describe(buffer, &started.slots),
        ));
    }
    if format.memory == Memory::Dmabuf {
        return Err(Failure::NotShareable);
    }
    // A slot has at least one byte, also for a frame that has none.
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

/// The one memory of the buffer, if it is one of ours.
fn one_memory(buffer: &gst::BufferRef) -> Option<&XmemMemoryRef> {
    if buffer.n_memory() != 1 {
        return None;
    }
    buffer.peek_memory(0).downcast_memory_ref::<XmemMemory>()
}
