// SPDX-License-Identifier: MPL-2.0

//! The places of a received frame, for a producer that forwards it.

use std::path::PathBuf;
use std::sync::Arc;

use xmem_shm::abi::parts::Origin;

use super::hold::Memory;
use super::lease::ReadLease;
use super::parts::Part;
use crate::region::RegionView;

/// The parts of a frame that [`Producer::forward`](crate::Producer::forward) passes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FrameParts<'a> {
    /// All bytes of the frame.
    All,
    /// The [parts](ReadLease::parts) with these numbers, in their order in the frame. A frame in its slot has one part,
    /// number 0.
    Only(&'a [usize]),
    /// No bytes, only the slot that the frame was published with. While consumers hold it, its publisher keeps the resources of
    /// the frame. For frames outside of their slots.
    Slot,
}

impl FrameParts<'_> {
    /// Whether the selection includes a part.
    pub(crate) fn has(self, number: Option<usize>) -> bool {
        match (self, number) {
            (Self::All, number) => number.is_some(),
            (Self::Only(numbers), Some(number)) => numbers.contains(&number),
            (Self::Only(_), None) => false,
            (Self::Slot, number) => number.is_none(),
        }
    }
}

/// A part of a received frame, and its slot.
pub(crate) struct HeldPart {
    /// The index of the part in the frame. `None`: the slot, without bytes.
    pub(crate) number: Option<usize>,
    pub(crate) view: Arc<RegionView>,
    pub(crate) offset: usize,
    pub(crate) size: usize,
    pub(crate) tag: u32,
    pub(crate) origin: Origin,
    /// The socket of the pool of that slot.
    pub(crate) path: PathBuf,
}

impl ReadLease {
    /// The parts of a received frame, or the slot if it is the payload, and the frame's own slot if the payload is elsewhere.
    /// `None`: the frame was not received, or a part is not held in its pool of origin.
    pub(crate) fn held_parts(&self) -> Option<Vec<HeldPart>> {
        let Memory::Received(view) = self.hold().memory() else {
            return None;
        };
        let (slot_at, slot_len) = (self.hold().offset(), self.hold().len());
        let (origin, path) = self.hold().origin();
        if self.parts().is_empty() {
            let slot_at = match view.cuda() {
                None => slot_at,
                // Offsets of parts on a device count in the twin.
                Some(cuda) => cuda.device_offset(slot_at, slot_len)?,
            };
            return Some(vec![HeldPart {
                number: Some(0),
                view: view.clone(),
                offset: slot_at + self.meta().offset as usize,
                size: self.meta().size as usize,
                tag: 0,
                origin,
                path: path.to_owned(),
            }]);
        }
        let part = |(number, part): (usize, &Part)| {
            // The first place of the part, because forwarding processes between may be killed.
            let (origin, path) = match part.held_at_origin() {
                Some(held) if !held.is_lease() => return None,
                Some(held) => held.origin(),
                None => (origin, path),
            };
            Some(HeldPart {
                number: Some(number),
                view: part.view().clone(),
                offset: part.offset(),
                size: part.len(),
                tag: part.tag(),
                origin,
                path: path.to_owned(),
            })
        };
        let mut parts = self
            .parts()
            .iter()
            .enumerate()
            .map(part)
            .collect::<Option<Vec<HeldPart>>>()?;
        let (number, offset) = match view.cuda() {
            // The payload is in other memory. The slot's event marks the end of the device's work.
            Some(cuda) => (Some(parts.len()), cuda.device_offset(slot_at, slot_len)?),
            // The caller holds the slot, and so the resources that the publisher keeps.
            None => (None, slot_at),
        };
        parts.push(HeldPart {
            number,
            view: view.clone(),
            offset,
            size: 0,
            tag: 0,
            origin,
            path: path.to_owned(),
        });
        Some(parts)
    }
}
