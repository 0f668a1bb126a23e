// SPDX-License-Identifier: MPL-2.0

//! Which regions a pool has: how large the next one is, and which one can go.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::slots::{Place, Slots, Use};
use crate::region::{Imported, Region, Ticket};

/// Above this a slot is exactly as large as its frames (raw video has one size); below, sizes vary (encoded data),
/// and slots are rounded up to powers of two so that they can be used again.
const EXACT_FROM: usize = 256 << 10;
/// A region is not made larger than this for the sake of more slots.
const REGION_LEN: usize = 64 << 20;
/// How many slots are acquired before a region that was not used meanwhile goes.
const COLD_AFTER: u64 = 600;
/// The same for one whose frames have a size that is not in use any more.
const OUTDATED_AFTER: u64 = 16;

/// How long a retired region counts for a consumer that does not say that it let go: one that is stopped, or lies.
const LET_GO_TIME: Duration = Duration::from_secs(2);

#[derive(Debug)]
pub(super) struct Entry {
    pub(super) region: Arc<Region>,
    pub(super) slot_len: usize,
    /// `Regions::clock` when one of its slots was last acquired.
    used_at: u64,
    /// The consumers that asked for it, so that may have it mapped.
    sent_to: Vec<u64>,
}

/// A region that is gone here, but that consumers may still have mapped.
#[derive(Debug)]
struct Retired {
    id: u32,
    len: usize,
    /// `Regions::version` since it is gone.
    version: u32,
    since: Instant,
    sent_to: Vec<u64>,
}

/// A region that is to be made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Plan {
    pub(super) slots: u32,
    pub(super) slot_len: usize,
}

impl Plan {
    pub(super) fn len(self) -> usize {
        self.slots as usize * self.slot_len
    }
}

/// Why there can be no further region.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Full {
    Limit,
    TooLarge,
}

/// Memory that somebody else made. It goes when who brought it in lets go of it.
#[derive(Debug)]
struct Foreign {
    memory: Arc<Imported>,
    sent_to: Vec<u64>,
}

/// A region, to be sent to a consumer.
#[derive(Debug)]
pub(super) enum Sent {
    Own(Arc<Region>),
    Foreign(Arc<Imported>),
}

impl Sent {
    pub(super) fn len(&self) -> usize {
        match self {
            Self::Own(region) => region.len(),
            Self::Foreign(memory) => memory.len(),
        }
    }

    pub(super) fn ticket(&self) -> Ticket<BorrowedFd<'_>> {
        match self {
            Self::Own(region) => region.ticket(),
            Self::Foreign(memory) => Ticket::Imported(memory.fd()),
        }
    }
}

#[derive(Debug, Default)]
pub(super) struct Regions {
    entries: BTreeMap<u32, Entry>,
    foreign: BTreeMap<u32, Foreign>,
    last_id: u32,
    /// Counts acquired slots.
    clock: u64,
    retired: Vec<Retired>,
    pub(super) version: u32,
    /// What plans that are being carried out will add.
    planned_slots: u32,
    planned_bytes: u64,
    /// Frames of one size do not replace those of another: both keep coming.
    mixed_sizes: bool,
}

/// Which regions are to go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Cold {
    /// Those that were not used for a while.
    ByNow,
    /// All but the one that was used last.
    NotInUse,
    /// Those that are in the way of frames of this size.
    UnfitFor(usize),
    /// The same, also if some of their slots are in use: those that are not go to where they are needed.
    PartlyUnfitFor(usize),
}

/// Whether a frame of `size` bytes goes into a slot without wasting it.
fn fits(slot_len: usize, size: usize) -> bool {
    size <= slot_len && slot_len <= size.saturating_mul(4).max(64 << 10)
}

/// `None`: there is not that much memory.
fn slot_len_for(size: usize) -> Option<usize> {
    let page = rustix::param::page_size();
    let len = if size >= EXACT_FROM {
        size.checked_next_multiple_of(page)?
    } else {
        size.next_power_of_two().max(page)
    };
    // What the kernel takes as a file's size.
    i64::try_from(len).ok().map(|_| len)
}

impl Regions {
    pub(super) fn new(mixed_sizes: bool) -> Self {
        Self {
            mixed_sizes,
            ..Self::default()
        }
    }

