// SPDX-License-Identifier: MPL-2.0

//! The places of a message's blocks. Some are copied into its slot, and some are already in shared memory.
#![allow(unsafe_code)] // copies from arrays of the caller

use std::collections::BTreeMap;
use std::sync::Arc;

use xmem_core::{FrameParts, MAX_PARTS, Parts, Producer, ReadLease};

use super::item::Item;
use super::message::{ALIGN, Place, Table, table_len};
use super::outlet::{FORWARD_FROM, MAX_FORWARDED};
use crate::addresses::{self, Source};
use crate::own_slot::OwnSlot;

/// Bytes that are copied into the message's slot.
#[derive(Debug, Clone, Copy)]
pub(super) struct Copied {
    start: usize,
    pub(super) len: usize,
    /// The offset in the slot.
    pub(super) offset: usize,
}

/// The places of all blocks.
#[derive(Debug, Default)]
pub(super) struct Plan {
    pub(super) table: Table,
    pub(super) copies: Vec<Copied>,
    /// The gathered items by index, with their places.
    pub(super) gathers: Vec<(usize, Copied)>,
    /// Slots of this pool that contain blocks.
    pub(super) slots: Vec<Arc<OwnSlot>>,
    /// Parts of forwarded frames.
    pub(super) forwarded: Parts,
    /// Size of the message's slot in bytes.
    pub(super) len: usize,
    /// The number of bytes that are not copied.
    pub(super) shared: usize,
}

/// A frame with parts that are forwarded.
struct Passed {
    lease: Arc<ReadLease>,
    parts: Vec<usize>,
    /// The number of its first part in the message; `None`: it is copied.
    first: Option<usize>,
}

impl Plan {
    /// `forward`: whether received frames are forwarded. `on_device`: the places of the items on devices, by index.
    pub(super) fn new(
        producer: &Producer,
        items: &[Item],
        on_device: &BTreeMap<usize, Place>,
        pickle: usize,
        forward: bool,
    ) -> Self {
        let mut plan = Self::default();
        plan.table.blocks = vec![Place::default(); items.len()];
        let sources = plan.find(producer, items, forward);
        let offset = table_len(items.len());
        plan.table.pickle = Place {
            offset,
            len: pickle,
            ..Place::default()
        };
        plan.len = offset + pickle;
        let mut copied = Vec::new();
        for (number, (item, source)) in items.iter().zip(sources).enumerate() {
            let place = &mut plan.table.blocks[number];
            if let Some(there) = on_device.get(&number) {
                *place = *there;
                continue;
            }
            (place.in_order, place.shift, place.len) = (item.in_order, item.shift, item.len);
            match source {
                Some((part, offset)) => {
                    (place.part, place.offset) = (part as u32, offset);
                    plan.shared += item.len;
                }
                None if item.gather.is_some() => {
                    let place = plan.room(item);
                    plan.gathers.push((number, place));
                    plan.table.blocks[number].offset = place.offset;
                }
                None => copied.push(number),
            }
        }
        plan.place_copies(items, copied);
        plan
    }

    /// Reserves space in the slot for a copy.
    fn room(&mut self, item: &Item) -> Copied {
        let offset = self.len.next_multiple_of(ALIGN);
        self.len = offset + item.len;
        Copied {
            start: item.start,
            len: item.len,
            offset,
        }
    }

    /// For each item that needs no copy: the part, and the place in it.
    fn find(
        &mut self,
        producer: &Producer,
        items: &[Item],
        forward: bool,
    ) -> Vec<Option<(usize, usize)>> {
        let mut found: Vec<_> = items
            .iter()
            .map(|item| match (&item.gather, &item.device) {
                (None, None) if item.len > 0 => addresses::find(item.start, item.len),
                _ => None,
            })
            .collect();
        let mut passed: Vec<Passed> = Vec::new();
        for (item, found) in items.iter().zip(&mut found) {
            let keep = match found {
                Some((Source::Own(slot), _)) if slot.is_of(producer) => self.add_slot(slot),
                Some((Source::Received(lease, part), _)) if forward => {
                    item.len >= FORWARD_FROM && pass_on(&mut passed, lease, *part)
                }
                _ => false,
            };
            if !keep {
                *found = None;
            }
        }
        let mut next = 1 + self.slots.len();
        for frame in &mut passed {
            let forwarded = producer.forward(&frame.lease, FrameParts::Only(&frame.parts));
            // It is copied if a receiver cannot join its pool of origin.
            if let Ok(parts) = forwarded
                && next + parts.len() <= MAX_PARTS
            {
                frame.first = Some(next);
                next += parts.len();
                self.forwarded.append(parts);
            }
        }
        let place = |(source, offset): (Source, usize)| match source {
            Source::Own(slot) => {
                let at = self.slots.iter().position(|s| Arc::ptr_eq(s, &slot))?;
                Some((1 + at, offset))
            }
            Source::Received(lease, part) => {
                let frame = passed.iter().find(|f| Arc::ptr_eq(&f.lease, &lease))?;
                let at = frame.parts.iter().position(|p| *p == part)?;
                Some((frame.first? + at, offset))
            }
            Source::Device(_) => None,
        };
        found
            .into_iter()
            .map(|found| found.and_then(place))
            .collect()
    }

