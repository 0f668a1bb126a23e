// SPDX-License-Identifier: MPL-2.0

//! The regions of a pool: the size of the next one, and which ones can be removed.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::plan::{EXACT_FROM, Plan, SlotClass};
use super::retain::Hook;
use super::retired::{Lasting, Retired};
use super::slots::{Slots, Use, Want};
use crate::error::AcquireError;
use crate::region::device::Fds as CudaFds;
use crate::region::{Imported, Region, Ticket};

/// An unused region is removed after this many slots were acquired.
const COLD_AFTER: u64 = 600;
/// `COLD_AFTER` for a region whose frames have a size that is no longer in use.
const OUTDATED_AFTER: u64 = 16;
/// The time between two attempts to allocate a region while memory is lacking. Each attempt takes memory from other programs.
const SHORTAGE_PAUSE: Duration = Duration::from_secs(1);
/// A region uses at most 1/8 of `max_bytes`, or has one slot.
const MOST_PARTS: u64 = 8;

#[derive(Debug)]
struct Entry {
    region: Arc<Region>,
    plan: Plan,
    /// The value of `Regions::clock` when one of its slots was last acquired.
    used_at: u64,
    /// The consumers that were sent the region and may have it mapped.
    sent_to: Vec<u64>,
}

/// Why no further region is possible.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::producer) enum Full {
    Limit,
    TooLarge,
}

/// How many slots of the largest size in use fit.
#[derive(Debug, Clone, Copy)]
pub(super) struct Room {
    pub(super) slots: u32,
    pub(super) slot_bytes: u64,
}

/// Memory that other code allocated. The region is removed when the importing code drops its last handle.
#[derive(Debug)]
struct Foreign {
    memory: ForeignMemory,
    sent_to: Vec<u64>,
}

/// Imported memory.
#[derive(Debug, Clone)]
pub(in crate::producer) enum ForeignMemory {
    /// A descriptor.
    Imported(Arc<Imported>),
    /// A region of another pool, with frames on a device.
    OnDevice(Arc<CudaFds>),
    /// The header of device memory that belongs to upstream.
    Borrowed(Arc<Region>),
}

/// A region that is sent to a consumer.
#[derive(Debug)]
pub(in crate::producer) enum Sent {
    Own(Arc<Region>),
    Foreign(ForeignMemory),
}

impl Sent {
    pub(in crate::producer) fn len(&self) -> usize {
        match self {
            Self::Own(region) => region.len(),
            Self::Foreign(ForeignMemory::Imported(memory)) => memory.len(),
            Self::Foreign(ForeignMemory::OnDevice(fds)) => fds.len(),
            Self::Foreign(ForeignMemory::Borrowed(region)) => region.len(),
        }
    }

    pub(in crate::producer) fn ticket(&self) -> Ticket<BorrowedFd<'_>> {
        match self {
            Self::Own(region) => region.ticket(),
            Self::Foreign(ForeignMemory::Imported(memory)) => Ticket::Imported(memory.fd()),
            Self::Foreign(ForeignMemory::OnDevice(fds)) => fds.ticket(),
            Self::Foreign(ForeignMemory::Borrowed(region)) => region.ticket(),
        }
    }
}

#[derive(Debug, Default)]
pub(in crate::producer) struct Regions {
    entries: BTreeMap<u32, Entry>,
    foreign: BTreeMap<u32, Foreign>,
    last_id: u32,
    /// Counts acquired slots.
    clock: u64,
    pub(in crate::producer) retired: Retired,
    /// Slots that are set aside for frames of a class. Their regions are not removed.
    pub(in crate::producer) pinned: BTreeMap<u32, SlotClass>,
    /// The number of slots that running plans will add.
    planned_slots: u32,
    planned_bytes: u64,
    /// Frames of several sizes continue to come, so regions of one size do not replace those of another.
    mixed_sizes: bool,
    /// The maximum number of bytes; 0: no limit.
    max_bytes: u64,
    /// Why the last region could not be allocated, for lack of memory or of descriptors, and when.
    shortage: Option<(Instant, Arc<AcquireError>)>,
}