    pub(super) fn get(&self, id: u32) -> Option<&Entry> {
        self.entries.get(&id)
    }

    pub(super) fn count(&self) -> u32 {
        self.entries.len() as u32
    }

    /// The ids of all regions, ascending: that is how consumers find them (`protocol::regions`).
    pub(super) fn ids(&self) -> impl Iterator<Item = u32> {
        let ids: BTreeSet<u32> = self
            .entries
            .keys()
            .chain(self.foreign.keys())
            .copied()
            .collect();
        ids.into_iter()
    }

    /// Bytes of the regions in use, and of retired ones that consumers may still have mapped.
    pub(super) fn bytes(&self) -> u64 {
        let used: u64 = self.entries.values().map(|e| e.region.len() as u64).sum();
        let retired: u64 = self.retired.iter().map(|r| r.len as u64).sum();
        used + retired
    }

    /// Whether a place can take a frame of `size` bytes.
    pub(super) fn fits(place: Place, size: usize) -> bool {
        fits(place.len, size)
    }

    /// A slot of this region was acquired.
    pub(super) fn touch(&mut self, id: u32) {
        self.clock += 1;
        if let Some(entry) = self.entries.get_mut(&id) {
            entry.used_at = self.clock;
        }
    }

    /// Plans a region for frames of `size` bytes. `first` is how many slots the first one of its size has.
    /// Every plan ends in `install` or `abandon`.
    pub(super) fn plan(
        &mut self,
        slots: &Slots,
        size: usize,
        first: u32,
        max_slots: u32,
        max_bytes: u64,
    ) -> Result<Plan, Full> {
        let slot_len = slot_len_for(size).ok_or(Full::TooLarge)?;
        let fitting: u32 = slots
            .iter()
            .filter(|(_, info)| info.place.is_some_and(|place| fits(place.len, size)))
            .count() as u32;
        let wanted = if fitting == 0 {
            first
        } else {
            (fitting / 2).min(8)
        };
        let by_len = u32::try_from(REGION_LEN / slot_len).unwrap_or(u32::MAX);
        let free_slots = max_slots.saturating_sub(slots.assigned() + self.planned_slots);
        let mut count = wanted.min(by_len).max(1).min(free_slots);
        if max_bytes > 0 {
            if slot_len as u64 > max_bytes {
                return Err(Full::TooLarge);
            }
            let left = max_bytes.saturating_sub(self.bytes() + self.planned_bytes);
            count = count.min(u32::try_from(left / slot_len as u64).unwrap_or(u32::MAX));
        }
        if count == 0 {
            return Err(Full::Limit);
        }
        let plan = Plan {
            slots: count,
            slot_len,
        };
        self.planned_slots += plan.slots;
        self.planned_bytes += plan.len() as u64;
        Ok(plan)
    }

    pub(super) fn abandon(&mut self, plan: Plan) {
        self.planned_slots -= plan.slots;
        self.planned_bytes -= plan.len() as u64;
    }

    pub(super) fn install(&mut self, plan: Plan, region: Region, slots: &mut Slots) {
        self.abandon(plan);
        let id = self.new_id();
        slots.assign((0..plan.slots as usize).map(|i| Place {
            region: id,
            offset: i * plan.slot_len,
            len: plan.slot_len,
        }));
        self.entries.insert(
            id,
            Entry {
                region: Arc::new(region),
                slot_len: plan.slot_len,
                used_at: self.clock,
                sent_to: Vec::new(),
            },
        );
    }

    fn new_id(&mut self) -> u32 {
        self.last_id = self.last_id.checked_add(1).unwrap_or(1);
        self.last_id
    }

    /// Takes in memory that somebody else made, unless there are `max` regions already.
    pub(super) fn import(&mut self, memory: Arc<Imported>, max: u32) -> Option<u32> {
        if self.entries.len() + self.foreign.len() >= max as usize {
            return None;
        }
        let id = self.new_id();
        let sent_to = Vec::new();
        self.foreign.insert(id, Foreign { memory, sent_to });
        Some(id)
    }

