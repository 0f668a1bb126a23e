// SPDX-License-Identifier: MPL-2.0

//! Producers, and the slots that they write.
#![allow(unsafe_code)] // functions and pointers of C

use std::ffi::{c_char, c_int, c_void};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use xmem_core::cuda::Device;
use xmem_core::{Delivery, FrameFlags, FrameMeta, SlotSpec, VideoLayout, Wait, monotonic_ns};

use crate::border::{Out, Sized0, call, limit, limit_or_none, needed, path, text};
use crate::device::Writing;
use crate::error::{Code, Failure};
use crate::frame::{Planes, planes};
use crate::handles::{Table, lock};

pub(crate) static PRODUCERS: Table<Producer> = Table::new("producer");
pub(crate) static SLOTS: Table<Slot> = Table::new("slot");

pub(crate) struct Producer {
    producer: xmem_core::Producer,
    /// Frames per second, for the caps of video.
    framerate: (u32, u32),
    /// Held between a change of the caps and the publication of their first frame.
    publishing: Mutex<()>,
    /// Where new slots are. `None`: in host memory.
    device: Mutex<Option<Device>>,
}

pub(crate) struct Slot {
    producer: Arc<Producer>,
    /// `None`: it was published.
    writing: Mutex<Option<Writing>>,
    size: usize,
    video: Option<VideoLayout>,
}

/// `xmem_producer_options` of xmem.h.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Options {
    struct_size: usize,
    is_lossless: u32,
    history: u32,
    min_slots: u32,
    max_slots: u32,
    max_consumers: u32,
    max_held: u32,
    max_bytes: u64,
    lossless_timeout: i64,
    framerate_numerator: u32,
    framerate_denominator: u32,
    socket_mode: u32,
    reserved: u32,
    socket_group: *const c_char,
}

// SAFETY: numbers, and a pointer that may be null.
unsafe impl Sized0 for Options {}

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
unsafe impl Sized0 for Times {}

/// `xmem_producer_stats` of xmem.h.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Statistics {
    struct_size: usize,
    published: u64,
    copied: u64,
    dropped: u64,
    bytes: u64,
    slots: u32,
    slots_held: u32,
    consumers: u32,
    reserved: u32,
}

// SAFETY: numbers.
unsafe impl Sized0 for Statistics {}

impl Producer {
    fn new(
        pool: &std::ffi::OsStr,
        group: Option<&str>,
        options: &Options,
    ) -> Result<Self, Failure> {
        if options.socket_mode > 0o777 {
            let text = format!(
                "socket_mode is {:#o}: it may be at most 0777",
                options.socket_mode
            );
            return Err(Failure::new(Code::Argument, text));
        }
        let mut builder = xmem_core::Producer::builder(pool)
            .lossless_timeout(limit_or_none(options.lossless_timeout))
            .min_slots(options.min_slots)
            .max_bytes(options.max_bytes)
            .socket_group(group.map(str::to_owned));
        if options.is_lossless != 0 {
            builder = builder.delivery(Delivery::Lossless);
        }
        // 0 is the default of each.
        if options.history > 0 {
            builder = builder.history(options.history);
        }
        if options.max_slots > 0 {
            builder = builder.max_slots(options.max_slots);
        }
        if options.max_consumers > 0 {
            builder = builder.max_consumers(options.max_consumers);
        }
        if options.max_held > 0 {
            builder = builder.max_held(options.max_held);
        }
        if options.socket_mode > 0 {
            builder = builder.socket_mode(options.socket_mode);
        }
        Ok(Self {
            producer: builder.build()?,
            framerate: (
                options.framerate_numerator,
                options.framerate_denominator.max(1),
            ),
            publishing: Mutex::default(),
            device: Mutex::default(),
        })
    }

    pub(crate) fn set_device(&self, device: Option<Device>) {
        *lock(&self.device) = device;
    }

