// SPDX-License-Identifier: MPL-2.0

//! Slots that are set aside for frames of one size. They keep their numbers and memory until they are given up.

use crate::error::AcquireError;
use crate::producer::pool::guard::Guard;
use crate::producer::pool::plan::SlotClass;
use crate::producer::pool::slots::SlotInfo;
use crate::producer::pool::stats;
use crate::producer::slot::Slot;
use crate::producer::{Producer, SlotSpec, WriteLease};

/// The slots that are set aside for frames of a class.
fn set_aside(guard: &Guard<'_>, class: SlotClass) -> Vec<u32> {
    let pinned = guard.regions.pinned.iter();
    let of_class = pinned.filter(|(_, other)| **other == class);
    of_class.map(|(slot, _)| *slot).collect()
}

impl Producer {
    /// Like [`acquire`](Self::acquire), but first takes slots that are set aside for this size, and never slots that are set
    /// aside for another.
    pub(crate) fn acquire_buffer(&self, spec: &SlotSpec) -> Result<WriteLease, AcquireError> {
        let class = spec.want()?.class();
        if let Some(slot) = class.and_then(|class| self.claim_set_aside(class)) {
            return Ok(WriteLease::new(slot, spec.size()));
        }
        self.acquire_unless(spec, &mut Vec::new(), |other| Some(other) != class)
    }

    /// Acquires a slot that is not set aside for frames of this class. `others` keeps the leases of slots that are.
    fn acquire_unless(
        &self,
        spec: &SlotSpec,
        others: &mut Vec<WriteLease>,
        is_other: impl Fn(SlotClass) -> bool,
    ) -> Result<WriteLease, AcquireError> {
        loop {
            let lease = self.acquire(spec.clone())?;
            let guard = self.inner().guard()?;
            let class = guard.regions.pinned.get(&lease.slot()).copied();
            drop(guard);
            if !class.is_some_and(&is_other) {
                return Ok(lease);
            }
            others.push(lease);
        }
    }

    fn claim_set_aside(&self, class: SlotClass) -> Option<Slot> {
        let mut guard = self.inner().lock()?;
        let slots = set_aside(&guard, class);
        if slots.is_empty() || self.inner().is_closed() {
            return None;
        }
        guard.finalize_watched();
        let (slot, word, place) = slots.into_iter().find_map(|slot| {
            let info = guard.slots.get(slot)?;
            let place = info.can_be_claimed().then_some(info.place)??;
            Some((slot, guard.claim(slot)?, place))
        })?;
        Slot::claimed(self.inner(), &mut guard, slot, word, place.filled())
    }

    /// The maximum number of slots that can be set aside for such frames.
    pub(crate) fn room_to_set_aside(&self, spec: &SlotSpec) -> Result<usize, AcquireError> {
        let class = spec.want()?.class();
        let guard = self.inner().guard()?;
        let is_taken = |(slot, info): &(u32, &SlotInfo)| match guard.regions.pinned.get(slot) {
            Some(other) => Some(*other) != class,
            None => stats::is_in_use(&guard, *slot, info),
        };
        let taken = guard.slots.iter().filter(is_taken).count();
        Ok((self.inner().settings().max_slots as usize).saturating_sub(taken))
    }

    /// Sets slots aside for such frames until there are `count`. Returns their numbers. On an error nothing changes.
    pub(crate) fn set_aside(
        &self,
        spec: &SlotSpec,
        count: usize,
    ) -> Result<Vec<u32>, AcquireError> {
        let class = spec.want()?.class();
        let mut slots = match (class, self.inner().lock()) {
            (Some(class), Some(guard)) => set_aside(&guard, class),
            _ => Vec::new(),
        };
        // The leases are held until all are acquired, so that the slots are distinct.
        let (mut added, mut others, mut larger) = (Vec::new(), Vec::new(), Vec::new());
        while slots.len() + added.len() < count {
            match self.acquire_unless(spec, &mut others, |_| true) {
                Ok(lease) if class.is_some_and(|class| class.has_size(lease.payload_len())) => {
                    added.push(lease);
                }
                Ok(lease) => larger.push(lease),
                // If the pool may not grow, a slot that was made for larger frames is used.
                Err(error) => added.push(larger.pop().ok_or(error)?),
            }
        }
        let mut guard = self.inner().guard()?;
        for lease in &added {
            slots.push(lease.slot());
            if let Some(class) = class {
                guard.regions.pinned.insert(lease.slot(), class);
            }
        }
        slots.truncate(count);
        Ok(slots)
    }

    /// Ends that slots are set aside. Returns how many were.
    pub(crate) fn give_up(&self, slots: &[u32]) -> usize {
        let Some(mut guard) = self.inner().lock() else {
            return 0;
        };
        let pinned = &mut guard.regions.pinned;
        let was_pinned = |slot: &&u32| pinned.remove(slot).is_some();
        slots.iter().filter(was_pinned).count()
    }
}