/// Selects the regions to remove.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::producer) enum Cold {
    /// Regions that were not used for some time.
    ByNow,
    /// All regions except the one used last.
    NotInUse,
    /// Regions that do not fit such frames.
    UnfitFor(Want),
    /// Also regions in which some slots are in use. Their other slots move to regions where they are needed.
    PartlyUnfitFor(Want),
}

impl Regions {
    pub(super) fn new(mixed_sizes: bool, max_bytes: u64) -> Self {
        Self {
            mixed_sizes,
            max_bytes,
            ..Self::default()
        }
    }

    pub(in crate::producer) fn get(&self, id: u32) -> Option<&Arc<Region>> {
        self.entries.get(&id).map(|entry| &entry.region)
    }

    /// The regions that were allocated here and are in use.
    pub(in crate::producer) fn own(&self) -> impl Iterator<Item = &Arc<Region>> {
        self.entries.values().map(|entry| &entry.region)
    }

    pub(super) fn count(&self) -> u32 {
        self.entries.len() as u32
    }

    /// The IDs of all regions, ascending. Consumers search them in this order (`protocol::regions`).
    pub(super) fn ids(&self) -> impl Iterator<Item = u32> {
        let ids: BTreeSet<u32> = self
            .entries
            .keys()
            .chain(self.foreign.keys())
            .copied()
            .collect();
        ids.into_iter()
    }

    /// The bytes of the regions in use, and of retired ones that consumers may have mapped.
    pub(super) fn bytes(&self) -> u64 {
        let used: u64 = self.entries.values().map(|e| e.region.footprint()).sum();
        used + self.retired.bytes()
    }

    /// The number of slots that fit into `max_bytes`. `None`: there is no limit, or the sizes differ too much for one number.
    pub(super) fn room(&self) -> Option<Room> {
        if self.max_bytes == 0 || self.mixed_sizes {
            return None;
        }
        let sizes = self.entries.values().map(|entry| entry.plan.slot_bytes());
        let slot_bytes = sizes.max().filter(|bytes| *bytes > 0)?;
        let slots = u32::try_from(self.max_bytes / slot_bytes).unwrap_or(u32::MAX);
        Some(Room { slots, slot_bytes })
    }

    /// Whether `max_bytes` has room for more than this number of slots, if all have the size of `want` or the largest present size.
    pub(super) fn have_room_for(&self, want: Want, slots: u32) -> bool {
        self.max_bytes == 0 || self.have_bytes_for(want, slots)
    }

    #[inline(never)]
    fn have_bytes_for(&self, want: Want, slots: u32) -> bool {
        let (Some(room), Some(plan)) = (self.room(), Plan::of_one_slot(want)) else {
            return true;
        };
        self.max_bytes / plan.slot_bytes().max(room.slot_bytes) > slots.into()
    }

    /// The bytes on devices among them, for regions in use.
    pub(super) fn device_bytes(&self) -> u64 {
        let regions = self.entries.values().map(|entry| &entry.region);
        regions
            .map(|region| region.footprint() - region.len() as u64)
            .sum()
    }

    /// The devices of the regions, as text.
    pub(super) fn devices(&self) -> Vec<String> {
        let names: BTreeSet<String> = self
            .entries
            .values()
            .filter_map(|entry| entry.region.device())
            .collect();
        names.into_iter().collect()
    }

    /// Returns the region of an acquired slot, and records its use.
    pub(in crate::producer) fn touch(&mut self, id: u32) -> Option<&Arc<Region>> {
        self.clock += 1;
        let entry = self.entries.get_mut(&id)?;
        entry.used_at = self.clock;
        Some(&entry.region)
    }