    /// Lets go of what was imported.
    pub(super) fn forget_import(&mut self, id: u32) -> Option<Arc<Imported>> {
        let foreign = self.foreign.remove(&id)?;
        self.version = self.version.wrapping_add(1);
        self.retired.push(Retired {
            id,
            // It is not the pool's memory, so it does not count.
            len: 0,
            version: self.version,
            since: Instant::now(),
            sent_to: foreign.sent_to,
        });
        Some(foreign.memory)
    }

    /// The regions that could go: all their slots idle on our side, and not used for a while.
    pub(super) fn cold(&self, slots: &Slots, when: Cold) -> Vec<u32> {
        let newest = self.entries.values().max_by_key(|entry| entry.used_at);
        let newest_len = newest.map(|entry| entry.slot_len);
        self.entries
            .iter()
            .filter(|(_, entry)| {
                let outdated = !self.mixed_sizes
                    && entry.slot_len >= EXACT_FROM
                    && Some(entry.slot_len) != newest_len;
                let age = self.clock - entry.used_at;
                match when {
                    Cold::ByNow => age >= if outdated { OUTDATED_AFTER } else { COLD_AFTER },
                    Cold::NotInUse => age > 0 || entry.used_at == 0,
                    Cold::UnfitFor(size) | Cold::PartlyUnfitFor(size) => {
                        !fits(entry.slot_len, size)
                    }
                }
            })
            .map(|(id, _)| *id)
            .filter(|id| {
                matches!(when, Cold::PartlyUnfitFor(_))
                    || slots.of_region(*id).all(|(_, info)| info.used == Use::Idle)
            })
            .collect()
    }

    /// A consumer is sent a region, so it may map it.
    pub(super) fn send(&mut self, id: u32, consumer: u64) -> Option<Sent> {
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

    /// A consumer is gone, and what it had mapped with it.
    pub(super) fn forget_consumer(&mut self, consumer: u64) {
        for entry in self.entries.values_mut() {
            entry.sent_to.retain(|id| *id != consumer);
        }
    }

    /// Lets a region go. Its slots have lost their places already. The region is returned, to be unmapped without a
    /// lock.
    pub(super) fn retire(&mut self, id: u32) -> Option<Arc<Region>> {
        let entry = self.entries.remove(&id)?;
        self.version = self.version.wrapping_add(1);
        self.retired.push(Retired {
            id,
            len: entry.region.len(),
            version: self.version,
            since: Instant::now(),
            sent_to: entry.sent_to,
        });
        Some(entry.region)
    }

    /// Forgets retired regions that every consumer has let go of, or had the time to. `seen`: up to which version a consumer has let go;
    /// `None` when it is gone.
    pub(super) fn forget_retired(&mut self, seen: impl Fn(u64) -> Option<u32>) {
        for retired in &mut self.retired {
            retired.sent_to.retain(|consumer| {
                // Versions wrap.
                seen(*consumer).is_some_and(|seen| (seen.wrapping_sub(retired.version) as i32) < 0)
            });
        }
        self.retired
            .retain(|retired| !retired.sent_to.is_empty() && retired.since.elapsed() < LET_GO_TIME);
    }

    /// The consumers that may still have a retired region mapped.
    pub(super) fn mapped_by(&self, id: u32) -> Vec<u64> {
        let retired = self.retired.iter().find(|retired| retired.id == id);
        retired.map_or(Vec::new(), |retired| retired.sent_to.clone())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use crate::{Consumer, FrameMeta, Producer, StartFrom};

    #[test]
    fn nothing_is_kept_of_consumers_that_are_gone() {
        let dir = tempfile::tempdir().unwrap();
        let pool = dir.path().join("p.sock");
        let pool = pool.to_str().unwrap();
        let producer = Producer::builder(pool).build().unwrap();
        let slot = producer.acquire(100_000).unwrap();
        drop(slot.publish(FrameMeta::new(100_000)).unwrap());
        let sent_to = || {
            let state = producer.inner().lock();
            let entries = state.regions.entries.values();
            entries.map(|entry| entry.sent_to.len()).sum::<usize>()
        };
        for _ in 0..20 {
            let builder = Consumer::builder(pool).start_from(StartFrom::Oldest);
            let mut consumer = builder.connect().unwrap();
            drop(consumer.receive(Some(Duration::from_secs(60))).unwrap());
            assert!(sent_to() > 0);
        }
        while !producer.stats().consumers.is_empty() {
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(sent_to(), 0);
    }
}
