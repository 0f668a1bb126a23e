// SPDX-License-Identifier: MPL-2.0

//! The producer's record of each slot: its place, and the producer's references.

use xmem_shm::abi::device_header::SLOT_HEAD;
use xmem_shm::abi::entry::{FrameInfo, Storage};
use xmem_shm::abi::layout::Control;
use xmem_shm::abi::place::SharedPlace;
use xmem_shm::protocol::lease::SlotWord;
use xmem_shm::sync::Ordering;

use super::retain::{Hook, Readers, Retention};

/// The place of a frame's attachments in its slot: first byte and length.
pub(in crate::producer) type Attached = (usize, usize);

/// The word of a slot. It changes only under the lock of the pool.
pub(in crate::producer) fn word(control: &Control, slot: u32) -> Option<SlotWord> {
    let word = control.slot(slot)?;
    Some(SlotWord(word.load(Ordering::Relaxed)))
}

/// The place of a slot's bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::producer) struct Place {
    pub(in crate::producer) region: u32,
    pub(in crate::producer) offset: usize,
    pub(in crate::producer) len: usize,
    /// The place of its payload, if that is on a device.
    pub(in crate::producer) device: Option<DevicePlace>,
}

/// The part of a slot that is on a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::producer) struct DevicePlace {
    /// Size in bytes.
    pub(in crate::producer) len: usize,
    /// The slot's number in its region.
    pub(in crate::producer) index: u32,
    /// The device's number in this process.
    pub(super) ordinal: u16,
    /// Frames are in other memory, and the slot has only their CUDA events.
    pub(super) events_only: bool,
}

impl Place {
    /// The memory of its payload, and the number of its device.
    pub(in crate::producer) fn storage(self) -> (Storage, u8) {
        match self.device {
            Some(device) => (
                Storage::Cuda,
                u8::try_from(device.ordinal).unwrap_or(u8::MAX),
            ),
            None => (Storage::Cpu, 0),
        }
    }

    /// The place in the form for consumers.
    pub(super) fn shared(self) -> SharedPlace {
        let (storage, device_id) = self.storage();
        SharedPlace {
            region: self.region,
            offset: self.offset as u64,
            len: self.len as u64,
            storage,
            device_id,
        }
    }

    /// The size in all memories.
    pub(in crate::producer) fn bytes(self) -> u64 {
        (self.len + self.device.map_or(0, |device| device.len)) as u64
    }

    /// The maximum size of a payload.
    pub(in crate::producer) fn payload_len(self) -> usize {
        self.device.map_or(self.len, |device| device.len)
    }

    /// The end of the reserved host memory of the slot, for any payload.
    pub(in crate::producer) fn filled(self) -> usize {
        self.device.map_or(0, |_| SLOT_HEAD)
    }

    /// The offset of the payload in its region. If the slot has only events, the number of the slot.
    pub(in crate::producer) fn payload_at(self) -> u64 {
        match self.device {
            None => self.offset as u64,
            Some(device) if device.events_only => device.index.into(),
            Some(device) => u64::from(device.index) * device.len as u64,
        }
    }
}

/// The requirements of a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::producer) struct Want {
    /// Bytes of payload.
    pub(in crate::producer) size: usize,
    /// Bytes of room for attachments.
    pub(in crate::producer) room: usize,
    /// The number of the device for the payload in this process.
    pub(in crate::producer) device: Option<u16>,
    /// For a frame that does not exist yet (`SlotSpec::ahead`).
    pub(in crate::producer) is_ahead: bool,
}

impl Want {
    /// The size of a slot in the memory of the payload.
    pub(in crate::producer) fn slot_size(self) -> usize {
        match self.device {
            None => self.size.saturating_add(self.room),
            Some(_) => self.size,
        }
    }

    /// The end of the reserved host memory of a new slot.
    pub(in crate::producer) fn filled(self) -> usize {
        match self.device {
            None => self.size,
            Some(_) => SLOT_HEAD,
        }
    }
}

