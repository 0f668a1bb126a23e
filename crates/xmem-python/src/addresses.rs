// SPDX-License-Identifier: MPL-2.0

//! The shared memory that this process holds, by address. A channel sends an array without a copy if its bytes are in a held
//! frame, or in a slot of the channel. Any library may have created the array.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, Weak};

use pyo3::prelude::*;
use xmem_core::ReadLease;

use crate::device::DeviceFrame;
use crate::fork::PerProcess;
use crate::lock;
use crate::own_slot::OwnSlot;

/// Memory that a sender does not copy.
#[derive(Debug, Clone)]
pub(crate) enum Source {
    Own(Arc<OwnSlot>),
    /// A part of a received frame, by its index.
    Received(Arc<ReadLease>, usize),
    /// A received frame on a device.
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
            Self::Received(lease, part) => Source::Received(lease.upgrade()?, *part),
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

#[derive(Debug, Default)]
struct Ranges {
    /// By first byte. One place can have several leases.
    entries: BTreeMap<(usize, u64), (usize, WeakSource)>,
    next: u64,
    /// When there are this many entries, and at least [`PRUNE_AT`], dead ones are removed.
    prune_at: usize,
}

static RANGES: PerProcess<Mutex<Ranges>> = PerProcess::new();
/// The same for devices, which have separate address spaces.
static DEVICE_RANGES: PerProcess<Mutex<Ranges>> = PerProcess::new();

/// The least number of entries when dead ones are removed.
const PRUNE_AT: usize = 64;

/// The maximum number of ranges before an address that a search reads.
const LOOKS: usize = 64;

fn insert(ranges: &Mutex<Ranges>, start: usize, len: usize, source: WeakSource) {
    let mut ranges = lock(ranges);
    let end = start + len;
    // Slots are reused, so the entry of a slot's previous frame is usually dead.
    let mut here = ranges.entries.range_mut((start, 0)..=(start, u64::MAX));
    if let Some((_, before)) = here.find(|(_, (_, source))| source.is_gone()) {
        *before = (end, source);
        return;
    }
    if ranges.entries.len() >= ranges.prune_at.max(PRUNE_AT) {
        ranges.entries.retain(|_, (_, source)| !source.is_gone());
        ranges.prune_at = ranges.entries.len() * 2;
    }
    let key = (start, ranges.next);
    ranges.next += 1;
    ranges.entries.insert(key, (end, source));
}

/// Adds a received frame.
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
        note(0, lease.bytes().unwrap_or_default());
    }
    for (number, part) in lease.parts().iter().enumerate() {
        // A part that cannot be mapped has no address.
        note(number, part.map().unwrap_or_default());
    }
}

/// Adds a slot that a channel acquired.
pub(crate) fn note_own(slot: &Arc<OwnSlot>) {
    let source = WeakSource::Own(Arc::downgrade(slot));
    insert(RANGES.get(), slot.start(), slot.len(), source);
}

/// Adds a received frame on a device.
pub(crate) fn note_on_device(frame: &Arc<DeviceFrame>) {
    for (ptr, len) in frame.parts() {
        if len > 0 {
            let source = WeakSource::Device(Arc::downgrade(frame));
            insert(DEVICE_RANGES.get(), ptr as usize, len, source);
        }
    }
}

/// The held frame that contains these bytes on a device.
pub(crate) fn find_on_device(ordinal: u32, start: usize, len: usize) -> Option<Arc<DeviceFrame>> {
    match find_in(DEVICE_RANGES.get(), start, len)? {
        (Source::Device(frame), _) => (frame.device().ordinal() == ordinal).then_some(frame),
        _ => None,
    }
}

/// The held memory that contains these bytes, and their offset in it.
pub(crate) fn find(start: usize, len: usize) -> Option<(Source, usize)> {
    find_in(RANGES.get(), start, len)
}

fn find_in(ranges: &Mutex<Ranges>, start: usize, len: usize) -> Option<(Source, usize)> {
    let end = start.checked_add(len)?;
    let ranges = lock(ranges);
    let before = ranges.entries.range(..=(start, u64::MAX)).rev().take(LOOKS);
    let mut around = before.filter(|(_, (last, _))| *last >= end);
    around.find_map(|((first, _), (_, source))| Some((source.upgrade()?, start - first)))
}

/// Whether bytes are in a held frame, or in a slot of a channel. `device`: the number of their device.
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
