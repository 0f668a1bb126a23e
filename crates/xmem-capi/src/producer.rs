// SPDX-License-Identifier: MPL-2.0

//! Producers, and the slots that they write.
#![allow(unsafe_code)] // functions and pointers of C

use std::ffi::{OsStr, c_char, c_int};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use xmem_core::cuda::Device;
use xmem_core::{Delivery, FrameLayout, SlotSpec, VideoLayout, Wait};

use crate::border::{Sized0, call, given, limit, limit_or_none, needed, text, utf8};
use crate::entries::Held;
use crate::error::{Code, Failure};
use crate::handles::{Table, give, lock};
use crate::planes::Outline;
use crate::slot::{SLOTS, Slot};

pub(crate) static PRODUCERS: Table<Producer> = Table::new("producer");

pub(crate) struct Producer {
    producer: xmem_core::Producer,
    /// Frames per second, for the caps of video.
    framerate: (u32, u32),
    next: Mutex<Next>,
    /// The video whose caps are set, and whether they are for a device. Held between a change of the caps and the publication of
    /// their first frame.
    publishing: Mutex<Option<(Arc<Video>, bool)>>,
}

/// How slots are acquired.
#[derive(Default)]
struct Next {
    /// The last one. Most frames are like the last one.
    video: Option<Arc<Video>>,
    /// Where new slots are. `None`: in host memory.
    device: Option<Device>,
}

impl Next {
    fn video(&mut self, format: &OsStr, width: u32, height: u32) -> Result<Arc<Video>, Failure> {
        match &self.video {
            Some(video) if video.is(format, width, height) => Ok(video.clone()),
            _ => {
                let video = Video::new(utf8(format, "format")?, width, height)?;
                Ok(self.video.insert(video).clone())
            }
        }
    }
}

/// What is the same for all pictures of a format and a size.
pub(crate) struct Video {
    format: String,
    width: u32,
    height: u32,
    pub(crate) layout: Arc<FrameLayout>,
    pub(crate) outline: Outline,
    /// Bytes.
    size: usize,
}

impl Video {
    #[cold]
    fn new(format: &str, width: u32, height: u32) -> Result<Arc<Self>, Failure> {
        let video = VideoLayout::new(format, width, height)?;
        Ok(Arc::new(Self {
            format: format.to_owned(),
            width,
            height,
            layout: Arc::new(FrameLayout {
                video: Some(video),
                content_type: "image/raw".into(),
                ..FrameLayout::default()
            }),
            outline: Outline::new(Some(&video)),
            size: video.size()?,
        }))
    }

    fn is(&self, format: &OsStr, width: u32, height: u32) -> bool {
        format == self.format.as_str() && (width, height) == (self.width, self.height)
    }
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
    fn new(pool: &OsStr, group: Option<&str>, options: &Options) -> Result<Self, Failure> {
        if options.socket_mode > 0o777 {
            let text = format!(
                "socket_mode is {:#o}: it may be at most 0777",
                options.socket_mode
            );
            return Err(Failure::new(Code::Argument, text));
        }
        let (numerator, denominator) = (
            options.framerate_numerator,
            options.framerate_denominator.max(1),
        );
        if numerator.max(denominator) > i32::MAX.cast_unsigned() {
            let text = format!(
                "the framerate is {numerator}/{denominator}: each number may be at most {}",
                i32::MAX
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
            framerate: (numerator, denominator),
            next: Mutex::default(),
            publishing: Mutex::default(),
        })
    }

    pub(crate) fn set_device(&self, device: Option<Device>) {
        lock(&self.next).device = device;
    }

    fn caps_of(&self, video: &Video, is_on_device: bool) -> String {
        let (numerator, denominator) = self.framerate;
        let memory = if is_on_device {
            "(memory:CUDAMemory)"
        } else {
            ""
        };
        format!(
            "video/x-raw{memory}, format=(string){}, width=(int){}, height=(int){}, interlace-mode=(string)progressive, \
             pixel-aspect-ratio=(fraction)1/1, framerate=(fraction){numerator}/{denominator}",
            video.format, video.width, video.height
        )
    }

