// SPDX-License-Identifier: MPL-2.0

//! What exists between start and stop: the pool, what it offers to upstream, the outcomes of buffers, and whether the pipeline
//! has failed.

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicBool, Ordering::Relaxed},
};

use gst::{
    glib::{self, prelude::*},
    prelude::*,
};
use xmem_core::{
    AcquireError, Canceller, Producer, PublishError, SlotSpec, Text, Wait, WriteLease,
};

use super::{
    base::CAT,
    settings::{Settings, XmemSinkDelivery},
};
use crate::{
    buffers::{
        allocator::{SlotSource, XmemAllocator},
        bufferpool::XmemBufferPool,
        memory::XmemMemory,
    },
    cuda::Copier,
    lock,
};

/// The state of a started sink.
#[derive(Debug)]
pub(super) struct Started {
    pub(super) producer: Producer,
    pub(super) slots: Arc<SlotSource>,
    pub(super) allocator: XmemAllocator,
    /// The settings at the start. They can be changed only while the sink is stopped.
    pub(super) settings: Settings,
    /// The producer's name in its frames.
    pub(super) program: Text<32>,
    /// Copies frames on devices.
    pub(super) copier: Copier,
}

impl Started {
    pub(super) fn is_lossless(&self) -> bool {
        self.settings.delivery == XmemSinkDelivery::Lossless
    }

    /// Acquires a slot. Lossless delivery waits for one. `None`: no slot is free, and live delivery does not wait.
    pub(super) fn slot(
        &self,
        spec: SlotSpec,
        cancel: &Canceller,
    ) -> Result<Option<WriteLease>, Failure> {
        let lease = if self.is_lossless() {
            self.producer
                .acquire_wait(spec, Wait::FOREVER.unless(cancel))
        } else {
            self.producer.acquire(spec)
        };
        match lease {
            Ok(lease) => Ok(Some(lease)),
            Err(AcquireError::Exhausted { .. }) if !self.is_lossless() => Ok(None),
            Err(AcquireError::Cancelled) => Err(Failure::Cancelled),
            Err(AcquireError::Closed) => Err(Failure::Closed),
            Err(error) => Err(Failure::NoSlot(error)),
        }
    }
}

/// The last pool that was offered. Decoders query repeatedly, some for nearly every frame, and mostly discard the answer.
#[derive(Debug, Default)]
pub(super) struct Offer {
    unused: Mutex<Option<Unused>>,
}

#[derive(Debug)]
struct Unused {
    caps: gst::Caps,
    pool: XmemBufferPool,
    /// The configuration that was offered.
    config: gst::BufferPoolConfig,
}

impl Unused {
    /// An element may have changed the configuration of a pool that it did not use.
    fn can_be_offered(&self, caps: &gst::Caps) -> bool {
        self.caps == *caps
            && !self.pool.is_active()
            && self.pool.ref_count() == 1
            && **self.pool.config() == **self.config
    }
}

impl Offer {
    /// Answers an ALLOCATION query for buffers in host memory. Takes no slot and allocates no memory.
    pub(super) fn answer(
        &self,
        started: &Started,
        caps: &gst::Caps,
        need_pool: bool,
        query: &mut gst::query::Allocation,
    ) -> Result<(), gst::LoggableError> {
        let raw_video = caps
            .structure(0)
            .is_some_and(|structure| structure.has_name("video/x-raw"));
        if raw_video {
            query.add_allocation_meta::<gst_video::VideoMeta>(None);
        }
        // The pool needs the size of a frame, which only complete caps give.
        if raw_video && let Ok(info) = gst_video::VideoInfo::from_caps(caps) {
            let size = u32::try_from(info.size())
                .map_err(|_| gst::loggable_error!(CAT, "Frames too large: {caps}"))?;
            if need_pool {
                // No maximum: some decoders discard a pool that has one.
                let pool = self.pool(started, caps, size)?;
                query.add_allocation_pool(Some(&pool), size, 0, 0);
            } else {
                query.add_allocation_pool(None::<&gst::BufferPool>, size, 0, 0);
            }
        }
        query.add_allocation_param(Some(&started.allocator), gst::AllocationParams::default());
        Ok(())
    }

    pub(super) fn clear(&self) {
        let pool = lock(&self.unused).take();
        drop(pool);
    }

    /// A pool for one element. If two elements shared it, one could deactivate it while the other uses it.
    fn pool(
        &self,
        started: &Started,
        caps: &gst::Caps,
        size: u32,
    ) -> Result<XmemBufferPool, gst::LoggableError> {
        let last = lock(&self.unused).take();
        if let Some(unused) = last
            && unused.can_be_offered(caps)
        {
            let pool = unused.pool.clone();
            *lock(&self.unused) = Some(unused);
            return Ok(pool);
        }
        let pool = XmemBufferPool::new(&started.allocator, &started.slots);
        let mut config = pool.config();
        config.set_params(Some(caps), size, 0, 0);
        config.add_option(gst_video::BUFFER_POOL_OPTION_VIDEO_META);
        pool.set_config(config)?;
        *lock(&self.unused) = Some(Unused {
            caps: caps.clone(),
            config: pool.config(),
            pool: pool.clone(),
        });
        Ok(pool)
    }
}

