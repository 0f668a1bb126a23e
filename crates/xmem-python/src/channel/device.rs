// SPDX-License-Identifier: MPL-2.0

//! The arrays that a message has on CUDA devices. They are frames of their own, which are published before the message, and
//! held by whoever has one of their arrays: for each device one with what was copied, and one for each frame that is passed on.
#![allow(unsafe_code)] // addresses of device memory

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use pyo3::prelude::*;
use xmem_core::cuda::{CudaError, Device, Rows, Stream};
use xmem_core::{
    Canceller, DType, FrameMeta, Parts, Producer, PublishError, PublishFailure, ReadLease,
    WriteLease,
};

use super::end::{ChannelEnd, closed};
use super::message::Place;
use super::outgoing::{FORWARD_FROM, Item, MAX_FORWARDED};
use super::reaper::Kept;
use super::send::EMPTY;
use crate::addresses;
use crate::array::{Array, Keeper, Plane};
use crate::device::{self, DeviceCopy, DeviceFrame, Use};
use crate::errors::{IntoPyErr, Kind};
use crate::layout;
use crate::signals::Deadline;

/// Where arrays begin, in bytes: as libraries like them.
const ALIGN: usize = 256;

/// What is known of a block that lies on a device.
#[derive(Debug)]
pub(super) struct OnDevice {
    ordinal: u32,
    /// The stream that is still to write it. `None`: it is written, or its frame says when.
    ready_on: Option<Stream>,
    /// Whether its memory stays as it is until that stream is done with it, although its array is gone.
    keeps: bool,
    /// The frame that it lies in, if it is an array of ours.
    frame: Option<Arc<DeviceFrame>>,
}

/// The same, as Python has it.
#[derive(Debug, FromPyObject)]
pub(super) struct SentOnDevice<'py>(
    u32,
    Option<Bound<'py, PyAny>>,
    bool,
    Option<Bound<'py, Plane>>,
);

impl SentOnDevice<'_> {
    pub(super) fn parse(&self) -> PyResult<OnDevice> {
        let Self(ordinal, ready_on, keeps, plane) = self;
        let ready_on = ready_on.as_ref().map(device::stream_of).transpose()?;
        let keeper = plane
            .as_ref()
            .map(|plane| plane.get().array().keeper.clone());
        Ok(OnDevice {
            ordinal: *ordinal,
            // The message may be sent on another thread than its arrays were made on, as `asend` does it.
            ready_on: ready_on.map(|stream| Use::On(stream).ends_on()),
            keeps: *keeps,
            frame: match keeper {
                Some(Keeper::Device(frame)) => Some(frame),
                _ => None,
            },
        })
    }
}

/// A frame that is passed on.
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
    /// First byte in the frame.
    offset: usize,
    ready_on: Option<Stream>,
    keeps: bool,
    /// The frame that it lies in.
    frame: Option<Arc<DeviceFrame>>,
}

/// What is copied on one device.
#[derive(Debug, Default)]
struct Copies {
    arrays: Vec<Copied>,
    size: usize,
}

impl Copies {
    /// Room for one more. Returns where it begins.
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

    /// The stream for the copies: one that writes some of them, so that these need not be waited for.
    fn stream(&self) -> Stream {
        let named = self.arrays.iter().find_map(|array| array.ready_on);
        named.unwrap_or(Stream::LEGACY_DEFAULT)
    }

    /// Whether all of them stay as they are until the stream has copied them.
    fn keeps(&self, stream: Stream) -> bool {
        self.arrays
            .iter()
            .all(|array| array.frame.is_some() || (array.keeps && array.ready_on == Some(stream)))
    }

    /// Has a stream copy them into a slot, behind what the other streams have to do. No CPU waits.
    fn fill(&self, lease: &WriteLease, device: &Device, stream: Stream) -> Result<(), CudaError> {
        let frames = self.arrays.iter().filter_map(|array| array.frame.clone());
        let frames: Vec<Arc<DeviceFrame>> = frames.collect();
        let enqueued = self.enqueue(lease, device, stream);
        if !frames.is_empty() {
            // The stream need not live as long as they do.
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
                // SAFETY: the array's memory, which stays until the stream has copied it, or that is waited for (`keeps`).
                unsafe { slot.copy_rows_from(stream, array.ptr, &[rows]) }?;
            }
        }
        Ok(())
    }
}

