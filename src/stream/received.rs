// SPDX-License-Identifier: MPL-2.0

//! The frame that a memory holds: its numbers, for programs that link the plugin, and the received frame that a buffer consists
//! of, for xmemsink, which forwards it.

use std::{ops::Range, sync::Arc};

use gst::glib;
use xmem_core::{Dmabuf, ReadLease};

use crate::{
    buffers::{
        allocator::Tally,
        memory::{XmemMemory, XmemMemoryRef},
        tied::{Tie, tied},
    },
    cuda::SlotMemory,
};

/// xmemsink's tag for a part of a frame in ordinary memory.
pub(crate) const TAG_HOST: u32 = 0;
/// xmemsink's tag for a part in a GstDmaBufMemory.
pub(crate) const TAG_DMABUF: u32 = 1;

/// The received frame of a memory that is not an XmemMemory. Such memories cannot hold leases, so the lease is attached to
/// them.
#[derive(Debug, Clone)]
pub(crate) struct ReceivedPart {
    pub(crate) frame: ReadLease,
    /// The index of the part.
    pub(crate) index: usize,
    /// Where the part lies in the memory.
    pub(crate) bytes: Range<usize>,
    /// If set, the memory is a DMA buffer of a slot: whoever has its descriptor can write to the slot, so it must not be shared
    /// further.
    pub(crate) slot: Option<Dmabuf>,
    pub(crate) _tally: Arc<Tally>,
}

impl Tie for ReceivedPart {
    const NAME: &'static glib::GStr = glib::gstr!("xmem-frame");
}

/// The received frame, if a buffer consists of all of its parts in their order.
pub(crate) fn received_frame(buffer: &gst::BufferRef) -> Option<ReadLease> {
    if buffer.n_memory() == 1
        && let Some(slot) = SlotMemory::of(buffer.peek_memory(0))
    {
        return slot.received();
    }
    let mut whole: Option<ReadLease> = None;
    for (n, memory) in buffer.iter_memories().enumerate() {
        let (frame, index) = match memory.downcast_memory_ref::<XmemMemory>() {
            Some(memory) => memory.received()?,
            None => {
                let kept = tied::<ReceivedPart>(memory)?;
                let end = memory.offset() + memory.size();
                let is_whole = (memory.offset()..end) == kept.bytes;
                is_whole.then_some((kept.frame, kept.index))?
            }
        };
        if index != n || whole.as_ref().is_some_and(|whole| !whole.is_same(&frame)) {
            return None;
        }
        whole = Some(frame);
    }
    whole.filter(|frame| !frame.is_local() && buffer.n_memory() == frame.parts().len().max(1))
}

/// The frame and the pool that a GstMemory belongs to.
///
/// All memories over one slot, in any process, have the same numbers. So two programs can compare their frames, and refer to a
/// frame by its numbers.
///
/// The plugin must be linked into this program and registered with [`plugin_register_static`](crate::plugin_register_static).
///
/// ```
/// # let dir = tempfile::tempdir()?;
/// # let pool = dir.path().join("cam0.sock");
/// # let pool = pool.to_str().unwrap();
/// # use gst::prelude::*;
/// gst::init()?;
/// gstxmem::plugin_register_static()?;
/// // In one process:
/// let producer = gst::parse::launch(&format!("videotestsrc is-live=true ! xmemsink pool={pool}"))?;
/// producer.set_state(gst::State::Playing)?;
/// // In another one:
/// let consumer = gst::parse::launch(&format!("xmemsrc pool={pool} ! appsink name=app"))?
///     .downcast::<gst::Pipeline>()
///     .unwrap();
/// consumer.set_state(gst::State::Playing)?;
/// let app = consumer.by_name("app").unwrap().downcast::<gst_app::AppSink>().unwrap();
/// let sample = app.pull_sample()?;
/// let frame = gstxmem::FrameInfo::of_buffer(sample.buffer().unwrap()).unwrap();
/// println!("frame {} of {}, in slot {}", frame.sequence, frame.pool, frame.slot);
/// # assert_eq!(frame.pool, pool);
/// # consumer.set_state(gst::State::Null)?;
/// # producer.set_state(gst::State::Null)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct FrameInfo {
    /// The pool's name in this process.
    pub pool: String,
    /// Number of the slot in its pool.
    pub slot: u32,
    /// How often the slot was reused, never 0.
    pub generation: u32,
    /// Number of the frame in its pool. A frame that is published twice gets two numbers; the producer's own pipeline sees the
    /// first.
    pub sequence: u64,
}

impl FrameInfo {
    /// `None` if the memory is not a published slot, such as a copy of a frame.
    pub fn of(memory: &gst::MemoryRef) -> Option<Self> {
        match SlotMemory::of(memory) {
            Some(slot) => slot.frame().as_ref().map(Self::of_lease),
            None => memory
                .downcast_memory_ref::<XmemMemory>()
                .and_then(Self::of_memory),
        }
    }

    fn of_memory(memory: &XmemMemoryRef) -> Option<Self> {
        Some(Self {
            pool: memory.pool()?,
            slot: memory.slot()?,
            generation: memory.generation()?,
            sequence: memory.sequence()?,
        })
    }

    fn of_lease(lease: &ReadLease) -> Self {
        let info = lease.info();
        Self {
            pool: lease.pool().to_owned(),
            slot: info.slot,
            generation: info.generation,
            sequence: info.sequence,
        }
    }

    /// The frame of the first memory of a buffer that has one.
    pub fn of_buffer(buffer: &gst::BufferRef) -> Option<Self> {
        buffer.iter_memories().find_map(Self::of)
    }
}