/// The outcome of a buffer.
#[derive(Debug)]
pub(super) enum Outcome {
    /// It was published in place.
    InPlace,
    /// It was copied, and the copy was published.
    Copied(Cause),
    /// No slot was free, and live delivery does not wait.
    Dropped,
    /// It was dropped, since most of upstream's buffers are in use, of which there are so many, and it may not be copied. `None`:
    /// their number is not known, or it was dropped for another reason that was reported.
    Spared(Option<u32>),
}

/// Why a buffer is copied.
#[derive(Debug, Clone, Copy)]
pub(super) enum Cause {
    /// It is not in a slot of this pool.
    Foreign,
    /// Its metas do not fit into the slot.
    Metas { needed: usize, room: usize },
    /// It is in device memory that consumers cannot open, for this reason.
    Unreachable(&'static str),
    /// Most of upstream's buffers are in use. Their number, if it is known.
    Scarce(Option<u32>),
}

impl Cause {
    /// The reason for the copy as text.
    pub(super) fn describe(self, buffer: &gst::BufferRef, slots: &SlotSource) -> String {
        match self {
            Self::Foreign => why_foreign(buffer, slots),
            Self::Metas { needed, room } => format!(
                "its metas have {needed} bytes, and its slot has room for {room} behind it; set meta-room to {} or more",
                needed.checked_next_power_of_two().unwrap_or(needed)
            ),
            Self::Unreachable(why) => {
                format!("the buffer is on a CUDA device, in memory that cannot be shared: {why}")
            }
            Self::Scarce(_) => "most of upstream's buffers are in use".to_owned(),
        }
    }
}

fn why_foreign(buffer: &gst::BufferRef, slots: &SlotSource) -> String {
    let memories = buffer.n_memory();
    if memories == 0 {
        return "the buffer is empty".to_owned();
    }
    if memories > 1 {
        return format!(
            "the buffer has {memories} memories, and not all are in slots or have a descriptor"
        );
    }
    let memory = buffer.peek_memory(0);
    if let Some(memory) = memory.downcast_memory_ref::<XmemMemory>() {
        let pool = memory.pool().map_or_else(
            || "another pool".to_owned(),
            |pool| format!("pool {pool:?}"),
        );
        return format!("the buffer is in a slot of {pool}");
    }
    let kind = memory.allocator().map_or_else(
        || "unknown".into(),
        |allocator| allocator.memory_type().to_string(),
    );
    if memory.is_memory_type::<gst_allocators::FdMemory>() {
        return format!(
            "the buffer is {kind} that could not be shared (GST_DEBUG=xmemsink:5 logs the reason): a pool can share \
             at most max-slots DMA buffers, or memfds with F_SEAL_SHRINK and F_SEAL_FUTURE_WRITE that fallocate has filled"
        );
    }
    let private = slots.private();
    if private > 0 {
        return format!(
            "the buffer is {kind}: {private} times no slot was free when upstream asked for one; \
             raise max-slots or max-bytes"
        );
    }
    format!(
        "the buffer is {kind}: upstream did not take the pool and allocator that it was offered (parsers, \
         x264enc and everything behind a tee never do, and decoders not for their first frames)"
    )
}

/// Why a buffer cannot be published.
#[derive(Debug)]
pub(super) enum Failure {
    /// Waiting was cancelled.
    Cancelled,
    /// The sink is being stopped.
    Closed,
    /// A copy is needed, and `copy=forbid` is set.
    CopyForbidden(String),
    /// Its caps require DMA buffers, and it is not in one that can be shared.
    NotShareable,
    /// No slot is available.
    NoSlot(AcquireError),
    /// Its bytes cannot be read.
    Unreadable,
    /// The device failed.
    Device(String),
    /// The pool refused it.
    Publish(PublishError),
}

impl From<PublishError> for Failure {
    fn from(error: PublishError) -> Self {
        match error {
            PublishError::Closed => Self::Closed,
            error => Self::Publish(error),
        }
    }
}

#[derive(Debug, Default)]
pub(super) struct Failures {
    /// There was an error since the stream began.
    happened: Arc<AtomicBool>,
    watched: Mutex<Option<(gst::Bus, glib::SignalHandlerId)>>,
}

impl Failures {
    /// Notes errors from now on. An error is known before an EOS that the same thread sends after it.
    pub(super) fn watch(&self, sink: &gst::Element) {
        self.forget();
        let mut top: gst::Object = sink.clone().upcast();
        while let Some(parent) = top.parent() {
            top = parent;
        }
        let Some(bus) = top.downcast::<gst::Element>().ok().and_then(|it| it.bus()) else {
            return;
        };
        bus.enable_sync_message_emission();
        let happened = self.happened.clone();
        let handler =
            bus.connect_sync_message(Some("error"), move |_, _| happened.store(true, Relaxed));
        *lock(&self.watched) = Some((bus, handler));
    }

    /// Ends [`watch`](Self::watch).
    pub(super) fn stop(&self) {
        let watched = lock(&self.watched).take();
        if let Some((bus, handler)) = watched {
            bus.disconnect(handler);
            bus.disable_sync_message_emission();
        }
    }

    /// A stream begins.
    pub(super) fn forget(&self) {
        self.happened.store(false, Relaxed);
    }

    pub(super) fn have_happened(&self) -> bool {
        self.happened.load(Relaxed)
    }
}