    /// Plans a region for such frames. `first` is the number of slots in the first region of this size, `limit` the maximum in any. Each
    /// plan ends with `install` or `abandon`.
    pub(in crate::producer) fn plan(
        &mut self,
        slots: &Slots,
        want: Want,
        first: u32,
        limit: u32,
        max_slots: u32,
    ) -> Result<Plan, Full> {
        let one = Plan::of_one_slot(want).ok_or(Full::TooLarge)?;
        let fitting = slots
            .iter()
            .filter(|(_, info)| info.place.is_some_and(|place| want.fits(place)))
            .count() as u32;
        let wanted = if fitting == 0 {
            first
        } else {
            // Small regions would use up descriptors.
            let most = EXACT_FROM / one.slot_len.max(1);
            (fitting / 2).min(8.max(u32::try_from(most).unwrap_or(8)))
        };
        let free_slots = max_slots.saturating_sub(slots.assigned() + self.planned_slots);
        let mut count = wanted.clamp(1, one.most_slots()).min(limit).min(free_slots);
        if self.max_bytes > 0 {
            let slot_bytes = one.slot_bytes();
            if slot_bytes > self.max_bytes {
                return Err(Full::TooLarge);
            }
            // A region gets only a part of `max_bytes`, because one held frame keeps its whole region from frames of other
            // sizes.
            let part = (self.max_bytes / MOST_PARTS / slot_bytes).max(1);
            let left = self
                .max_bytes
                .saturating_sub(self.bytes() + self.planned_bytes);
            let most = part.min(left / slot_bytes);
            count = count.min(u32::try_from(most).unwrap_or(u32::MAX));
        }
        if count == 0 {
            return Err(Full::Limit);
        }
        let plan = Plan {
            slots: count,
            ..one
        };
        self.planned_slots += plan.slots;
        self.planned_bytes += plan.bytes();
        Ok(plan)
    }

    /// Whether a region is being allocated. Its slots and bytes count as used.
    pub(in crate::producer) fn is_growing(&self) -> bool {
        self.planned_slots > 0
    }

    /// Notes that a region could not be allocated. Returns whether the one before it could.
    pub(in crate::producer) fn note_shortage(&mut self, error: Arc<AcquireError>) -> bool {
        self.shortage.replace((Instant::now(), error)).is_none()
    }

    /// Why the last region could not be allocated.
    pub(in crate::producer) fn shortage(&self) -> Option<Arc<AcquireError>> {
        self.shortage.as_ref().map(|(_, error)| error.clone())
    }

    /// The same, if that was a short time ago.
    pub(in crate::producer) fn recent_shortage(&self) -> Option<Arc<AcquireError>> {
        let (at, error) = self.shortage.as_ref()?;
        (at.elapsed() < SHORTAGE_PAUSE).then(|| error.clone())
    }

    pub(in crate::producer) fn abandon(&mut self, plan: Plan) {
        self.planned_slots -= plan.slots;
        self.planned_bytes -= plan.bytes();
    }

    /// Adds a region that was allocated. Returns its ID.
    pub(in crate::producer) fn install(
        &mut self,
        plan: Plan,
        region: Region,
        slots: &mut Slots,
    ) -> u32 {
        self.abandon(plan);
        self.shortage = None;
        let id = self.new_id();
        slots.assign(plan.places(id));
        self.entries.insert(
            id,
            Entry {
                region: Arc::new(region),
                plan,
                used_at: self.clock,
                sent_to: Vec::new(),
            },
        );
        id
    }

    fn new_id(&mut self) -> u32 {
        self.last_id = self.last_id.checked_add(1).unwrap_or(1);
        self.last_id
    }

    /// Adds memory that other code allocated, unless there are already `max` such regions.
    pub(in crate::producer) fn import(&mut self, memory: ForeignMemory, max: u32) -> Option<u32> {
        if self.foreign.len() >= max as usize {
            return None;
        }
        let id = self.new_id();
        let sent_to = Vec::new();
        self.foreign.insert(id, Foreign { memory, sent_to });
        Some(id)
    }