    fn add_slot(&mut self, slot: &Arc<OwnSlot>) -> bool {
        if self.slots.iter().any(|known| Arc::ptr_eq(known, slot)) {
            return true;
        }
        // Some part numbers are reserved for forwarded parts.
        let room = 1 + self.slots.len() + MAX_FORWARDED < MAX_PARTS;
        if room {
            self.slots.push(slot.clone());
        }
        room
    }

    /// Bytes that several items share are copied once.
    fn place_copies(&mut self, items: &[Item], mut numbers: Vec<usize>) {
        numbers.sort_by_key(|number| (items[*number].start, usize::MAX - items[*number].len));
        let mut last: Option<Copied> = None;
        for number in numbers {
            let item = &items[number];
            let end = item.start + item.len;
            let shares = last.filter(|last| {
                // The shared block must be aligned too.
                let apart = item.start - last.start;
                item.len > 0 && item.start < last.start + last.len && apart.is_multiple_of(ALIGN)
            });
            let place = match shares {
                Some(mut whole) => {
                    let more = end.saturating_sub(whole.start + whole.len);
                    whole.len += more;
                    // It is the last one in the slot, so it can grow.
                    self.len += more;
                    if let Some(copy) = self.copies.last_mut() {
                        copy.len = whole.len;
                    }
                    last = Some(whole);
                    whole.offset + (item.start - whole.start)
                }
                None => {
                    let copy = self.room(item);
                    self.copies.push(copy);
                    last = Some(copy);
                    copy.offset
                }
            };
            self.table.blocks[number].offset = place;
        }
    }

    /// The size to acquire, rounded up, so that messages of similar sizes use the same slots.
    pub(super) fn slot_len(&self) -> usize {
        let step = (self.len.next_power_of_two() / 16).max(ALIGN);
        self.len.max(1).next_multiple_of(step)
    }

    /// Writes all blocks except the gathered ones.
    ///
    /// # Safety
    ///
    /// `slot` has `len` bytes that nothing else writes, and the items' bytes can be read.
    pub(super) unsafe fn copy(&self, pickle: &[u8], slot: *mut u8) {
        let write = |offset: usize, start: *const u8, len: usize| {
            // SAFETY: promised by the caller. `room` computed offsets and sizes within `len`.
            unsafe { std::ptr::copy_nonoverlapping(start, slot.wrapping_add(offset), len) };
        };
        let table = self.table.encode();
        write(0, table.as_ptr(), table.len());
        write(self.table.pickle.offset, pickle.as_ptr(), pickle.len());
        for copy in &self.copies {
            write(copy.offset, copy.start as *const u8, copy.len);
        }
    }
}

/// Adds a part to the forwarded ones. `false`: there are too many.
fn pass_on(passed: &mut Vec<Passed>, lease: &Arc<ReadLease>, part: usize) -> bool {
    let parts: usize = passed.iter().map(|frame| frame.parts.len()).sum();
    let known = passed.iter_mut().find(|f| Arc::ptr_eq(&f.lease, lease));
    if let Some(frame) = &known
        && frame.parts.contains(&part)
    {
        return true;
    }
    if parts == MAX_FORWARDED {
        return false;
    }
    match known {
        Some(frame) => {
            frame.parts.push(part);
            // In the order of `FrameParts::Only`.
            frame.parts.sort_unstable();
        }
        None => passed.push(Passed {
            lease: lease.clone(),
            parts: vec![part],
            first: None,
        }),
    }
    true
}
