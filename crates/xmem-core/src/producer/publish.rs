// SPDX-License-Identifier: MPL-2.0

//! Making a frame visible.

use std::sync::{Arc, MutexGuard};

use xmem_shm::abi::entry::Entry;
use xmem_shm::abi::limits::{MAX_NAMED_ENTRIES, MAX_NAMED_SIZE};
use xmem_shm::abi::meta::{FrameMeta, MetaError, Storage};
use xmem_shm::abi::named::Sticky;
use xmem_shm::abi::parts;
use xmem_shm::bounds::lie_inside;
use xmem_shm::fault::{self, Point};
use xmem_shm::os::clock::monotonic_ns;
use xmem_shm::protocol::lease;

use super::history::Span;
use super::import::Parts;
use super::own_hold::OwnHold;
use super::pool::{Claimed, Pool};
use super::regions::Cold;
use super::slots::{Hook, Keep, Place, SlotInfo};
use super::state::{Effects, Kept, State};
use super::write_lease::{has_attachments, write_attachments};
use crate::error::PublishError;
use crate::region::Region;

/// Where a frame's attachments lie in its slot: first byte and length.
type Attached = (usize, usize);

/// Actions that wait for the release of a frame, and the parts that are kept until then.
#[derive(Default)]
pub(super) struct ReleaseHooks {
    pub(super) hook: Option<Hook>,
    pub(super) keep: Option<u32>,
    pub(super) parts: Option<Parts>,
}

impl ReleaseHooks {
    /// Whether there is anything to do when the frame is released.
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

impl Pool {
    /// Publishes a claimed slot, whose payload was checked, and completes its metadata. The caller gets a reference.
    pub(super) fn publish(
        &self,
        claimed: &Claimed,
        meta: &mut FrameMeta,
        hooks: Option<&mut ReleaseHooks>,
    ) -> Result<Arc<Sticky>, PublishError> {
        let rings = hooks.as_ref().is_some_and(|hooks| hooks.any());
        let parts = hooks.as_ref().and_then(|hooks| hooks.parts.as_ref());
        // Most frames have none, and need no room.
        let attached = if parts.is_some() || !meta.attachments.is_empty() {
            self.attach(claimed.slot, claimed.place, &claimed.region, meta, parts)?
        } else {
            (0, 0)
        };
        let payload_end = payload_end(meta, parts, claimed.place);
        let mut state = self.lock();
        self.check_room(&state)?;
        let may = |parts: &Parts| state.may_forward(parts.origins(), self.lossless());
        if !parts.is_none_or(may) {
            return Err(PublishError::NotReached);
        }
        if let Some(info) = state.slots.get_mut(claimed.slot) {
            // Nobody else could publish the slot so far, so nothing was attached behind less than this.
            info.filled = info.filled.max(payload_end);
            if let Some(hooks) = hooks {
                info.hook = hooks.take_hook();
                info.keep = hooks.keep.map(|until| Keep { until, departed: 0 });
            }
        }
        if let Some(cell) = self.control.slot(claimed.slot) {
            lease::publish(cell, claimed.word, rings);
        }
        Ok(self.announce(
            state,
            claimed.slot,
            claimed.word.generation(),
            claimed.place,
            attached,
            meta,
        ))
    }

    /// Publishes a frame that is published already once more, with other metadata. The caller has a reference, and
    /// gets another one. Returns the sequence.
    pub(super) fn republish(
        &self,
        hold: &OwnHold,
        mut meta: FrameMeta,
    ) -> Result<u64, PublishError> {
        self.check_payload(&meta, hold.place)?;
        let attached = self.attach(hold.slot, hold.place, hold.region(), &meta, None)?;
        let state = self.lock();
        self.check_room(&state)?;
        let OwnHold {
            slot,
            generation,
            place,
            ..
        } = *hold;
        self.announce(state, slot, generation, place, attached, &mut meta);
        Ok(meta.sequence)
    }

    /// Puts what is attached to a frame behind all that frames of its slot have there. A frame that is repeated with the
    /// attachments that it had takes no more room.
    fn attach(
        &self,
        slot: u32,
        place: Place,
        region: &Region,
        meta: &FrameMeta,
        parts: Option<&Parts>,
    ) -> Result<Attached, PublishError> {
        let with_parts = parts.map(|parts| {
            let mut attachments = meta.attachments.clone();
            attachments.set(parts::NAME, parts.encode());
            attachments
        });
        let payload_end = payload_end(meta, parts, place);
        let attachments = with_parts.as_ref().unwrap_or(&meta.attachments);
        if attachments.len() > MAX_NAMED_ENTRIES {
            let count = attachments.len();
            return Err(PublishError::TooManyAttachments { count });
        }
        let bytes = attachments.encode();
        let attached = {
            let mut state = self.lock();
            // Before room is taken that a second try would miss.
            self.check_room(&state)?;
            let Some(info) = state.slots.get_mut(slot) else {
                return Err(PublishError::Closed);
            };
            if has_attachments(region, place, info.attached, &bytes) {
                return Ok(info.attached);
            }
            let filled = info.filled.max(payload_end);
            let attached = room_behind(filled, place, bytes.len())?;
            // From here on nobody else writes there.
            info.filled = filled.max(attached.0 + attached.1);
            attached
        };
        if attached.1 > 0 {
            write_attachments(region, place, attached.0, &bytes);
            if let Some(info) = self.lock().slots.get_mut(slot) {
                info.attached = attached;
            }
        }
        Ok(attached)
    }

