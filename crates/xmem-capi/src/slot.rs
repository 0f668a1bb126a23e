// SPDX-License-Identifier: MPL-2.0

//! Slots of a producer, which frames are written into.
#![allow(unsafe_code)] // functions and pointers of C

use std::ffi::{c_int, c_void};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use std::{mem, ptr};

use xmem_core::{FrameFlags, FrameMeta, WriteLease, can_be_meant, monotonic_ns};

use crate::border::{Out, Sized0, call, limit};
use crate::device::Writing;
use crate::entries::Held;
use crate::error::{Code, Failure};
use crate::frame::NO_TIME;
use crate::handles::{Table, inside, lock};
use crate::planes::{Piece, Planes};
use crate::producer::{Producer, Video};

pub(crate) static SLOTS: Table<Slot> = Table::new("slot");

pub(crate) struct Slot {
    producer: Held<Producer>,
    /// `None`: it was published.
    writing: Mutex<Option<Writing>>,
    size: usize,
    video: Option<Arc<Video>>,
}

/// `xmem_slot_info` of xmem.h.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct SlotInfo {
    struct_size: usize,
    data: *mut c_void,
    size: usize,
    n_planes: u32,
    slot: u32,
    planes: Planes,
}

// SAFETY: numbers, and pointers that may be null.
unsafe impl Sized0 for SlotInfo {}

/// `xmem_times` of xmem.h.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Times {
    struct_size: usize,
    timestamp: i64,
    pts: i64,
    dts: i64,
    duration: i64,
    flags: u32,
    reserved: u32,
}

// SAFETY: numbers.
unsafe impl Sized0 for Times {
    /// `XMEM_TIMES` of xmem.h.
    fn defaults() -> Self {
        Self {
            struct_size: mem::size_of::<Self>(),
            timestamp: 0,
            pts: NO_TIME,
            dts: NO_TIME,
            duration: NO_TIME,
            flags: 0,
            reserved: 0,
        }
    }
}

impl Times {
    fn check(&self) -> Result<(), Failure> {
        let wrong = |text| Err(Failure::new(Code::Argument, text));
        if ![0, NO_TIME].contains(&self.timestamp) && !can_be_meant(self.timestamp) {
            return wrong(format!(
                "timestamp is {}, which isn't a valid time of CLOCK_MONOTONIC in nanoseconds, which is now {}: use \
                 clock_gettime(CLOCK_MONOTONIC), not the wall clock or seconds",
                self.timestamp,
                monotonic_ns()
            ));
        }
        for (name, time) in [
            ("pts", self.pts),
            ("dts", self.dts),
            ("duration", self.duration),
        ] {
            if time < 0 && time != NO_TIME {
                return wrong(format!(
                    "{name} is {time}, but times of a stream begin at 0: add the same to all of them, or use XMEM_NO_TIME"
                ));
            }
        }
        Ok(())
    }

    fn describe(&self, meta: &mut FrameMeta) {
        let known = |time: i64| u64::try_from(time).ok();
        meta.flags = FrameFlags::from_bits(self.flags);
        meta.timestamp = Some(match self.timestamp {
            0 | NO_TIME => monotonic_ns(),
            time => time,
        });
        meta.pts = known(self.pts);
        meta.dts = known(self.dts);
        meta.duration = known(self.duration);
    }
}

impl Slot {
    pub(crate) fn new(
        producer: Held<Producer>,
        lease: WriteLease,
        size: usize,
        video: Option<Arc<Video>>,
    ) -> Self {
        Self {
            producer,
            writing: Mutex::new(Some(Writing::new(lease))),
            size,
            video,
        }
    }

    /// `data` says where the bytes are, and `None` if the caller can't use them there.
    pub(crate) fn describe(
        &self,
        data: impl FnOnce(&mut Writing) -> Result<Option<*mut u8>, Failure>,
    ) -> Result<impl FnOnce(&mut SlotInfo), Failure> {
        let mut writing = lock(&self.writing);
        let writing = writing.as_mut().ok_or_else(published)?;
        let (size, slot, data) = (self.size, writing.lease.slot(), data(writing)?);
        let planes = match (data, &self.video) {
            (Some(data), Some(video)) => {
                let places = video.outline.places(&[Piece::at(data, size)])?;
                Some((&video.outline, places))
            }
            _ => None,
        };
        Ok(move |out: &mut SlotInfo| {
            out.data = data.map_or(ptr::null_mut(), <*mut u8>::cast);
            (out.size, out.slot) = (size, slot);
            if let Some((outline, places)) = planes {
                out.n_planes = outline.fill(&mut out.planes, &places);
            }
        })
    }

    fn publish(&self, times: &Times, timeout: Option<Duration>) -> Result<u64, Failure> {
        times.check()?;
        self.producer.wait_for_room(timeout)?;
        let mut writing = lock(&self.writing);
        let held = writing.as_ref().ok_or_else(published)?;
        let is_on_device = held.lease.is_on_device();
        let video = self.video.as_ref();
        self.producer.publish_with(video, is_on_device, || {
            let mut meta = match video {
                Some(video) => FrameMeta::with_layout(self.size, video.layout.clone()),
                None => FrameMeta::new(self.size),
            };
            times.describe(&mut meta);
            Writing::publish(&mut writing, &meta)
        })
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        if let Some(writing) = inside(&mut self.writing).take() {
            writing.give_back();
        }
    }
}

#[cold]
pub(crate) fn published() -> Failure {
    Failure::new(Code::Handle, "the slot was published: acquire another one")
}

#[unsafe(no_mangle)]
unsafe extern "C" fn xmem_slot_get(slot: u64, info: *mut SlotInfo) -> c_int {
    call(|| {
        let slot = SLOTS.get(slot)?;
        let describe = slot.describe(|writing| Ok(writing.host()))?;
        // SAFETY: xmem.h asks for a structure that begins with its size.
        unsafe { SlotInfo::fill(info, "info", describe) }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn xmem_slot_publish(
    slot: u64,
    times: *const Times,
    timeout: i64,
    sequence: *mut u64,
) -> c_int {
    call(|| {
        // SAFETY: xmem.h asks for a structure that begins with its size.
        let times = unsafe { Times::read(times, "times") }?;
        let slot = SLOTS.get(slot)?;
        // On an error the handle stays valid, to publish the slot again or to release it.
        let number = slot.publish(&times, limit(timeout))?;
        slot.end();
        if let Some(sequence) = Out::optional(sequence) {
            sequence.set(number);
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn xmem_slot_release(slot: u64) -> c_int {
    call(|| SLOTS.remove(slot).map(drop))
}
