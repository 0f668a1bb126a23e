// SPDX-License-Identifier: MPL-2.0

//! What the producer itself knows of each slot: where it lies, and which references its own side has.

use xmem_shm::abi::device_header::SLOT_HEAD;

/// Runs in the owner when the last reference to a frame is gone.
pub(super) type Hook = Box<dyn FnOnce() + Send>;

/// Where a slot's bytes lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) region: u32,
    pub(super) offset: usize,
    pub(super) len: usize,
    /// Where its payload lies, if that is on a device.
    pub(super) device: Option<DevicePlace>,
}

/// The part of a slot that lies on a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct DevicePlace {
    /// Size in bytes.
    pub(super) len: usize,
    /// The slot's number in its region.
    pub(super) index: u32,
    /// The device's number in this process.
    pub(super) ordinal: u16,
    /// Frames lie elsewhere, and only their events are here.
    pub(super) events_only: bool,
}

impl Place {
    /// Bytes that it takes, in all memory.
    pub(super) fn bytes(self) -> u64 {
        (self.len + self.device.map_or(0, |device| device.len)) as u64
    }

    /// Bytes that a payload may have.
    pub(super) fn payload_len(self) -> usize {
        self.device.map_or(self.len, |device| device.len)
    }

    /// Up to where its host room is taken, whatever the payload.
    pub(super) fn filled(self) -> usize {
        self.device.map_or(0, |_| SLOT_HEAD)
    }

    /// Its first byte in its region, where payloads lie; the number of the slot, where there are only events.
    pub(super) fn payload_at(self) -> u64 {
        match self.device {
            None => self.offset as u64,
            Some(device) if device.events_only => device.index.into(),
            Some(device) => u64::from(device.index) * device.len as u64,
        }
    }
}

/// What a slot is wanted for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Want {
    /// Bytes of payload.
    pub(super) size: usize,
    /// Bytes of room for attachments.
    pub(super) room: usize,
    /// The device that the payload is to lie on, by its number in this process.
    pub(super) device: Option<u16>,
    /// For a frame that is still to be made; whoever asks has other memory if there is none.
    pub(super) is_ahead: bool,
}

impl Want {
    pub(super) fn on_host(size: usize, room: usize) -> Self {
        Self {
            size,
            room,
            device: None,
            is_ahead: false,
        }
    }

    pub(super) fn ahead(self) -> Self {
        Self {
            is_ahead: true,
            ..self
        }
    }

    /// Bytes of a slot where the payload lies.
    pub(super) fn slot_size(self) -> usize {
        match self.device {
            None => self.size.saturating_add(self.room),
            Some(_) => self.size,
        }
    }

    /// Up to where a new slot's host room is taken.
    pub(super) fn filled(self) -> usize {
        match self.device {
            None => self.size,
            Some(_) => SLOT_HEAD,
        }
    }
}

/// "Keep the frame until this many consumers took and released it."
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Keep {
    pub(super) until: u32,
    /// Consumers that took it and are gone.
    pub(super) departed: u32,
}

/// Who on the producer's side uses a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Use {
    /// The slot has no place in any region.
    Unassigned,
    /// Nobody. It may still hold a frame that consumers can take, or hold.
    Idle,
    /// Somebody has a WriteLease on it.
    Writing,
    /// It is published, and this many references of the producer's side keep it.
    Referenced(u32),
}

pub(super) struct SlotInfo {
    pub(super) place: Option<Place>,
    pub(super) used: Use,
    /// Up to where frames of this generation may have bytes. Attachments of the next one go behind that.
    pub(super) filled: usize,
    /// Where the newest attachments of this generation lie: first byte and length.
    pub(super) attached: (usize, usize),
    /// Of the newest entry that names the slot.
    pub(super) last_sequence: u64,
    pub(super) published_at: i64,
    pub(super) hook: Option<Hook>,
    pub(super) keep: Option<Keep>,
}

impl std::fmt::Debug for SlotInfo {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SlotInfo")
            .field("place", &self.place)
            .field("used", &self.used)
            .field("last_sequence", &self.last_sequence)
            .field("hook", &self.hook.is_some())
            .field("keep", &self.keep)
            .finish_non_exhaustive()
    }
}