    fn caps_of(&self, video: &VideoLayout, is_on_device: bool) -> String {
        let (numerator, denominator) = self.framerate;
        let memory = if is_on_device {
            "(memory:CUDAMemory)"
        } else {
            ""
        };
        format!(
            "video/x-raw{memory}, format=(string){}, width=(int){}, height=(int){}, interlace-mode=(string)progressive, \
             pixel-aspect-ratio=(fraction)1/1, framerate=(fraction){numerator}/{denominator}",
            video.format.as_str(),
            video.width,
            video.height
        )
    }

    /// In a lossless pool this also waits for consumers that are behind, so that publishing does not.
    fn acquire(
        self: &Arc<Self>,
        size: usize,
        video: Option<VideoLayout>,
        timeout: i64,
    ) -> Result<Slot, Failure> {
        let wait = Wait::from(limit(timeout));
        if self.producer.delivery() == Delivery::Lossless {
            self.producer.wait_for_room(wait)?;
        }
        let spec = SlotSpec::new(size);
        let spec = match &*lock(&self.device) {
            Some(device) => spec.on(device),
            None => spec,
        };
        let lease = match limit(timeout) {
            Some(Duration::ZERO) => self.producer.acquire(spec)?,
            _ => self.producer.acquire_wait(spec, wait)?,
        };
        Ok(Slot {
            producer: self.clone(),
            writing: Mutex::new(Some(Writing::new(lease))),
            size,
            video,
        })
    }
}

impl Slot {
    /// `data` says where the bytes are, and `None` if the caller can't use them there.
    pub(crate) fn describe(
        &self,
        data: impl FnOnce(&mut Writing) -> Result<Option<*mut u8>, Failure>,
    ) -> Result<SlotInfo, Failure> {
        let mut writing = lock(&self.writing);
        let writing = writing.as_mut().ok_or_else(published)?;
        let mut out = SlotInfo::zero();
        out.size = self.size;
        out.slot = writing.slot();
        let Some(data) = data(writing)? else {
            return Ok(out);
        };
        out.data = data.cast();
        if let Some(video) = &self.video {
            let place = |start: u64, len: u64| {
                let (start, len) = (usize::try_from(start).ok()?, usize::try_from(len).ok()?);
                let is_inside = start.checked_add(len)? <= self.size;
                is_inside.then(|| data.wrapping_add(start).cast_const())
            };
            (out.n_planes, out.planes) = planes(video, place)?;
        }
        Ok(out)
    }

    fn publish(&self, times: &Times, timeout: Option<Duration>) -> Result<u64, Failure> {
        let producer = &self.producer;
        if producer.producer.delivery() == Delivery::Lossless {
            producer.producer.wait_for_room(Wait::from(timeout))?;
        }
        let _publishing = lock(&producer.publishing);
        let mut held = lock(&self.writing);
        let is_on_device = held.as_ref().ok_or_else(published)?.is_on_device();
        let mut meta = FrameMeta::new(self.size).flags(FrameFlags::from_bits(times.flags));
        if let Some(video) = self.video {
            producer
                .producer
                .set_caps(&producer.caps_of(&video, is_on_device))?;
            let layout = meta.layout_mut();
            layout.video = Some(video);
            layout.content_type = "image/raw".into();
        }
        // In a structure that is filled with zeros, the frame is due now, and nothing else is known.
        let known = |time: i64| u64::try_from(time).ok().filter(|time| *time > 0);
        meta.timestamp = Some(if times.timestamp > 0 {
            times.timestamp
        } else {
            monotonic_ns()
        });
        meta.pts = known(times.pts);
        meta.dts = known(times.dts);
        meta.duration = known(times.duration);
        let writing = held.take().ok_or_else(published)?;
        writing.publish(meta).map_err(|failed| {
            let (writing, failure) = *failed;
            *held = Some(writing);
            failure
        })
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        if let Some(writing) = lock(&self.writing).take() {
            writing.give_back();
        }
    }
}

fn published() -> Failure {
    Failure::new(Code::Handle, "the slot was published: acquire another one")
}