/// How the producer uses a slot.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(in crate::producer) enum Use {
    /// The slot has no place in any region.
    #[default]
    Unassigned,
    /// The producer does not use it. It may have a frame that consumers can take or hold.
    Idle,
    /// A `WriteLease` exists.
    Writing,
    /// It is published, and the producer has this many references.
    Referenced(u64),
}

// Aligned, so that the records of other slots are in other cache lines.
#[derive(Debug, Default)]
#[repr(align(64))]
pub(in crate::producer) struct SlotInfo {
    pub(in crate::producer) place: Option<Place>,
    pub(in crate::producer) used: Use,
    /// The end of the bytes that frames of this generation may use. Later attachments are placed after it.
    pub(in crate::producer) filled: usize,
    /// The place of the newest attachments of this generation: first byte and length.
    pub(in crate::producer) attached: Attached,
    /// The sequence of the newest entry for the slot.
    pub(super) last_sequence: u64,
    pub(super) published_at: i64,
    pub(super) retention: Option<Box<Retention>>,
}

impl SlotInfo {
    /// Whether a hook, parts or readers wait for the release of its frame.
    fn is_waited_for(&self) -> bool {
        let retention = self.retention.as_ref();
        retention.is_some_and(|retention| retention.is_waited_for())
    }

    /// Whether the producer does not use the slot, and no other code waits for the release of its frame.
    pub(in crate::producer) fn can_be_claimed(&self) -> bool {
        let retention = self.retention.as_ref();
        self.used == Use::Idle && !retention.is_some_and(|retention| retention.has_release())
    }

    /// The readers for which its frame is kept.
    pub(in crate::producer) fn readers(&self) -> Option<&Readers> {
        self.retention.as_ref()?.readers()
    }
}

/// The slots of a pool.
#[derive(Debug, Default)]
pub(in crate::producer) struct Slots {
    /// Those that have or had a place, by number. Most pools never need all slots that they can have.
    slots: Vec<SlotInfo>,
    /// The number of slots that have a place.
    assigned: u32,
    /// The idle slots: those of the newest region first, and in each region the most recently used last. They are taken from
    /// the end, for two reasons: the most recently used slot is likely in a cache, and regions that were allocated for a peak
    /// become unused after the peak.
    idle: Vec<u32>,
    /// Idle slots whose frames have a hook or a count, and which consumers hold or have not taken yet.
    watched: Vec<u32>,
}

impl Slots {
    pub(in crate::producer) fn get(&self, slot: u32) -> Option<&SlotInfo> {
        self.slots.get(slot as usize)
    }

    fn get_mut(&mut self, slot: u32) -> Option<&mut SlotInfo> {
        self.slots.get_mut(slot as usize)
    }

    /// The slots that have or had a place.
    pub(in crate::producer) fn iter(&self) -> impl Iterator<Item = (u32, &SlotInfo)> {
        (0..).zip(&self.slots)
    }

    /// The slots of a region.
    pub(super) fn of_region(&self, region: u32) -> impl Iterator<Item = (u32, &SlotInfo)> {
        self.iter()
            .filter(move |(_, info)| info.place.is_some_and(|place| place.region == region))
    }

    /// The number of slots that have a place.
    pub(in crate::producer) fn assigned(&self) -> u32 {
        self.assigned
    }

    /// The number of slots that the producer uses: slots that are being written, or to which it has references.
    pub(super) fn used(&self) -> u32 {
        self.assigned.saturating_sub(self.idle.len() as u32)
    }

    /// The idle slots, in the order in which they are taken.
    pub(in crate::producer) fn idle(&self) -> impl Iterator<Item = u32> {
        self.idle.iter().rev().copied()
    }