/// All slots that a pool may have.
#[derive(Debug)]
pub(super) struct Slots {
    slots: Vec<SlotInfo>,
    /// The idle ones, those of the newest region first, and of each region the most recently used last. They are taken
    /// from the end: what is used last is the likeliest to be in a cache, and regions that were made for a peak are not
    /// used any more when it is over.
    idle: Vec<u32>,
}

impl Slots {
    pub(super) fn new(max_slots: u32) -> Self {
        Self {
            slots: (0..max_slots)
                .map(|_| SlotInfo {
                    place: None,
                    used: Use::Unassigned,
                    filled: 0,
                    attached: (0, 0),
                    last_sequence: 0,
                    published_at: 0,
                    hook: None,
                    keep: None,
                })
                .collect(),
            idle: Vec::new(),
        }
    }

    pub(super) fn get(&self, slot: u32) -> Option<&SlotInfo> {
        self.slots.get(slot as usize)
    }

    pub(super) fn get_mut(&mut self, slot: u32) -> Option<&mut SlotInfo> {
        self.slots.get_mut(slot as usize)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, &SlotInfo)> {
        (0..).zip(&self.slots)
    }

    /// The slots that lie in a region.
    pub(super) fn of_region(&self, region: u32) -> impl Iterator<Item = (u32, &SlotInfo)> {
        self.iter()
            .filter(move |(_, info)| info.place.is_some_and(|place| place.region == region))
    }

    /// Slots that have a place.
    pub(super) fn assigned(&self) -> u32 {
        self.slots
            .iter()
            .filter(|slot| slot.place.is_some())
            .count() as u32
    }

    /// The idle slots, in the order in which they are to be taken.
    pub(super) fn idle(&self) -> impl Iterator<Item = u32> {
        self.idle.iter().rev().copied()
    }

    /// Gives places to slots that have none.
    pub(super) fn assign(&mut self, places: impl IntoIterator<Item = Place>) {
        let mut places = places.into_iter();
        for (id, slot) in (0..).zip(&mut self.slots) {
            if slot.used == Use::Unassigned {
                let Some(place) = places.next() else { return };
                slot.place = Some(place);
                slot.used = Use::Idle;
                self.idle.insert(0, id);
            }
        }
        debug_assert!(
            places.next().is_none(),
            "places were planned for free slots"
        );
    }

    /// Takes an idle slot's place away.
    pub(super) fn unassign(&mut self, slot: u32) {
        self.idle.retain(|s| *s != slot);
        if let Some(info) = self.get_mut(slot) {
            debug_assert_eq!(info.used, Use::Idle);
            info.place = None;
            info.used = Use::Unassigned;
        }
    }

    /// An idle slot is written from here on, of which its first bytes are `filled` with payload.
    pub(super) fn start_writing(&mut self, slot: u32, filled: usize) {
        self.idle.retain(|s| *s != slot);
        if let Some(info) = self.get_mut(slot) {
            info.used = Use::Writing;
            info.filled = filled;
            info.attached = (0, 0);
            info.keep = None;
            debug_assert!(info.hook.is_none(), "hooks run before a slot is used again");
        }
    }

    pub(super) fn stop_writing(&mut self, slot: u32) {
        self.set_idle(slot);
    }

    /// One more reference of the producer's side.
    pub(super) fn reference(&mut self, slot: u32) {
        let Some(info) = self.get_mut(slot) else {
            return;
        };
        match info.used {
            Use::Referenced(count) => info.used = Use::Referenced(count + 1),
            before => {
                info.used = Use::Referenced(1);
                if before == Use::Idle {
                    self.idle.retain(|s| *s != slot);
                }
            }
        }
    }

    /// One reference less. Returns whether it was the last.
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
                self.set_idle(slot);
                true
            }
        }
    }

    fn push_idle(&mut self, slot: u32) {
        let region = |slot: u32| {
            self.get(slot)
                .and_then(|info| info.place)
                .map(|place| place.region)
        };
        let own = region(slot);
        let at = self.idle.partition_point(|other| region(*other) >= own);
        self.idle.insert(at, slot);
    }

    fn set_idle(&mut self, slot: u32) {
        if let Some(info) = self.get_mut(slot) {
            info.used = Use::Idle;
            self.push_idle(slot);
        }
    }
}