#[unsafe(no_mangle)]
unsafe extern "C" fn xmem_producer_create(
    pool: *const c_char,
    options: *const Options,
    producer: *mut u64,
) -> c_int {
    call(|| {
        let producer = Out::new(producer, "producer")?;
        producer.set(0);
        // SAFETY: xmem.h asks for texts, and for a structure that begins with its size.
        let (pool, options) = unsafe { (path(pool, "pool")?, Options::read(options, "options")?) };
        // SAFETY: as above.
        let group = unsafe { text(options.socket_group, "socket_group") }?;
        let made = Producer::new(pool, group, &options)?;
        producer.set(PRODUCERS.add(Arc::new(made))?);
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn xmem_producer_set_caps(producer: u64, caps: *const c_char) -> c_int {
    call(|| {
        // SAFETY: xmem.h asks for a text.
        let caps = unsafe { needed(caps, "caps") }?;
        let producer = PRODUCERS.get(producer)?;
        let _publishing = lock(&producer.publishing);
        Ok(producer.producer.set_caps(caps)?)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn xmem_producer_acquire(
    producer: u64,
    size: usize,
    timeout: i64,
    slot: *mut u64,
) -> c_int {
    call(|| {
        let slot = Out::new(slot, "slot")?;
        slot.set(0);
        let made = PRODUCERS.get(producer)?.acquire(size, None, timeout)?;
        slot.set(SLOTS.add(Arc::new(made))?);
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn xmem_producer_acquire_video(
    producer: u64,
    format: *const c_char,
    width: u32,
    height: u32,
    timeout: i64,
    slot: *mut u64,
) -> c_int {
    call(|| {
        let slot = Out::new(slot, "slot")?;
        slot.set(0);
        // SAFETY: xmem.h asks for a text.
        let format = unsafe { needed(format, "format") }?;
        let layout = VideoLayout::new(format, width, height)?;
        let made = PRODUCERS
            .get(producer)?
            .acquire(layout.size()?, Some(layout), timeout)?;
        slot.set(SLOTS.add(Arc::new(made))?);
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn xmem_producer_wait_for_consumers(producer: u64, count: usize, timeout: i64) -> c_int {
    call(|| {
        let wait = Wait::from(limit(timeout));
        Ok(PRODUCERS
            .get(producer)?
            .producer
            .wait_for_consumers(count, wait)?)
    })
}

#[unsafe(no_mangle)]
extern "C" fn xmem_producer_end_stream(producer: u64) -> c_int {
    call(|| {
        PRODUCERS.get(producer)?.producer.set_eos(true);
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn xmem_producer_get_stats(producer: u64, stats: *mut Statistics) -> c_int {
    call(|| {
        let now = PRODUCERS.get(producer)?.producer.stats();
        let mut out = Statistics::zero();
        out.published = now.published;
        out.copied = now.copied;
        out.dropped = now.dropped;
        out.bytes = now.bytes;
        out.slots = now.slots;
        out.slots_held = now.slots_held;
        out.consumers = now.consumers.len() as u32;
        // SAFETY: xmem.h asks for a structure that begins with its size.
        unsafe { out.write(stats, "stats") }
    })
}

#[unsafe(no_mangle)]
extern "C" fn xmem_producer_close(producer: u64) -> c_int {
    call(|| {
        let producer = PRODUCERS.remove(producer)?;
        // Slots that are still written keep the object, not the pool.
        producer.producer.close();
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn xmem_slot_get(slot: u64, info: *mut SlotInfo) -> c_int {
    call(|| {
        let description = SLOTS.get(slot)?.describe(|writing| Ok(writing.host()))?;
        // SAFETY: xmem.h asks for a structure that begins with its size.
        unsafe { description.write(info, "info") }
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
        let number = SLOTS.get(slot)?.publish(&times, limit(timeout))?;
        // On an error the slot stays, to be published again or released.
        drop(SLOTS.remove(slot));
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
