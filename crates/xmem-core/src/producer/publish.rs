// SPDX-License-Identifier: MPL-2.0

//! Publishes frames.

use xmem_shm::abi::entry::{FrameInfo, MAX_ATTACHED_AT};
use xmem_shm::abi::frame_layout::MetaError;
use xmem_shm::abi::limits::{MAX_NAMED_ENTRIES, MAX_NAMED_SIZE};
use xmem_shm::abi::meta::FrameMeta;
use xmem_shm::abi::parts;
use xmem_shm::bounds::is_range_inside;
use xmem_shm::fault::{self, Point};
use xmem_shm::os::clock::monotonic_ns;
use xmem_shm::protocol::lease;

use super::parts::Parts;
use super::slot::{Slot, SlotRef, has_attachments, write_attachments};
use crate::error::PublishError;
use crate::producer::pool::Pool;
use crate::producer::pool::guard::Guard;
use crate::producer::pool::history::{Kept, Span};
use crate::producer::pool::retain::Retention;
use crate::producer::pool::slots::{Attached, Place, Slots};
use crate::region::Region;

/// Publishes a claimed slot. The caller gets `own` references. `retention` is taken only if the frame is published. Consumers are
/// woken when the guard is dropped.
pub(super) fn commit<'a>(
    slot: &'a Slot,
    meta: &FrameMeta,
    retention: &mut Option<Box<Retention>>,
    own: u64,
) -> Result<(Guard<'a>, FrameInfo), PublishError> {
    let (pool, at): (&Pool, _) = (slot.pool(), slot.at());
    pool.control().expect_entry(at.number);
    let parts = retention.as_ref().and_then(|kept| kept.parts::<Parts>());
    let end = check(pool, at.place, meta, parts)?;
    // Most frames have no attachments, and need no room.
    let attached = if parts.is_some() || !meta.attachments.is_empty() {
        attach(pool, at, slot.region(), end, meta, parts)?
    } else {
        (0, 0)
    };
    let mut guard = guard_with_room(pool)?;
    if !parts.is_none_or(|parts| guard.may_forward(parts.origins())) {
        return Err(PublishError::NotReached);
    }
    let rings = retention.as_ref().is_some_and(|kept| kept.is_waited_for());
    if let Some(cell) = pool.control().slot(at.number) {
        lease::publish(cell, at.word, rings);
    }
    let record =
        |slots: &mut Slots, info: &FrameInfo| slots.publish(info, end, retention.take(), own);
    let info = make_visible(&mut guard, at, attached, meta, record);
    Ok((guard, info))
}

/// Publishes a frame again, with other metadata. The caller holds a reference. Returns the sequence.
#[inline(never)]
pub(super) fn republish(
    pool: &Pool,
    at: &SlotRef,
    region: &Region,
    meta: &FrameMeta,
) -> Result<u64, PublishError> {
    let end = check(pool, at.place, meta, None)?;
    let attached = attach(pool, at, region, end, meta, None)?;
    let mut guard = guard_with_room(pool)?;
    let record = |slots: &mut Slots, info: &FrameInfo| {
        slots.publish_again(info.slot, info.sequence, info.published_at)
    };
    let info = make_visible(&mut guard, at, attached, meta, record);
    Ok(info.sequence)
}

/// Places the attachments of a frame after all other data in its slot. A frame that is published again with the same
/// attachments needs no more room.
#[inline(never)]
fn attach(
    pool: &Pool,
    at: &SlotRef,
    region: &Region,
    end: usize,
    meta: &FrameMeta,
    parts: Option<&Parts>,
) -> Result<Attached, PublishError> {
    let (slot, place) = (at.number, at.place);
    let with_parts = parts.map(|parts| {
        let mut attachments = meta.attachments.clone();
        attachments.set(parts::NAME, parts.encode());
        attachments
    });
    let attachments = with_parts.as_ref().unwrap_or(&meta.attachments);
    if attachments.len() > MAX_NAMED_ENTRIES {
        let count = attachments.len();
        return Err(PublishError::TooManyAttachments { count });
    }
    let bytes = attachments.encode();
    let attached = {
        // Checks the ring first, because room that is reserved now would be missing in a second attempt.
        let mut guard = guard_with_room(pool)?;
        let Some(info) = guard.slots.get(slot) else {
            return Err(PublishError::Closed);
        };
        if has_attachments(region, place, info.attached, &bytes) {
            return Ok(info.attached);
        }
        let filled = info.filled.max(end);
        let attached = attachment_place(filled, place, bytes.len())?;
        // From here on no other thread writes there.
        guard.slots.fill(slot, filled.max(attached.0 + attached.1));
        attached
    };
    if attached.1 > 0 {
        write_attachments(region, place, attached.0, &bytes);
        let mut guard = pool.guard()?;
        guard.slots.set_attached(slot, attached);
    }
    Ok(attached)
}

