// SPDX-License-Identifier: MPL-2.0

//! The shared memory that this process holds, by address. A channel sends an array without a copy if its bytes lie in a frame
//! that is held, or in a slot that the channel gave, whichever library made the array.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};

use pyo3::prelude::*;
use xmem_core::{Parts, PieceLease, Producer, ReadLease, WriteLease};

use crate::device::DeviceFrame;
use crate::lock::lock;
use crate::per_process::PerProcess;

/// A slot that stays claimed as long as somebody here, or a message under way, refers to it.
pub(crate) struct OwnSlot {
    /// Only for what takes the lease itself; the bytes are written by whoever has the arrays.
    lease: Mutex<Lease>,
    start: usize,
    /// Bytes that were asked for.
    len: usize,
    /// From here on nobody may write.
    sent: AtomicBool,
}

/// What keeps a slot claimed.
enum Lease {
    Writing(WriteLease),
    /// From the first message on that it is a piece of.
    Piece(PieceLease),
    /// Never to be seen.
    Moving,
}

impl Lease {
    fn as_piece(&mut self) -> Option<&PieceLease> {
        if let Self::Writing(_) = self {
            let Self::Writing(lease) = std::mem::replace(self, Self::Moving) else {
                return None;
            };
            *self = Self::Piece(lease.into_piece());
        }
        match self {
            Self::Piece(piece) => Some(piece),
            _ => None,
        }
    }
}

impl fmt::Debug for OwnSlot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OwnSlot")
            .field("len", &self.len)
            .finish_non_exhaustive()
    }
}

impl OwnSlot {
    pub(crate) fn new(lease: WriteLease, len: usize) -> Self {
        Self {
            start: lease.as_ptr() as usize,
            len: len.min(lease.len()),
            lease: Mutex::new(Lease::Writing(lease)),
            sent: AtomicBool::new(false),
        }
    }

    pub(crate) fn start(&self) -> usize {
        self.start
    }

    pub(crate) fn is_of(&self, producer: &Producer) -> bool {
        match &*lock(&self.lease) {
            Lease::Writing(lease) => producer.owns(lease),
            Lease::Piece(piece) => producer.owns_piece(piece),
            Lease::Moving => false,
        }
    }

    /// Adds the whole slot to a frame's pieces.
    pub(crate) fn add_to(&self, parts: &mut Parts) {
        if let Some(piece) = lock(&self.lease).as_piece() {
            parts.add_slot(piece, 0, self.len as u64, 0);
        }
    }

    /// Bytes that were asked for.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn is_sent(&self) -> bool {
        self.sent.load(Ordering::Relaxed)
    }

    pub(crate) fn mark_sent(&self) {
        self.sent.store(true, Ordering::Relaxed);
    }

    /// The right to publish the slot itself, if it is no piece of a message.
    pub(crate) fn into_lease(self) -> Result<WriteLease, Arc<Self>> {
        let lease = self.lease.into_inner();
        match lease.unwrap_or_else(std::sync::PoisonError::into_inner) {
            Lease::Writing(lease) => Ok(lease),
            piece => Err(Arc::new(Self {
                lease: Mutex::new(piece),
                ..self
            })),
        }
    }
}

/// Memory that a sender need not copy.
#[derive(Debug, Clone)]
pub(crate) enum Source {
    Own(Arc<OwnSlot>),
    /// A piece of a frame that was received, by its number.
    Received(Arc<ReadLease>, usize),
    /// A frame that was received, and lies on a device.
    Device(Arc<DeviceFrame>),
}

#[derive(Debug)]
enum WeakSource {
    Own(Weak<OwnSlot>),
    Received(Weak<ReadLease>, usize),
    Device(Weak<DeviceFrame>),
}

impl WeakSource {
    fn upgrade(&self) -> Option<Source> {
        Some(match self {
            Self::Own(slot) => Source::Own(slot.upgrade()?),
            Self::Received(lease, piece) => Source::Received(lease.upgrade()?, *piece),
            Self::Device(frame) => Source::Device(frame.upgrade()?),
        })
    }

    fn is_gone(&self) -> bool {
        match self {
            Self::Own(slot) => slot.strong_count() == 0,
            Self::Received(lease, _) => lease.strong_count() == 0,
            Self::Device(frame) => frame.strong_count() == 0,
        }
    }
}

#[derive(Debug)]
struct Ranges {
    /// By first byte; several leases may be for one place.
    entries: BTreeMap<(usize, u64), (usize, WeakSource)>,
    next: u64,
    /// At how many entries those that are gone are looked for.
    prune_at: usize,
}

impl Default for Ranges {
    fn default() -> Self {
        Self {
            entries: BTreeMap::new(),
            next: 0,
            prune_at: PRUNE_AT,
        }
    }
}

