// SPDX-License-Identifier: MPL-2.0

//! Publishes frames.

use std::sync::Arc;

use xmem_shm::abi::entry::MAX_ATTACHED_AT;
use xmem_shm::abi::frame_info::FrameInfo;
use xmem_shm::abi::frame_layout::MetaError;
use xmem_shm::abi::limits::{MAX_NAMED_ENTRIES, MAX_NAMED_SIZE};
use xmem_shm::abi::meta::FrameMeta;
use xmem_shm::abi::parts;
use xmem_shm::bounds::is_range_inside;
use xmem_shm::fault::{self, Point};
use xmem_shm::os::clock::monotonic_ns;
use xmem_shm::protocol::lease;

use super::forward::may_forward;
use super::import::Parts;
use super::owned::{has_attachments, write_attachments};
use crate::error::PublishError;
use crate::producer::pool::Pool;
use crate::producer::pool::guard::Guard;
use crate::producer::pool::history::{Kept, Span};
use crate::producer::pool::regions::Cold;
use crate::producer::pool::slots::{Attached, Claimed, Hook, Keep, Place};

/// Actions for the release of a frame, and the parts that are kept until then.
#[derive(Default)]
pub(super) struct ReleaseHooks {
    pub(super) hook: Option<Hook>,
    pub(super) keep: Option<Box<Keep>>,
    pub(super) parts: Option<Parts>,
}

impl ReleaseHooks {
    /// Whether anything is to be done when the frame is released.
    fn any(&self) -> bool {
        self.hook.is_some() || self.keep.is_some() || self.parts.is_some()
    }

    /// The action for the release of the frame: its parts are dropped, then the hook runs.
    fn take_hook(&mut self) -> Option<Hook> {
        let hook = self.hook.take();
        let Some(parts) = self.parts.take() else {
            return hook;
        };
        Some(Box::new(move || {
            drop(parts);
            if let Some(hook) = hook {
                hook();
            }
        }))
    }
}

/// Publishes a claimed slot whose payload was checked. The caller gets a reference. Consumers are woken when the guard is dropped.
pub(super) fn publish_claimed<'a>(
    pool: &'a Pool,
    claimed: &Claimed,
    meta: &FrameMeta,
    hooks: Option<&mut ReleaseHooks>,
) -> Result<(Guard<'a>, FrameInfo), PublishError> {
    let rings = hooks.as_ref().is_some_and(|hooks| hooks.any());
    let parts = hooks.as_ref().and_then(|hooks| hooks.parts.as_ref());
    let payload_end = payload_end(meta, parts, claimed.place);
    // Most frames have no attachments, and need no room.
    let attached = if parts.is_some() || !meta.attachments.is_empty() {
        attach(pool, claimed, payload_end, meta, parts)?
    } else {
        (0, 0)
    };
    let mut guard = pool.guard()?;
    check_room(&guard)?;
    if !parts.is_none_or(|parts| may_forward(&guard, parts.origins())) {
        return Err(PublishError::NotReached);
    }
    // Until now no other thread could publish the slot, so no attachments were placed before this end.
    guard.slots.fill(claimed.slot, payload_end);
    if let Some(hooks) = hooks {
        let is_borrowed = hooks.parts.as_ref().is_some_and(Parts::is_borrowed);
        let (hook, keep) = (hooks.take_hook(), hooks.keep.take());
        guard.slots.set_hooks(claimed.slot, hook, is_borrowed, keep);
    }
    if let Some(cell) = pool.control().slot(claimed.slot) {
        lease::publish(cell, claimed.word, rings);
    }
    guard.slots.reference(claimed.slot);
    let info = announce(&mut guard, claimed, attached, meta);
    Ok((guard, info))
}

/// Publishes a frame again, with other metadata. The caller holds a reference. Returns the sequence.
#[inline(never)]
pub(in crate::producer) fn republish(
    pool: &Pool,
    claimed: &Claimed,
    meta: &FrameMeta,
) -> Result<u64, PublishError> {
    check_payload(meta, claimed.place)?;
    let payload_end = payload_end(meta, None, claimed.place);
    let attached = attach(pool, claimed, payload_end, meta, None)?;
    let mut guard = pool.guard()?;
    check_room(&guard)?;
    Ok(announce(&mut guard, claimed, attached, meta).sequence)
}