/// Where a message's arrays on devices go.
#[derive(Debug, Default)]
pub(super) struct Plan {
    passed: Vec<Passed>,
    /// By device.
    copies: BTreeMap<u32, Copies>,
    /// By number of the item.
    pub(super) places: BTreeMap<usize, Place>,
    /// Bytes that are copied.
    pub(super) copied: usize,
    /// Bytes that are not.
    pub(super) shared: usize,
}

impl Plan {
    /// `forward`: whether frames that were received are passed on where they lie. `first`: how many frames for the message
    /// there are already.
    pub(super) fn new(producer: &Producer, items: &[Item], forward: bool, first: usize) -> Self {
        let mut plan = Self::default();
        // What is copied lies in frames behind those that are passed on, which are known last.
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
                (place.piece, place.offset) = ((first + at) as u32, offset);
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
                place.piece = (first + plan.passed.len() + before) as u32;
            }
        }
        plan
    }

    /// The frame that an item lies in, and where in it. `None`: it has to be copied.
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
        // Each is a lease of each receiver.
        if self.passed.len() == MAX_FORWARDED {
            return None;
        }
        // Not memory that ends with its producer, nor as long as somebody does not reach the pool that it comes from.
        let parts = producer.forward(frame.received()?).ok()?;
        self.passed.push(Passed {
            frame: frame.clone(),
            parts,
        });
        Some((self.passed.len() - 1, offset))
    }

    /// Slots for the frames, in their order, into which streams copy what has to be copied. `owners` is kept until that is
    /// done.
    pub(super) fn fill(
        self,
        py: Python<'_>,
        end: &ChannelEnd,
        producer: &Producer,
        owners: &Py<PyAny>,
        deadline: Deadline,
    ) -> PyResult<Vec<Slot>> {
        let mut slots = Vec::new();
        for Passed { frame: _, parts } in self.passed {
            let mut lease = end.acquire(py, producer, (EMPTY, parts.room()), deadline)?;
            lease.set_parts(parts);
            slots.push(Slot {
                lease: Some(lease),
                stream: None,
                size: EMPTY,
            });
        }
        // All of them before the first copy, which is not waited for if there is no other slot.
        let mut free = Vec::new();
        for (ordinal, copies) in self.copies {
            // Memory has at least one byte.
            let size = copies.size.max(1);
            let device = py.detach(|| Device::new(ordinal));
            let device = device.map_err(IntoPyErr::into_py_err)?;
            let lease = end.acquire_on_device(py, producer, size, &device, deadline)?;
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
            // A driver may wait for what needs the interpreter.
            let (filled, device, slot) = py.detach(move || {
                let lease = slot.lease.as_ref().ok_or(CudaError::Gone);
                let filled = lease.and_then(|lease| copies.fill(lease, &device, stream));
                (filled, device, slot)
            });
            // Also behind what was put there before an error.
            if !keeps || filled.is_err() {
                unsettled.push((device, stream));
            }
            slots.push(slot);
            if let Err(error) = filled {
                keep_until_done(py, &unsettled, owners);
                return Err(error.into_py_err());
            }
        }
        if let Err(error) = settle(py, &unsettled, &end.inbox.canceller) {
            keep_until_done(py, &unsettled, owners);
            return Err(error);
        }
        Ok(slots)
    }
}

/// Waits until streams have copied what could change later, or go. Not limited by the time that there is for receivers: who
/// tries again would have it copied once more.
fn settle(py: Python<'_>, streams: &[(Device, Stream)], canceller: &Canceller) -> PyResult<()> {
    for (device, stream) in streams {
        let mark = py.detach(|| stream.mark(device));
        let mark = mark.map_err(IntoPyErr::into_py_err)?;
        device::wait_until(py, |slice| {
            // Who closes the channel waits for nobody.
            Ok(canceller.is_cancelled() || mark.synchronize_for(slice)?)
        })?;
        if canceller.is_cancelled() {
            return Err(closed());
        }
    }
    Ok(())
}

/// Keeps what streams may still read, which are not waited for any more.
fn keep_until_done(py: Python<'_>, streams: &[(Device, Stream)], owners: &Py<PyAny>) {
    for (device, stream) in streams {
        let kept = Kept::new(owners.clone_ref(py));
        py.detach(|| stream.when_done(device, move || drop(kept)));
    }
}