    /// In a lossless pool, waits for consumers that are behind. Returns the rest of the limit.
    pub(crate) fn wait_for_room(
        &self,
        limit: Option<Duration>,
    ) -> Result<Option<Duration>, Failure> {
        if self.producer.delivery() != Delivery::Lossless {
            return Ok(limit);
        }
        let began = Instant::now();
        self.producer.wait_for_room(limit.into())?;
        Ok(limit.map(|limit| limit.saturating_sub(began.elapsed())))
    }

    /// Publishes a frame with the caps of its video.
    pub(crate) fn publish_with(
        &self,
        video: Option<&Arc<Video>>,
        is_on_device: bool,
        publish: impl FnOnce() -> Result<u64, Failure>,
    ) -> Result<u64, Failure> {
        let mut publishing = lock(&self.publishing);
        if let Some(video) = video {
            let is_set = publishing.as_ref().is_some_and(|(set, on_device)| {
                Arc::ptr_eq(set, video) && *on_device == is_on_device
            });
            if !is_set {
                self.producer.set_caps(&self.caps_of(video, is_on_device))?;
                *publishing = Some((video.clone(), is_on_device));
            }
        }
        publish()
    }

    /// In a lossless pool this also waits for consumers that are behind, so that publishing does not. `frame` returns the number of
    /// its bytes.
    fn acquire(
        producer: Held<Self>,
        frame: impl FnOnce(&mut Next) -> Result<(usize, Option<Arc<Video>>), Failure>,
        timeout: i64,
    ) -> Result<u64, Failure> {
        let mut next = lock(&producer.next);
        let (size, video) = frame(&mut next)?;
        let spec = SlotSpec::new(size);
        let spec = match &next.device {
            Some(device) => spec.on(device),
            None => spec,
        };
        drop(next);
        let left = producer.wait_for_room(limit(timeout))?;
        let lease = match timeout {
            0 => producer.producer.acquire(spec),
            _ => producer.producer.acquire_wait(spec, left.into()),
        }?;
        SLOTS.add(Slot::new(producer, lease, size, video))
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn xmem_producer_create(
    pool: *const c_char,
    options: *const Options,
    producer: *mut u64,
) -> c_int {
    give(producer, "producer", || {
        // SAFETY: xmem.h asks for texts, and for a structure that begins with its size.
        let (pool, options) = unsafe { (given(pool, "pool")?, Options::read(options, "options")?) };
        // SAFETY: as above.
        let group = unsafe { text(options.socket_group, "socket_group") }?;
        PRODUCERS.add(Producer::new(pool, group, &options)?)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn xmem_producer_set_caps(producer: u64, caps: *const c_char) -> c_int {
    call(|| {
        // SAFETY: xmem.h asks for a text.
        let caps = unsafe { needed(caps, "caps") }?;
        let producer = PRODUCERS.get(producer)?;
        let mut publishing = lock(&producer.publishing);
        *publishing = None;
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
    give(slot, "slot", || {
        Producer::acquire(PRODUCERS.get(producer)?, |_| Ok((size, None)), timeout)
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
    give(slot, "slot", || {
        // SAFETY: xmem.h asks for a text.
        let format = unsafe { given(format, "format") }?;
        let frame = |next: &mut Next| {
            let video = next.video(format, width, height)?;
            Ok((video.size, Some(video)))
        };
        Producer::acquire(PRODUCERS.get(producer)?, frame, timeout)
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
        let describe = |out: &mut Statistics| {
            out.published = now.published;
            out.copied = now.copied;
            out.dropped = now.dropped;
            out.bytes = now.bytes;
            out.slots = now.slots;
            out.slots_held = now.slots_held;
            out.consumers = now.consumers.len() as u32;
        };
        // SAFETY: xmem.h asks for a structure that begins with its size.
        unsafe { Statistics::fill(stats, "stats", describe) }
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