    pub(super) fn check_payload(&self, meta: &FrameMeta, place: Place) -> Result<(), PublishError> {
        self.check_metadata(meta)?;
        if !lie_inside(meta.offset, meta.size, place.payload_len() as u64) {
            return Err(PublishError::OutOfSlot {
                offset: meta.offset,
                end: meta.offset.saturating_add(meta.size),
                slot_size: place.payload_len(),
            });
        }
        Ok(())
    }

    pub(super) fn check_parts(
        self: &Arc<Self>,
        meta: &mut FrameMeta,
        parts: &Parts,
    ) -> Result<(), PublishError> {
        self.check_metadata(meta)?;
        if !parts.are_of(self) {
            return Err(PublishError::Parts { count: parts.len() });
        }
        meta.offset = 0;
        meta.size = parts.size();
        Ok(())
    }

    /// What holds wherever a frame lies.
    fn check_metadata(&self, meta: &FrameMeta) -> Result<(), PublishError> {
        if !self.process.is_current() {
            return Err(PublishError::Forked);
        }
        meta.check()
            .map_err(|MetaError(reason)| PublishError::Metadata { reason })?;
        if meta.attachments.get(parts::NAME).is_some() {
            let reason = "attachments of the name xmem:parts say where its pieces lie";
            return Err(PublishError::Metadata { reason });
        }
        Ok(())
    }

    pub(super) fn check_room(&self, state: &State) -> Result<(), PublishError> {
        if state.closed {
            return Err(PublishError::Closed);
        }
        if self.lossless() && self.backlog(state) >= u64::from(self.shape().ring_len) {
            return Err(PublishError::NoRoom);
        }
        Ok(())
    }

    /// The entry, the head, the history; then the wake-ups.
    pub(super) fn announce(
        &self,
        mut state: MutexGuard<'_, State>,
        slot: u32,
        generation: u32,
        place: Place,
        attached: Attached,
        meta: &mut FrameMeta,
    ) -> Arc<Sticky> {
        let sequence = self.control.head();
        meta.sequence = sequence;
        meta.events_before = state.events;
        state.events = state.events.wrapping_add(meta.event.into());
        meta.slot = slot;
        if let Some(device) = place.device {
            meta.storage = Storage::Cuda;
            meta.device_id = u8::try_from(device.ordinal).unwrap_or(u8::MAX);
        }
        meta.generation = generation;
        meta.published_at = monotonic_ns();
        meta.sticky_version = state.sticky.version();
        self.control.write_entry(&Entry {
            region: place.region,
            offset: place.offset as u64,
            len: place.len as u64,
            attached: (attached.0 as u64, attached.1 as u64),
            meta: &*meta,
        });
        // One reference for the caller, one for the history.
        state.slots.reference(slot);
        state.slots.reference(slot);
        if let Some(info) = state.slots.get_mut(slot) {
            info.last_sequence = sequence;
            info.published_at = meta.published_at;
        }
        let is_waited_for = |info: &SlotInfo| info.hook.is_some() || info.keep.is_some();
        let is_waited_for = state.slots.get(slot).is_some_and(is_waited_for);
        let before = state.history.back().and_then(|kept| kept.time);
        let time = meta.decode_timestamp.or(meta.timestamp);
        state.history.push_back(Kept {
            slot,
            sequence,
            event: meta.event,
            is_waited_for,
            time: time.or(before.filter(|_| meta.event)),
        });
        // A stream with one more frame is not over.
        self.control.set_eos_at(None);
        fault::point(Point::EosCleared);
        self.control.set_head(sequence + 1);
        fault::point(Point::HeadMoved);
        let mut effects = Effects {
            wake: true,
            ..Effects::default()
        };
        self.trim_history(&mut state, Span::Time, &mut effects);
        // Events may stand between the frames that are kept.
        let frames_only = (sequence + 1).saturating_sub(self.settings.history.max(1).into());
        let oldest = state.history.front().map_or(sequence, |kept| kept.sequence);
        self.control.set_oldest(oldest.min(frames_only));
        if sequence.is_multiple_of(64) {
            // Lies that cost no slot are found too, if later.
            state.audit(&self.control, &mut effects);
            state
                .sticky
                .forget_before((sequence + 1).saturating_sub(self.shape().ring_len.into()));
            state.retire(
                &self.control,
                Cold::ByNow,
                self.settings.min_slots,
                self.lossless(),
                &mut effects,
            );
            state.share_out(&self.control, &self.settings, &mut effects);
        }
        let sticky = state.sticky.current();
        let peers = state.peers.clone();
        drop(state);
        self.run(effects, Some(peers));
        sticky
    }
}

/// Up to where a frame has bytes in its slot, in host memory.
fn payload_end(meta: &FrameMeta, parts: Option<&Parts>, place: Place) -> usize {
    if parts.is_some() || place.device.is_some() {
        return 0;
    }
    // It lies inside the slot (`check_payload`).
    (meta.offset + meta.size) as usize
}

/// Where attachments of so many bytes go in a slot that is filled so far.
fn room_behind(filled: usize, place: Place, needed: usize) -> Result<Attached, PublishError> {
    if needed == 0 {
        return Ok((0, 0));
    }
    let room = place.len.saturating_sub(filled).min(MAX_NAMED_SIZE);
    if needed > room {
        return Err(PublishError::NoRoomForAttachments { needed, room });
    }
    Ok((filled, needed))
}