    /// Assigns places to slots without one.
    pub(super) fn assign(&mut self, mut places: impl ExactSizeIterator<Item = Place>) {
        let unassigned = self.slots.len() - self.assigned as usize;
        let new = places.len().saturating_sub(unassigned);
        self.slots
            .resize_with(self.slots.len() + new, SlotInfo::default);
        for (id, slot) in (0..).zip(&mut self.slots) {
            if slot.used == Use::Unassigned {
                let Some(place) = places.next() else { return };
                slot.place = Some(place);
                slot.used = Use::Idle;
                self.assigned += 1;
                self.idle.insert(0, id);
            }
        }
    }

    /// Removes the place of an idle slot.
    pub(super) fn unassign(&mut self, slot: u32) {
        self.take_idle(slot);
        if let Some(info) = self.get_mut(slot) {
            debug_assert_eq!(info.used, Use::Idle);
            info.place = None;
            info.used = Use::Unassigned;
            self.assigned -= 1;
        }
    }

    /// Marks an idle slot as being written. Its first `filled` bytes are reserved for the payload.
    pub(in crate::producer) fn start_writing(&mut self, slot: u32, filled: usize) {
        self.take_idle(slot);
        self.watched.retain(|s| *s != slot);
        if let Some(info) = self.get_mut(slot) {
            info.used = Use::Writing;
            info.filled = filled;
            info.attached = (0, 0);
            let retention = info.retention.take();
            let has_release = retention.is_some_and(|retention| retention.has_release());
            debug_assert!(!has_release, "hooks run before a slot is used again");
        }
    }

    /// Adds a reference of the producer.
    pub(in crate::producer) fn reference(&mut self, slot: u32) {
        let Some(info) = self.get_mut(slot) else {
            return;
        };
        match info.used {
            Use::Referenced(count) => info.used = Use::Referenced(count + 1),
            before => {
                info.used = Use::Referenced(1);
                if before == Use::Idle {
                    self.take_idle(slot);
                }
            }
        }
    }

    /// Drops a reference of the producer. Returns whether it was the last and a hook or a count waits for the release of the
    /// frame.
    pub(super) fn dereference(&mut self, slot: u32) -> bool {
        let Some(info) = self.get_mut(slot) else {
            return false;
        };
        match info.used {
            Use::Referenced(count @ 2..) => {
                info.used = Use::Referenced(count - 1);
                false
            }
            _ => {
                let is_waited_for = info.is_waited_for();
                self.set_idle(slot);
                is_waited_for
            }
        }
    }

    /// Records that frames of this generation may have bytes up to `end`.
    pub(in crate::producer) fn fill(&mut self, slot: u32, end: usize) {
        if let Some(info) = self.get_mut(slot) {
            info.filled = info.filled.max(end);
        }
    }

    /// Records the attachments that were written into the slot.
    pub(in crate::producer) fn set_attached(&mut self, slot: u32, attached: Attached) {
        if let Some(info) = self.get_mut(slot) {
            info.attached = attached;
        }
    }

    /// Records that a slot that was written is published, with `own` references for the caller and one for the history. The bytes
    /// of its frame end at `end`. Returns whether anything waits for the release of the frame.
    pub(in crate::producer) fn publish(
        &mut self,
        frame: &FrameInfo,
        end: usize,
        retention: Option<Box<Retention>>,
        own: u64,
    ) -> bool {
        self.get_mut(frame.slot).is_some_and(|info| {
            debug_assert_eq!(info.used, Use::Writing);
            info.used = Use::Referenced(1 + own);
            info.filled = info.filled.max(end);
            info.retention = retention;
            info.last_sequence = frame.sequence;
            info.published_at = frame.published_at;
            info.is_waited_for()
        })
    }

    /// Records one more entry for a published slot, with a reference for the history. Returns the same.
    pub(in crate::producer) fn publish_again(
        &mut self,
        slot: u32,
        sequence: u64,
        published_at: i64,
    ) -> bool {
        self.reference(slot);
        self.get_mut(slot).is_some_and(|info| {
            info.last_sequence = sequence;
            info.published_at = published_at;
            info.is_waited_for()
        })
    }