    /// Removes imported memory. `released` runs when no process has it open any more. If that is already so, it is returned.
    pub(in crate::producer) fn forget_import(
        &mut self,
        id: u32,
        released: Option<Hook>,
    ) -> (Option<ForeignMemory>, Option<Hook>) {
        if self.foreign.contains_key(&id) {
            let lasting = released.map(Lasting::Borrowed);
            return (self.retire_foreign(id, lasting), None);
        }
        (None, self.retired.note_dropped(id, released))
    }

    fn retire_foreign(&mut self, id: u32, lasting: Option<Lasting>) -> Option<ForeignMemory> {
        let foreign = self.foreign.remove(&id)?;
        // Its bytes do not count, because it is not the pool's memory.
        self.retired.add(id, 0, foreign.sent_to, lasting);
        Some(foreign.memory)
    }

    /// Called when the pool ends: retires upstream's device memory for consumers, even if upstream still has a handle.
    pub(in crate::producer) fn retire_borrowed(&mut self, id: u32) -> Option<ForeignMemory> {
        self.retire_foreign(id, Some(Lasting::Kept))
    }

    /// The regions that can be removed: the producer uses none of their slots, and `when` selects them.
    pub(super) fn cold(&self, slots: &Slots, when: Cold) -> Vec<u32> {
        let newest = self.entries.values().max_by_key(|entry| entry.used_at);
        let newest = newest.map(|entry| entry.plan.class());
        self.entries
            .iter()
            .filter(|(_, entry)| {
                let outdated = !self.mixed_sizes
                    && entry.plan.slot_len >= EXACT_FROM
                    && Some(entry.plan.class()) != newest;
                let age = self.clock - entry.used_at;
                match when {
                    Cold::ByNow => age >= if outdated { OUTDATED_AFTER } else { COLD_AFTER },
                    Cold::NotInUse => age > 0 || entry.used_at == 0,
                    Cold::UnfitFor(want) | Cold::PartlyUnfitFor(want) => !entry.plan.takes(want),
                }
            })
            .map(|(id, _)| *id)
            .filter(|id| {
                let mut slots = slots.of_region(*id);
                !slots.any(|(slot, _)| self.pinned.contains_key(&slot))
            })
            .filter(|id| {
                matches!(when, Cold::PartlyUnfitFor(_))
                    || slots.of_region(*id).all(|(_, info)| info.used == Use::Idle)
            })
            .collect()
    }

    /// Records that a region is sent to a consumer, which may then map it.
    pub(in crate::producer) fn send(&mut self, id: u32, consumer: u64) -> Option<Sent> {
        let (sent, sent_to) = match self.entries.get_mut(&id) {
            Some(entry) => (Sent::Own(entry.region.clone()), &mut entry.sent_to),
            None => {
                let foreign = self.foreign.get_mut(&id)?;
                (Sent::Foreign(foreign.memory.clone()), &mut foreign.sent_to)
            }
        };
        if !sent_to.contains(&consumer) {
            sent_to.push(consumer);
        }
        Some(sent)
    }

    /// The regions that were not sent to this consumer, the oldest first.
    pub(in crate::producer) fn unsent(&self, consumer: u64) -> impl Iterator<Item = u32> {
        let sent_to = |id: &u32| {
            let own = self.entries.get(id).map(|entry| &entry.sent_to);
            own.or_else(|| self.foreign.get(id).map(|foreign| &foreign.sent_to))
        };
        let was_sent = move |id: &u32| sent_to(id).is_some_and(|it| it.contains(&consumer));
        self.ids().filter(move |id| !was_sent(id))
    }

    /// Removes a consumer that is gone, with its mappings.
    pub(super) fn forget_consumer(&mut self, consumer: u64) {
        let own = self.entries.values_mut().map(|entry| &mut entry.sent_to);
        let foreign = self.foreign.values_mut();
        for sent_to in own.chain(foreign.map(|foreign| &mut foreign.sent_to)) {
            sent_to.retain(|id| *id != consumer);
        }
    }

