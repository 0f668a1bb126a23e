// SPDX-License-Identifier: MPL-2.0

//! Slots that are set aside for frames of one size: they stay, with their numbers, until they are given up.

use std::collections::BTreeMap;

use super::plan::Plan;
use super::slots::Want;

/// What a slot is set aside for: bytes of the slot where the payload lies, and the number of the device, if it lies on one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::producer) struct Kind {
    slot_len: usize,
    device: Option<u16>,
}

impl Kind {
    /// `None`: no address space has so much memory.
    pub(in crate::producer) fn of(want: Want) -> Option<Self> {
        let plan = Plan::of_one_slot(want)?;
        Some(Self {
            slot_len: plan.slot_len,
            device: plan.device.map(|(device, _)| device),
        })
    }

    /// Whether slots of this kind have so many bytes of payload.
    pub(in crate::producer) fn has_size(self, payload_len: usize) -> bool {
        self.slot_len == payload_len
    }
}

/// The slots that are set aside. Their regions do not go.
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