    /// What keeps the frame in the slot, if it has any.
    pub(in crate::producer) fn retention(&mut self, slot: u32) -> Option<&mut Retention> {
        self.get_mut(slot)?.retention.as_deref_mut()
    }

    /// Keeps the frame in the slot for this many readers more. `begun`: the reads of connected consumers until now.
    pub(in crate::producer) fn keep_for_more(&mut self, slot: u32, begun: u32, more: u32) {
        if let Some(info) = self.get_mut(slot) {
            let retention = info.retention.get_or_insert_default();
            retention.keep_for_more(begun, more);
        }
    }

    /// Records the reads of a consumer that has left, or of this process. `reads`: how many of the frame of a slot.
    pub(in crate::producer) fn note_departed(&mut self, reads: impl Fn(u32) -> u32) {
        for (slot, retention) in self.retentions() {
            retention.note_departed(|| reads(slot));
        }
    }

    fn retentions(&mut self) -> impl Iterator<Item = (u32, &mut Retention)> {
        let slots = (0..).zip(&mut self.slots);
        slots.filter_map(|(slot, info)| Some((slot, info.retention.as_deref_mut()?)))
    }

    /// Called when the frame in the slot is released. Returns what is to be done then.
    pub(super) fn take_release(&mut self, slot: u32) -> Option<Hook> {
        self.get_mut(slot)?.retention.take()?.take_release()
    }

    /// The slots whose frames are in borrowed memory. From now on they are treated like other frames.
    pub(super) fn take_borrowed(&mut self) -> Vec<u32> {
        let borrowed =
            |(slot, retention): (u32, &mut Retention)| retention.take_borrowed().then_some(slot);
        self.retentions().filter_map(borrowed).collect()
    }

    /// Takes what is to be done for frames to which the producer has no reference, when the pool ends.
    pub(super) fn take_idle_releases(&mut self) -> Vec<Hook> {
        let idle = |info: &&mut SlotInfo| info.used == Use::Idle;
        let slots = self.slots.iter_mut().filter(idle);
        slots
            .filter_map(|info| info.retention.as_mut()?.take_release())
            .collect()
    }

    /// Takes what is left to be done, when the pool is dropped.
    pub(super) fn take_releases(&mut self) -> impl Iterator<Item = Hook> {
        self.retentions()
            .filter_map(|(_, retention)| retention.take_release())
    }

    /// Records that the frame of an idle slot waits for consumers.
    pub(super) fn watch(&mut self, slot: u32) {
        if !self.watched.contains(&slot) {
            self.watched.push(slot);
        }
    }

    /// The slots whose frames wait for consumers. The caller [stores](Self::set_watched) those that still do.
    pub(super) fn take_watched(&mut self) -> Vec<u32> {
        std::mem::take(&mut self.watched)
    }

    pub(super) fn set_watched(&mut self, watched: Vec<u32>) {
        self.watched = watched;
    }

    pub(super) fn is_idle(&self, slot: u32) -> bool {
        self.get(slot).is_some_and(|info| info.used == Use::Idle)
    }

    fn push_idle(&mut self, slot: u32) {
        let region = |slot: u32| {
            self.get(slot)
                .and_then(|info| info.place)
                .map(|place| place.region)
        };
        let own = region(slot);
        // Searches from the end, where the slot usually belongs.
        let before = self.idle.iter().rposition(|other| region(*other) >= own);
        self.idle.insert(before.map_or(0, |at| at + 1), slot);
    }

    fn take_idle(&mut self, slot: u32) {
        // Searches from the end, because slots are claimed from there.
        if let Some(at) = self.idle.iter().rposition(|other| *other == slot) {
            self.idle.remove(at);
        }
    }

    /// The producer does not use the slot any more.
    pub(super) fn set_idle(&mut self, slot: u32) {
        if let Some(info) = self.get_mut(slot) {
            info.used = Use::Idle;
            self.push_idle(slot);
        }
    }
}
