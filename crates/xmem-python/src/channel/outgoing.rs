// SPDX-License-Identifier: MPL-2.0

//! Where the blocks of a message go: which are copied into its slot, which lie in shared memory already.
#![allow(unsafe_code)] // copies from arrays of the caller

use std::collections::BTreeMap;
use std::sync::Arc;

use pyo3::prelude::*;
use xmem_core::{MAX_PARTS, Parts, Producer, ReadLease};

use super::device::OnDevice;
use super::message::{ALIGN, Place, Table, table_len};
use crate::addresses::{self, OwnSlot, Source};

/// Smaller ones of a frame that was received are copied: it takes a lease to pass one on, and keeps the whole frame.
pub(super) const FORWARD_FROM: usize = 64 << 10;
/// The most pieces of other frames in a message, and the most frames on devices beside it: each is a lease of each receiver.
pub(super) const MAX_FORWARDED: usize = 8;

/// A block of a message, where the sender has it.
#[derive(Debug)]
pub(super) struct Item {
    pub(super) start: usize,
    pub(super) len: usize,
    pub(super) in_order: bool,
    pub(super) shift: usize,
    /// It has to be gathered from an array with gaps.
    pub(super) gather: Option<Py<PyAny>>,
    /// It lies on a device.
    pub(super) device: Option<OnDevice>,
}

/// Some bytes that are copied into the message's slot.
#[derive(Debug, Clone, Copy)]
pub(super) struct Copied {
    start: usize,
    pub(super) len: usize,
    /// First byte in the slot.
    pub(super) offset: usize,
}

/// Where everything goes.
#[derive(Debug, Default)]
pub(super) struct Plan {
    pub(super) table: Table,
    pub(super) copies: Vec<Copied>,
    /// Which items are gathered, and where to.
    pub(super) gathers: Vec<(usize, Copied)>,
    /// Slots of this pool that blocks lie in.
    pub(super) slots: Vec<Arc<OwnSlot>>,
    /// Pieces of frames that are passed on.
    pub(super) forwarded: Parts,
    /// Size of the message's slot in bytes.
    pub(super) len: usize,
    /// Bytes that are not copied.
    pub(super) shared: usize,
}

/// A frame of which something is passed on.
struct Passed {
    lease: Arc<ReadLease>,
    pieces: Vec<usize>,
    /// The number of its first piece in the message; `None`: it is copied after all.
    first: Option<usize>,
}

impl Plan {
    /// `forward`: whether frames that were received are passed on where they lie. `on_device`: the places of the items that lie
    /// on devices, by their numbers.
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
                Some((piece, offset)) => {
                    (place.piece, place.offset) = (piece as u32, offset);
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

    /// Room in the slot, for a copy.
    fn room(&mut self, item: &Item) -> Copied {
        let offset = self.len.next_multiple_of(ALIGN);
        self.len = offset + item.len;
        Copied {
            start: item.start,
            len: item.len,
            offset,
        }
    }

    /// Which items need no copy: the piece and the place in it.
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
                Some((Source::Received(lease, piece), _)) if forward => {
                    item.len >= FORWARD_FROM && pass_on(&mut passed, lease, *piece)
                }
                _ => false,
            };
            if !keep {
                *found = None;
            }
        }
        let mut next = 1 + self.slots.len();
        for frame in &mut passed {
            let forwarded = producer.forward_pieces(&frame.lease, &frame.pieces);
            // As long as not every receiver reaches the pool that it comes from, it is copied.
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
            Source::Received(lease, piece) => {
                let frame = passed.iter().find(|f| Arc::ptr_eq(&f.lease, &lease))?;
                let at = frame.pieces.iter().position(|p| *p == piece)?;
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
        // Some are left for what is passed on.
        let room = 1 + self.slots.len() + MAX_FORWARDED < MAX_PARTS;
        if room {
            self.slots.push(slot.clone());
        }
        room
    }

    /// Bytes that several items have in common are copied once.
    fn place_copies(&mut self, items: &[Item], mut numbers: Vec<usize>) {
        numbers.sort_by_key(|number| (items[*number].start, usize::MAX - items[*number].len));
        let mut last: Option<Copied> = None;
        for number in numbers {
            let item = &items[number];
            let end = item.start + item.len;
            let shares = last.filter(|last| {
                // A block begins where vector instructions like it.
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

    /// The size to ask for. Somewhat more, so that messages of nearly the same size share slots.
    pub(super) fn slot_len(&self) -> usize {
        let step = (self.len.next_power_of_two() / 16).max(ALIGN);
        self.len.max(1).next_multiple_of(step)
    }

    /// Writes all but what is gathered.
    ///
    /// # Safety
    ///
    /// `slot` has `len` bytes that nobody else writes, and the items' bytes are there.
    pub(super) unsafe fn copy(&self, pickle: &[u8], slot: *mut u8) {
        let write = |offset: usize, start: *const u8, len: usize| {
            // SAFETY: the caller's promise; offsets and sizes are within `len` by how they were made.
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

/// Remembers a piece that is to be passed on. `false`: there are too many already.
fn pass_on(passed: &mut Vec<Passed>, lease: &Arc<ReadLease>, piece: usize) -> bool {
    let pieces: usize = passed.iter().map(|frame| frame.pieces.len()).sum();
    let known = passed.iter_mut().find(|f| Arc::ptr_eq(&f.lease, lease));
    if let Some(frame) = &known
        && frame.pieces.contains(&piece)
    {
        return true;
    }
    if pieces == MAX_FORWARDED {
        return false;
    }
    match known {
        Some(frame) => {
            frame.pieces.push(piece);
            // The core has them in this order.
            frame.pieces.sort_unstable();
        }
        None => passed.push(Passed {
            lease: lease.clone(),
            pieces: vec![piece],
            first: None,
        }),
    }
    true
}