static RANGES: PerProcess<Mutex<Ranges>> = PerProcess::new();
/// The same on devices, whose addresses mean something else.
static DEVICE_RANGES: PerProcess<Mutex<Ranges>> = PerProcess::new();

/// At how many entries those that are gone are looked for at first.
const PRUNE_AT: usize = 64;

/// How many ranges that begin before an address are looked at.
const LOOKS: usize = 64;

fn insert(ranges: &Mutex<Ranges>, start: usize, len: usize, source: WeakSource) {
    let mut ranges = lock(ranges);
    let end = start + len;
    // Slots are used again and again, and what lay there before is mostly gone.
    let mut here = ranges.entries.range_mut((start, 0)..=(start, u64::MAX));
    if let Some((_, before)) = here.find(|(_, (_, source))| source.is_gone()) {
        *before = (end, source);
        return;
    }
    if ranges.entries.len() >= ranges.prune_at {
        ranges.entries.retain(|_, (_, source)| !source.is_gone());
        ranges.prune_at = (ranges.entries.len() * 2).max(PRUNE_AT);
    }
    let key = (start, ranges.next);
    ranges.next += 1;
    ranges.entries.insert(key, (end, source));
}

/// Remembers where a frame that was received lies.
pub(crate) fn note(lease: &Arc<ReadLease>) {
    if lease.is_local() {
        return;
    }
    let note = |number: usize, bytes: &[u8]| {
        if !bytes.is_empty() {
            let source = WeakSource::Received(Arc::downgrade(lease), number);
            insert(RANGES.get(), bytes.as_ptr() as usize, bytes.len(), source);
        }
    };
    if lease.parts().is_empty() {
        note(0, lease.data());
    }
    for (number, part) in lease.parts().iter().enumerate() {
        // What cannot be mapped has no address.
        note(number, part.map().unwrap_or_default());
    }
}

pub(crate) fn note_own(slot: &Arc<OwnSlot>) {
    let source = WeakSource::Own(Arc::downgrade(slot));
    insert(RANGES.get(), slot.start, slot.len, source);
}

/// Remembers where a frame that was received lies on a device.
pub(crate) fn note_on_device(frame: &Arc<DeviceFrame>) {
    for (ptr, len) in frame.pieces() {
        if len > 0 {
            let source = WeakSource::Device(Arc::downgrade(frame));
            insert(DEVICE_RANGES.get(), ptr as usize, len, source);
        }
    }
}

/// The frame that bytes on a device lie in, if this process holds it.
pub(crate) fn find_on_device(ordinal: u32, start: usize, len: usize) -> Option<Arc<DeviceFrame>> {
    match find_in(DEVICE_RANGES.get(), start, len)? {
        (Source::Device(frame), _) => (frame.ordinal() == ordinal).then_some(frame),
        _ => None,
    }
}

/// Where bytes lie that some object here keeps, and how far from its first byte.
pub(crate) fn find(start: usize, len: usize) -> Option<(Source, usize)> {
    find_in(RANGES.get(), start, len)
}

fn find_in(ranges: &Mutex<Ranges>, start: usize, len: usize) -> Option<(Source, usize)> {
    let end = start.checked_add(len)?;
    // What is looked at in vain may be the last reference, which must not go while the list is locked.
    let mut spare = Vec::new();
    let ranges = lock(ranges);
    let before = ranges.entries.range(..=(start, u64::MAX)).rev().take(LOOKS);
    let mut found = None;
    for ((first, _), (last, source)) in before {
        if *last >= end
            && let Some(source) = source.upgrade()
        {
            let better = match &source {
                Source::Own(slot) => start + len <= slot.start + slot.len,
                Source::Received(..) | Source::Device(_) => true,
            };
            if better && found.is_none() {
                found = Some((source, start - first));
                break;
            }
            spare.push(source);
        }
    }
    drop(ranges);
    found
}

/// Whether bytes lie in a frame that is held, or in a slot that a channel gave. `device`: the number of the one they are on.
#[pyfunction(name = "_is_shared", signature = (start, len, device=None))]
pub(crate) fn is_shared(start: usize, len: usize, device: Option<u32>) -> bool {
    match device {
        None => find(start, len).is_some(),
        Some(ordinal) => find_on_device(ordinal, start, len).is_some(),
    }
}

/// The address of a buffer's first byte.
#[pyfunction(name = "_address_of")]
pub(crate) fn address_of(view: &Bound<'_, PyAny>) -> PyResult<usize> {
    let view = pyo3::buffer::PyUntypedBuffer::get(view)?;
    Ok(view.buf_ptr() as usize)
}
