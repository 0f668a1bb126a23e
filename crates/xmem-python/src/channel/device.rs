// SPDX-License-Identifier: MPL-2.0

//! The arrays of a message on CUDA devices, at the sender. They are separate frames that are published before the message: for
//! each device one with the copied arrays, and one for each forwarded frame. An array at a receiver holds its frame.
#![allow(unsafe_code)] // addresses of device memory

use std::collections::BTreeMap;
use std::sync::Arc;

use pyo3::prelude::*;
use xmem_core::cuda::{CudaError, Device, Rows, Stream};
use xmem_core::{
    Canceller, FrameMeta, FrameParts, Parts, Producer, PublishError, PublishFailure, SlotSpec,
    WriteLease,
};

use super::item::{Item, OnDevice};
use super::message::Place;
use super::outlet::{EMPTY, FORWARD_FROM, MAX_FORWARDED, Outlet, closed};
use crate::addresses;
use crate::device::{self, DeviceFrame};
use crate::errors::{IntoPyErr, IntoPyResult};
use crate::reaper::Kept;
use crate::signals::Deadline;

/// The alignment of arrays in bytes, which libraries expect.
const ALIGN: usize = 256;

/// A frame that is forwarded.
#[derive(Debug)]
struct Passed {
    frame: Arc<DeviceFrame>,
    parts: Parts,
}

/// An array that is copied.
#[derive(Debug)]
struct Copied {
    ptr: u64,
    len: usize,
    /// The offset in the frame.
    offset: usize,
    ready_on: Option<Stream>,
    keeps: bool,
    /// The frame that contains the array.
    frame: Option<Arc<DeviceFrame>>,
}

/// The arrays that are copied on one device.
#[derive(Debug, Default)]
struct Copies {
    arrays: Vec<Copied>,
    size: usize,
}

impl Copies {
    /// Adds an array. Returns its offset in the frame.
    fn add(&mut self, item: &Item, on: &OnDevice, frame: Option<Arc<DeviceFrame>>) -> usize {
        let offset = self.size.next_multiple_of(ALIGN);
        self.size = offset + item.len;
        self.arrays.push(Copied {
            ptr: item.start as u64,
            len: item.len,
            offset,
            ready_on: on.ready_on,
            keeps: on.keeps,
            frame,
        });
        offset
    }

    /// The stream for the copies: one that writes some of the arrays, so that it need not wait for them.
    fn stream(&self) -> Stream {
        let named = self.arrays.iter().find_map(|array| array.ready_on);
        named.unwrap_or(Stream::LEGACY_DEFAULT)
    }

    /// Whether all arrays stay unchanged until the stream has copied them.
    fn keeps(&self, stream: Stream) -> bool {
        self.arrays
            .iter()
            .all(|array| array.frame.is_some() || (array.keeps && array.ready_on == Some(stream)))
    }

    /// Makes a stream copy them into a slot, after the work of the other streams. The CPU does not wait.
    fn fill(&self, lease: &WriteLease, device: &Device, stream: Stream) -> Result<(), CudaError> {
        let frames = self.arrays.iter().filter_map(|array| array.frame.clone());
        let frames: Vec<Arc<DeviceFrame>> = frames.collect();
        let enqueued = self.enqueue(lease, device, stream);
        if !frames.is_empty() {
            // Kept until the copies have ended.
            stream.when_done(device, move || drop(frames));
        }
        enqueued
    }

    fn enqueue(
        &self,
        lease: &WriteLease,
        device: &Device,
        stream: Stream,
    ) -> Result<(), CudaError> {
        let slot = lease.cuda().ok_or(CudaError::NotOnDevice)?;
        slot.wait_on(stream)?;
        let mut behind = vec![stream];
        for array in &self.arrays {
            if let Some(frame) = &array.frame {
                frame.wait_on(stream)?;
            }
            if let Some(other) = array.ready_on
                && !behind.contains(&other)
            {
                stream.wait_for(device, other)?;
                behind.push(other);
            }
            if array.len > 0 {
                let rows = Rows::plain(0, array.offset, array.len);
                // SAFETY: the array's memory is kept until the stream has copied it. Otherwise (`keeps`) the caller waits.
                unsafe { slot.copy_rows_from(stream, array.ptr, &[rows]) }?;
            }
        }
        Ok(())
    }
}

/// The places of a message's arrays on devices.
#[derive(Debug, Default)]
pub(super) struct Plan {
    passed: Vec<Passed>,
    /// By device.
    copies: BTreeMap<u32, Copies>,
    /// By index of the item.
    pub(super) places: BTreeMap<usize, Place>,
    /// The number of copied bytes.
    pub(super) copied: usize,
    /// The number of bytes that are not copied.
    pub(super) shared: usize,
}

impl Plan {
    /// `forward`: whether received frames are forwarded. `first`: the number of frames that the message already has.
    pub(super) fn new(producer: &Producer, items: &[Item], forward: bool, first: usize) -> Self {
        let mut plan = Self::default();
        // Frames with copies follow the forwarded frames, whose number is known only at the end.
        let mut copied = Vec::new();
        for (number, item) in items.iter().enumerate() {
            let Some(on) = &item.device else { continue };
            let find = || addresses::find_on_device(on.ordinal, item.start, item.len);
            let frame = on.frame.clone().or_else(find);
            let mut place = Place {
                on_device: true,
                len: item.len,
                ..Place::default()
            };
            let passed = frame
                .as_ref()
                .filter(|_| forward && item.len >= FORWARD_FROM)
                .and_then(|frame| plan.pass_on(producer, frame, item));
            if let Some((at, offset)) = passed {
                (place.part, place.offset) = ((first + at) as u32, offset);
                plan.shared += item.len;
            } else {
                place.offset = plan
                    .copies
                    .entry(on.ordinal)
                    .or_default()
                    .add(item, on, frame);
                copied.push((number, on.ordinal));
                plan.copied += item.len;
            }
            plan.places.insert(number, place);
        }
        for (number, ordinal) in copied {
            let before = plan.copies.range(..ordinal).count();
            if let Some(place) = plan.places.get_mut(&number) {
                place.part = (first + plan.passed.len() + before) as u32;
            }
        }
        plan
    }

