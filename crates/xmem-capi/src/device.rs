// SPDX-License-Identifier: MPL-2.0

//! Frames and slots on CUDA devices, which streams use.
#![allow(unsafe_code)] // functions and pointers of C

use std::ffi::{c_int, c_void};
use std::sync::Mutex;

use xmem_core::cuda::{CudaFrame, Device, Stream};
use xmem_core::{FrameMeta, PublishFailure, ReadLease, WriteLease};

use crate::border::{Sized0, call};
use crate::error::{Code, Failure};
use crate::frame::{Description, FRAMES};
use crate::handles::{inside, lock};
use crate::planes::Piece;
use crate::producer::PRODUCERS;
use crate::slot::{SLOTS, SlotInfo, published};

/// The stream of a `CUstream` or `cudaStream_t`.
pub(crate) fn stream(stream: *mut c_void) -> Stream {
    match stream.addr() {
        // CUDA's null stream.
        0 => Stream::LEGACY_DEFAULT,
        // SAFETY: xmem.h asks for a stream, which exists a little longer than the frame or the slot.
        handle => unsafe { Stream::from_raw(handle as u64) },
    }
}

/// The device with this number, for later slots. `None` below 0: host memory.
fn device(number: c_int) -> Result<Option<Device>, Failure> {
    let number = u32::try_from(number).ok();
    Ok(number.map(Device::new).transpose()?)
}

/// The work of streams with a received frame, which ends after it.
#[derive(Debug, Default)]
pub(crate) struct Reads(Mutex<Option<Box<Read>>>);

#[derive(Debug)]
struct Read {
    frame: CudaFrame,
    streams: Vec<Stream>,
}

impl Reads {
    /// The number of the device.
    pub(crate) fn device(&self, lease: &ReadLease) -> Result<u32, Failure> {
        self.with(lease, |frame, _| Ok(frame.device().ordinal()))
    }

    /// Makes a stream wait until the frame is written, and the end of the frame wait for that stream. Returns where the bytes are.
    pub(crate) fn give_to(
        &self,
        lease: &ReadLease,
        stream: Stream,
    ) -> Result<(Vec<Piece>, u32), Failure> {
        self.with(lease, |frame, streams| {
            frame.wait_on(stream)?;
            if !streams.contains(&stream) {
                streams.push(stream);
            }
            let parts = frame.parts();
            let pieces = parts.map(|(start, len)| Piece::on_device(start, len));
            Ok((pieces.collect(), frame.device().ordinal()))
        })
    }

    fn with<T>(
        &self,
        lease: &ReadLease,
        work: impl FnOnce(&CudaFrame, &mut Vec<Stream>) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let mut held = lock(&self.0);
        let read = match &mut *held {
            Some(read) => read,
            None => held.insert(Box::new(Read {
                frame: lease.cuda()?,
                streams: Vec::new(),
            })),
        };
        work(&read.frame, &mut read.streams)
    }
}

impl Drop for Reads {
    fn drop(&mut self) {
        if let Some(read) = inside(&mut self.0).take() {
            // The last handle of a frame may be released on any thread.
            read.frame.release_later(read.streams);
        }
    }
}

/// A slot that is written, and the stream that does it.
#[derive(Debug)]
pub(crate) struct Writing {
    pub(crate) lease: WriteLease,
    stream: Option<Stream>,
}

impl Writing {
    pub(crate) fn new(lease: WriteLease) -> Self {
        Self {
            lease,
            stream: None,
        }
    }

    /// Where the bytes are in host memory. `None`: they are on a device.
    pub(crate) fn host(&self) -> Option<*mut u8> {
        (!self.lease.is_on_device()).then(|| self.lease.as_ptr())
    }

    /// Makes a stream wait until earlier readers are done. Returns where the bytes are.
    fn give_to(&mut self, stream: Stream) -> Result<*mut u8, Failure> {
        let Some(slot) = self.lease.cuda() else {
            let text = "the slot is in host memory: use xmem_slot_get, or call xmem_producer_use_cuda first";
            return Err(Failure::new(Code::Argument, text));
        };
        if self.stream.is_some_and(|first| first != stream) {
            let text = "another stream writes this slot: use that one, or let it wait for the other by an event";
            return Err(Failure::new(Code::Argument, text));
        }
        slot.wait_on(stream)?;
        self.stream = Some(stream);
        Ok(std::ptr::without_provenance_mut(slot.ptr() as usize))
    }

    /// Publishes the frame. If a stream writes it, streams of consumers wait for that. Leaves `None`, or the slot on an error.
    pub(crate) fn publish(held: &mut Option<Self>, meta: &FrameMeta) -> Result<u64, Failure> {
        let Self { lease, stream } = held.take().ok_or_else(published)?;
        let published = match stream {
            Some(stream) => {
                let frame = lease.publish_on(stream, meta.clone());
                frame.map(|frame| frame.info().sequence)
            }
            None => lease.publish_unheld(meta),
        };
        published.map_err(|PublishFailure { lease, error, .. }| {
            *held = Some(Self { lease, stream });
            error.into()
        })
    }

    /// Gives the slot back after the work of its stream.
    pub(crate) fn give_back(self) {
        if let Some(stream) = self.stream {
            self.lease.give_back_later(vec![stream]);
        }
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn xmem_frame_get_cuda(
    frame: u64,
    on: *mut c_void,
    info: *mut Description,
) -> c_int {
    call(|| {
        let frame = FRAMES.get(frame)?;
        let describe = frame.describe_on(stream(on))?;
        // SAFETY: xmem.h asks for a structure that begins with its size.
        unsafe { Description::fill(info, "info", describe) }
    })
}

#[unsafe(no_mangle)]
extern "C" fn xmem_producer_use_cuda(producer: u64, number: c_int) -> c_int {
    call(|| {
        let producer = PRODUCERS.get(producer)?;
        producer.set_device(device(number)?);
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn xmem_slot_get_cuda(slot: u64, on: *mut c_void, info: *mut SlotInfo) -> c_int {
    call(|| {
        let slot = SLOTS.get(slot)?;
        let describe = slot.describe(|writing| writing.give_to(stream(on)).map(Some))?;
        // SAFETY: xmem.h asks for a structure that begins with its size.
        unsafe { SlotInfo::fill(info, "info", describe) }
    })
}