/// Checks a frame. Returns the end of its bytes in the slot, in host memory.
fn check(
    pool: &Pool,
    place: Place,
    meta: &FrameMeta,
    parts: Option<&Parts>,
) -> Result<usize, PublishError> {
    meta.layout
        .check()
        .map_err(|MetaError(reason)| PublishError::Metadata { reason })?;
    if meta.attachments.get(parts::NAME).is_some() {
        let reason = "the attachment name xmem:parts is reserved for the places of its parts";
        return Err(PublishError::Metadata { reason });
    }
    if let Some(parts) = parts {
        parts.check(pool)?;
        return Ok(0);
    }
    if !is_range_inside(meta.offset, meta.size, place.payload_len() as u64) {
        return Err(PublishError::OutOfSlot {
            offset: meta.offset,
            end: meta.offset.saturating_add(meta.size),
            slot_size: place.payload_len(),
        });
    }
    let end = (meta.offset + meta.size) as usize;
    Ok(if place.device.is_some() { 0 } else { end })
}

/// Locks a pool that is open and, if it is lossless, has room in the ring.
// Inlined, because it runs for each frame, and a call would move the guard.
#[inline(always)]
fn guard_with_room(pool: &Pool) -> Result<Guard<'_>, PublishError> {
    let guard = pool.guard()?;
    if pool.is_closed() {
        return Err(PublishError::Closed);
    }
    if pool.lossless() && guard.backlog() >= u64::from(pool.shape().ring_len) {
        return Err(PublishError::NoRoom);
    }
    Ok(guard)
}

/// Writes the entry, moves the head and updates the history. `record` records the entry for its slot, and returns whether anything
/// waits for the release of the frame. Consumers are woken when the guard is dropped, after the lock is released.
fn make_visible(
    guard: &mut Guard<'_>,
    at: &SlotRef,
    attached: Attached,
    meta: &FrameMeta,
    record: impl FnOnce(&mut Slots, &FrameInfo) -> bool,
) -> FrameInfo {
    let control = guard.pool().control();
    let sequence = control.head();
    let (storage, device_id) = at.place.storage();
    let info = FrameInfo {
        sequence,
        events_before: guard.events as u32,
        slot: at.number,
        generation: at.word.generation(),
        published_at: monotonic_ns(),
        sticky_version: guard.sticky.version(),
        storage,
        device_id,
    };
    guard.events += u64::from(meta.event);
    let attached = (attached.0 as u64, attached.1 as u64);
    let layout = guard.layouts.find(&meta.layout, control);
    control.write_entry(&info, meta, attached, layout);
    // Another frame was published, so the stream has not ended.
    if control.eos_at().is_some() {
        control.set_eos_at(None);
    }
    fault::point(Point::EosCleared);
    control.set_head(sequence + 1);
    fault::point(Point::HeadMoved);
    // After the head, because consumers that spin wait for that. Other threads see both at once, when the lock is released.
    let is_waited_for = record(&mut guard.slots, &info);
    guard.history.push(Kept {
        slot: info.slot,
        sequence,
        event: meta.event,
        is_waited_for,
        published_at: info.published_at,
        bytes: at.place.bytes(),
    });
    guard.trim_history(Span::Time);
    control.set_oldest(guard.history.oldest(sequence));
    guard.wake_consumers();
    if sequence.is_multiple_of(64) {
        guard.tidy_later();
    }
    info
}

/// The place for this many bytes of attachments in a slot that is filled up to `filled`.
fn attachment_place(filled: usize, place: Place, needed: usize) -> Result<Attached, PublishError> {
    if needed == 0 {
        return Ok((0, 0));
    }
    let end = place.len.min(MAX_ATTACHED_AT as usize);
    let room = end.saturating_sub(filled).min(MAX_NAMED_SIZE);
    if needed > room {
        return Err(PublishError::NoRoomForAttachments { needed, room });
    }
    Ok((filled, needed))
}