/// Places the attachments of a frame after all other data in its slot. A frame that is published again with the same
/// attachments needs no more room.
#[inline(never)]
fn attach(
    pool: &Pool,
    claimed: &Claimed,
    payload_end: usize,
    meta: &FrameMeta,
    parts: Option<&Parts>,
) -> Result<Attached, PublishError> {
    let (slot, place, region) = (claimed.slot, claimed.place, &claimed.region);
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
        let mut guard = pool.guard()?;
        // Checked first, because room that is reserved now would be missing in a second attempt.
        check_room(&guard)?;
        let Some(info) = guard.slots.get(slot) else {
            return Err(PublishError::Closed);
        };
        if has_attachments(region, place, info.attached, &bytes) {
            return Ok(info.attached);
        }
        let filled = info.filled.max(payload_end);
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

pub(super) fn check_payload(meta: &FrameMeta, place: Place) -> Result<(), PublishError> {
    check_metadata(meta)?;
    if !is_range_inside(meta.offset, meta.size, place.payload_len() as u64) {
        return Err(PublishError::OutOfSlot {
            offset: meta.offset,
            end: meta.offset.saturating_add(meta.size),
            slot_size: place.payload_len(),
        });
    }
    Ok(())
}

pub(super) fn check_parts(
    pool: &Arc<Pool>,
    meta: &mut FrameMeta,
    parts: &Parts,
) -> Result<(), PublishError> {
    check_metadata(meta)?;
    parts.check(pool)?;
    (meta.offset, meta.size) = (0, parts.size());
    Ok(())
}

/// Checks that apply to frames in any memory.
fn check_metadata(meta: &FrameMeta) -> Result<(), PublishError> {
    meta.check()
        .map_err(|MetaError(reason)| PublishError::Metadata { reason })?;
    if meta.attachments.get(parts::NAME).is_some() {
        let reason = "the attachment name xmem:parts is reserved for the places of its parts";
        return Err(PublishError::Metadata { reason });
    }
    Ok(())
}

fn check_room(guard: &Guard<'_>) -> Result<(), PublishError> {
    let pool = guard.pool();
    if pool.is_closed() {
        return Err(PublishError::Closed);
    }
    if pool.lossless() && guard.backlog() >= u64::from(pool.shape().ring_len) {
        return Err(PublishError::NoRoom);
    }
    Ok(())
}

/// Writes the entry, moves the head and updates the history. Consumers are woken when the guard is dropped, after the lock is
/// released.
fn announce(
    guard: &mut Guard<'_>,
    claimed: &Claimed,
    attached: Attached,
    meta: &FrameMeta,
) -> FrameInfo {
    let control = guard.pool().control();
    let sequence = control.head();
    let slot = claimed.slot;
    let (storage, device_id) = claimed.place.storage();
    let info = FrameInfo {
        sequence,
        events_before: guard.events as u32,
        slot,
        generation: claimed.word.generation(),
        published_at: monotonic_ns(),
        sticky_version: guard.sticky.version(),
        storage,
        device_id,
    };
    guard.events += u64::from(meta.event);
    let attached = (attached.0 as u64, attached.1 as u64);
    let layout = guard.layouts.find(&meta.layout, control);
    control.write_entry(&info, meta, attached, layout);
    let is_waited_for = guard.slots.publish(slot, sequence, info.published_at);
    guard.history.push(Kept {
        slot,
        sequence,
        event: meta.event,
        is_waited_for,
        published_at: info.published_at,
        bytes: claimed.place.bytes(),
    });
    // Another frame was published, so the stream has not ended.
    control.set_eos_at(None);
    fault::point(Point::EosCleared);
    control.set_head(sequence + 1);
    fault::point(Point::HeadMoved);
    guard.trim_history(Span::Time);
    control.set_oldest(guard.history.oldest(sequence));
    if sequence.is_multiple_of(64) {
        tidy(guard, sequence);
    }
    guard.wake_consumers();
    info
}

/// Checks consumers and trims the state of the pool. Called every few frames.
#[cold]
fn tidy(guard: &mut Guard<'_>, sequence: u64) {
    // Finds violations that did not cost a slot.
    guard.audit();
    let ring_len = guard.pool().shape().ring_len;
    let oldest = (sequence + 1).saturating_sub(ring_len.into());
    guard.sticky.forget_before(oldest);
    guard.retire(Cold::ByNow);
    guard.share_out();
}

/// The end of the frame's bytes in its slot, in host memory.
fn payload_end(meta: &FrameMeta, parts: Option<&Parts>, place: Place) -> usize {
    if parts.is_some() || place.device.is_some() {
        return 0;
    }
    // The payload is inside of the slot (`check_payload`).
    (meta.offset + meta.size) as usize
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