/// A slot of one of the frames. It may be that a stream still copies into it.
#[derive(Debug)]
pub(super) struct Slot {
    /// `None` only while it is published or dropped.
    lease: Option<WriteLease>,
    /// `None`: what lies elsewhere is passed on.
    stream: Option<Stream>,
    size: usize,
}

impl Slot {
    /// Returns the frame's sequence. `meta` is for a frame of so many bytes.
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
            Ok(published) => Ok(published.meta().sequence),
            Err(PublishFailure { lease, error }) => {
                self.lease = Some(lease);
                Err(error)
            }
        }
    }
}

impl Drop for Slot {
    /// It is not sent.
    fn drop(&mut self) {
        if let (Some(lease), Some(stream)) = (self.lease.take(), self.stream) {
            lease.give_back_later(vec![stream]);
        }
    }
}

/// How long arrays are waited for that are copied for want of a lease.
const PATIENCE: Duration = Duration::from_secs(10);

/// One frame with arrays of a message that came.
#[derive(Debug, Clone)]
pub(super) enum Arrays {
    Frame(Arc<DeviceFrame>),
    Private(Arc<DeviceCopy>),
    /// Whoever asks for one is told why not.
    Failed(CudaError),
}

impl Arrays {
    pub(super) fn of(lease: ReadLease) -> Self {
        match DeviceFrame::new(lease) {
            Ok(frame) => {
                addresses::note_on_device(&frame);
                Self::Frame(frame)
            }
            Err(error) => Self::Failed(error),
        }
    }

    /// For want of a lease, as a copy. Whoever closes the channel does not wait for the device.
    pub(super) fn copied(lease: &ReadLease, canceller: &Canceller) -> Self {
        match layout::copy_on_device(lease, PATIENCE, Some(canceller)) {
            Ok(Some(piece)) => match piece.keeper {
                Keeper::PrivateDevice(memory) => Self::Private(memory),
                _ => Self::Failed(CudaError::NotOnDevice),
            },
            Ok(None) => Self::Failed(CudaError::Unfinished),
            Err(error) => Self::Failed(error),
        }
    }

    /// The memory of the payload, piece by piece.
    fn memory(&self) -> Result<(Keeper, Vec<(u64, usize)>), CudaError> {
        match self {
            Self::Frame(frame) => Ok((Keeper::Device(frame.clone()), frame.pieces())),
            Self::Private(memory) => Ok((
                Keeper::PrivateDevice(memory.clone()),
                vec![(memory.ptr(), memory.len())],
            )),
            Self::Failed(error) => Err(error.clone()),
        }
    }

    /// The same in memory of this process.
    pub(super) fn to_private(&self, py: Python<'_>) -> PyResult<Self> {
        let Self::Frame(frame) = self else {
            return Ok(self.clone());
        };
        frame.wait(py)?;
        let copy = py.detach(|| frame.copy_all());
        Ok(copy.map_or_else(Self::Failed, |copy| {
            Self::Private(Arc::new(DeviceCopy::new(copy)))
        }))
    }
}

/// Bytes of a message on a device.
#[pyclass(frozen, module = "xmem._xmem", name = "_DeviceBlock")]
#[derive(Debug)]
pub(crate) struct DeviceBlock {
    pub(super) arrays: Arrays,
    pub(super) place: Place,
}

impl DeviceBlock {
    /// An array whose first element is `offset` bytes into it. `None`: it does not lie there.
    pub(super) fn array(
        &self,
        offset: usize,
        shape: &[isize],
        strides: &[isize],
        dtype: DType,
    ) -> PyResult<Option<Array>> {
        let (keeper, pieces) = self.arrays.memory().map_err(|error| {
            let kind = error.kind().unwrap_or(Kind::Cuda);
            kind.error(format!("the message has arrays on a device: {error}"))
        })?;
        let mut before = 0;
        let block = pieces.into_iter().find_map(|(ptr, size)| {
            let at = self.place.offset.checked_sub(before);
            before += size;
            let at = at?;
            (at.checked_add(self.place.len)? <= size).then_some(ptr as usize + at)
        });
        Ok(block.and_then(|start| {
            let bytes = (std::ptr::without_provenance(start), self.place.len);
            Array::new(keeper, bytes, offset, shape, strides, dtype)
        }))
    }
}