    /// Retires a region whose slots have no places any more. Keeps memory that must exist while consumers have it open. Otherwise
    /// returns the region, so that the caller unmaps it without the lock.
    pub(super) fn retire(&mut self, id: u32) -> Option<Arc<Region>> {
        let entry = self.entries.remove(&id)?;
        let lasts = entry.region.ends_with_producer();
        let lasting = lasts.then(|| Lasting::Own(entry.region.clone()));
        let len = entry.region.footprint();
        self.retired.add(id, len, entry.sent_to, lasting);
        (!lasts).then_some(entry.region)
    }

    /// For each region of retired device memory that must not be freed yet, the consumers that have it.
    pub(in crate::producer) fn lasting(&self) -> impl Iterator<Item = &[u64]> {
        let entries = self
            .entries
            .values()
            .filter(|entry| entry.region.ends_with_producer())
            .map(|entry| &*entry.sent_to);
        self.retired.lasting().chain(entries)
    }

    /// The regions whose device memory ends with this process, and upstream's device memory.
    pub(in crate::producer) fn ending_with_producer(&self) -> (Vec<u32>, Vec<u32>) {
        let own = self
            .entries
            .iter()
            .filter(|(_, entry)| entry.region.ends_with_producer());
        let borrowed = self
            .foreign
            .iter()
            .filter(|(_, foreign)| matches!(foreign.memory, ForeignMemory::Borrowed(_)));
        let ids = |ids: &mut dyn Iterator<Item = &u32>| ids.copied().collect();
        (
            ids(&mut own.map(|(id, _)| id)),
            ids(&mut borrowed.map(|(id, _)| id)),
        )
    }

    /// Called when the pool ends while consumers have these regions open: keeps them until the process ends.
    pub(in crate::producer) fn leak_lasting(&mut self) {
        for entry in self
            .entries
            .values()
            .filter(|entry| entry.region.ends_with_producer() && !entry.sent_to.is_empty())
        {
            std::mem::forget(entry.region.clone());
        }
        self.retired.leak();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use crate::{Consumer, FrameMeta, Parts, Producer, SlotSpec, StartFrom};
    use xmem_shm::os::memfd::{self, Seal};

    #[test]
    fn state_of_disconnected_consumers_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        let pool = dir.path().join("p.sock");
        let pool = pool.to_str().unwrap();
        let producer = Producer::builder(pool).build().unwrap();
        // One frame in its slot, and one in imported memory.
        let slot = producer.acquire(100_000).unwrap();
        drop(slot.publish(FrameMeta::new(100_000)).unwrap());
        let fd = memfd::create("t", 4096).unwrap();
        memfd::seal(&fd, Seal::SizeAndFutureWrites).unwrap();
        let mut parts = Parts::new();
        parts.add_imported(&producer.import(fd).unwrap(), 0, 4096, 0);
        let mut slot = producer
            .acquire(SlotSpec::new(1).attachments(parts.room()))
            .unwrap();
        slot.set_parts(parts);
        drop(slot.publish(FrameMeta::new(0)).unwrap());
        let sent_to = || {
            let state = producer.inner().lock().unwrap();
            let own = state.regions.entries.values().map(|entry| &entry.sent_to);
            let foreign = state.regions.foreign.values();
            let foreign = foreign.map(|foreign| &foreign.sent_to);
            [
                own.map(Vec::len).sum(),
                foreign.map(Vec::len).sum::<usize>(),
            ]
        };
        for _ in 0..20 {
            let builder = Consumer::builder(pool).start_from(StartFrom::Oldest);
            let mut consumer = builder.connect().unwrap();
            for _ in 0..2 {
                drop(consumer.receive(Some(Duration::from_secs(60))).unwrap());
            }
            assert!(sent_to().iter().all(|sent| *sent > 0));
        }
        while !producer.stats().consumers.is_empty() {
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(sent_to(), [0, 0]);
    }
}
