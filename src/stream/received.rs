// SPDX-License-Identifier: MPL-2.0

//! Finds the received frame that a buffer consists of.

use std::{ops::Range, sync::Arc};

use gst::glib;
use xmem_core::{Dmabuf, ReadLease};

use crate::{
    buffers::{
        allocator::Tally,
        memory::XmemMemory,
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
