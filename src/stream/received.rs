// SPDX-License-Identifier: MPL-2.0

//! Finding the received frame that a buffer consists of.

use std::sync::Arc;

use gst::glib;
use xmem_core::ReadLease;

use crate::{
    buffers::{
        memory::XmemMemory,
        tally::Tally,
        tied::{Tie, tied},
    },
    cuda::SlotMemory,
};

/// The tag that xmemsink gives to a part of a frame in any memory.
pub(crate) const TAG_HOST: u32 = 0;
/// That it is a GstDmaBufMemory.
pub(crate) const TAG_DMABUF: u32 = 1;

/// The received frame of a memory that is no XmemMemory. The allocator of such a memory has no leases.
#[derive(Debug, Clone)]
pub(crate) struct Kept {
    pub(crate) frame: ReadLease,
    /// Which part of the frame it is.
    pub(crate) index: usize,
    pub(crate) _tally: Arc<Tally>,
}

impl Tie for Kept {
    const NAME: &'static glib::GStr = glib::gstr!("xmem-frame");
}

/// The received frame that a buffer is the whole of, in the order in which it came.
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
                let kept = tied::<Kept>(memory)?;
                let part = kept.frame.parts().get(kept.index)?;
                let is_whole = memory.offset() == part.offset() && memory.size() == part.len();
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