    /// The frame that contains an item, and the item's place in it. `None`: it must be copied.
    fn pass_on(
        &mut self,
        producer: &Producer,
        frame: &Arc<DeviceFrame>,
        item: &Item,
    ) -> Option<(usize, usize)> {
        let offset = frame.offset_of(item.start as u64, item.len)?;
        let known = self.passed.iter();
        if let Some(at) = known.clone().position(|it| Arc::ptr_eq(&it.frame, frame)) {
            return Some((at, offset));
        }
        if self.passed.len() == MAX_FORWARDED {
            return None;
        }
        // An error if its memory ends with its producer, or a receiver cannot join its pool of origin.
        let parts = producer.forward(frame.received()?, FrameParts::All).ok()?;
        self.passed.push(Passed {
            frame: frame.clone(),
            parts,
        });
        Some((self.passed.len() - 1, offset))
    }

    /// Slots for the frames, in order. Streams copy the arrays into them. `owners` is kept until that has ended.
    pub(super) fn fill(
        self,
        py: Python<'_>,
        outlet: &Outlet,
        owners: &Py<PyAny>,
        deadline: Deadline,
    ) -> PyResult<Vec<Slot>> {
        let mut slots = Vec::new();
        for Passed { frame: _, parts } in self.passed {
            slots.push(Slot {
                lease: Some(outlet.acquire_for(py, parts, deadline)?),
                stream: None,
                size: EMPTY,
            });
        }
        // All slots are acquired before the first copy, so that no copy must be waited for if one cannot be acquired.
        let mut free = Vec::new();
        for (ordinal, copies) in self.copies {
            // A slot has at least one byte.
            let size = copies.size.max(1);
            let device = py.detach(|| Device::new(ordinal));
            let device = device.into_py_result()?;
            let lease = outlet.acquire(py, SlotSpec::new(size).on(&device), deadline)?;
            free.push((copies, size, device, lease));
        }
        let mut unsettled = Vec::new();
        for (copies, size, device, lease) in free {
            let stream = copies.stream();
            let slot = Slot {
                lease: Some(lease),
                stream: Some(stream),
                size,
            };
            let keeps = copies.keeps(stream);
            // Without the interpreter, because a driver may wait for a thread that needs it.
            let (filled, device, slot) = py.detach(move || {
                let lease = slot.lease.as_ref().ok_or(CudaError::Gone);
                let filled = lease.and_then(|lease| copies.fill(lease, &device, stream));
                (filled, device, slot)
            });
            // After an error too, because some copies may be running.
            if !keeps || filled.is_err() {
                unsettled.push((device, stream));
            }
            slots.push(slot);
            if let Err(error) = filled {
                keep_until_done(py, &unsettled, owners);
                return Err(error.into_py_err());
            }
        }
        if let Err(error) = settle(py, &unsettled, &outlet.canceller) {
            keep_until_done(py, &unsettled, owners);
            return Err(error);
        }
        Ok(slots)
    }
}

/// Waits until streams have copied memory that could change or end later. The timeout for receivers does not limit this wait,
/// because another attempt would copy again.
fn settle(py: Python<'_>, streams: &[(Device, Stream)], canceller: &Canceller) -> PyResult<()> {
    for (device, stream) in streams {
        let mark = py.detach(|| stream.mark(device));
        let mark = mark.into_py_result()?;
        device::wait_until(py, |slice| {
            // Closing the channel cancels the wait.
            Ok(canceller.is_cancelled() || mark.synchronize_for(slice)?)
        })?;
        if canceller.is_cancelled() {
            return Err(closed());
        }
    }
    Ok(())
}

/// Keeps memory that streams may still read after the wait for them was cancelled.
fn keep_until_done(py: Python<'_>, streams: &[(Device, Stream)], owners: &Py<PyAny>) {
    for (device, stream) in streams {
        let kept = Kept::new(owners.clone_ref(py));
        py.detach(|| stream.when_done(device, move || drop(kept)));
    }
}

/// A slot of one of the frames. A stream may still copy into it.
#[derive(Debug)]
pub(super) struct Slot {
    /// `None` only while it is published or dropped.
    lease: Option<WriteLease>,
    /// `None`: nothing is copied.
    stream: Option<Stream>,
    size: usize,
}

impl Slot {
    /// Returns the frame's sequence. `meta` gets the frame's size in bytes.
    pub(super) fn publish(
        mut self,
        py: Python<'_>,
        meta: impl FnOnce(usize) -> FrameMeta,
    ) -> Result<u64, PublishError> {
        let meta = meta(self.size);
        let Some(lease) = self.lease.take() else {
            return Err(PublishError::Closed);
        };
        let published = py.detach(|| match self.stream {
            Some(stream) => lease.publish_on(stream, meta),
            None => lease.publish(meta),
        });
        match published {
            Ok(published) => Ok(published.info().sequence),
            Err(PublishFailure { lease, error, .. }) => {
                self.lease = Some(lease);
                Err(error)
            }
        }
    }
}

impl Drop for Slot {
    /// The frame is not sent.
    fn drop(&mut self) {
        if let (Some(lease), Some(stream)) = (self.lease.take(), self.stream) {
            lease.give_back_later(vec![stream]);
        }
    }
}
