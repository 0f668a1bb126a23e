// SPDX-License-Identifier: MPL-2.0

//! Slots that are set aside for frames of one size. They keep their numbers and memory until they are given up.

use std::collections::BTreeMap;

use super::plan::Plan;
use super::slots::Want;

/// The kind of slot that is set aside: the size of its payload's memory, and the number of its device if it is on one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::producer) struct Kind {
    slot_len: usize,
    device: Option<u16>,
}

impl Kind {
    /// `None`: the size exceeds the address space.
    pub(in crate::producer) fn of(want: Want) -> Option<Self> {
        let plan = Plan::of_one_slot(want)?;
        Some(Self {
            slot_len: plan.slot_len,
            device: plan.device.map(|(device, _)| device),
        })
    }

    /// Whether slots of this kind have a payload of this size.
    pub(in crate::producer) fn has_size(self, payload_len: usize) -> bool {
        self.slot_len == payload_len
    }
}

/// The slots that are set aside. Their regions are not removed.
#[derive(Debug, Default)]
pub(in crate::producer) struct SetAside(BTreeMap<u32, Kind>);

impl SetAside {
    pub(in crate::producer) fn of_kind(&self, kind: Kind) -> Vec<u32> {
        let slots = self.0.iter().filter(|(_, other)| **other == kind);
        slots.map(|(slot, _)| *slot).collect()
    }

    pub(in crate::producer) fn kind(&self, slot: u32) -> Option<Kind> {
        self.0.get(&slot).copied()
    }

    pub(super) fn slots(&self) -> impl Iterator<Item = u32> {
        self.0.keys().copied()
    }

    pub(in crate::producer) fn add(&mut self, slot: u32, kind: Kind) {
        self.0.insert(slot, kind);
    }

    /// Returns whether the slot was set aside.
    pub(in crate::producer) fn give_up(&mut self, slot: u32) -> bool {
        self.0.remove(&slot).is_some()
    }
}
