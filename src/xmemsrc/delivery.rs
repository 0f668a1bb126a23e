// SPDX-License-Identifier: MPL-2.0

//! A received frame as a GstBuffer.

use std::sync::Arc;

use xmem_core::{FrameMeta, ReadLease};

use crate::{
    frame::{self, Format},
    memory::{self, Tally},
    planes::{self, Planes},
    timing::Origin,
};

/// How a frame's bytes got into its buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    /// They are still in their slot.
    InPlace,
    /// They were copied, because the budget was used up.
    OverBudget,
    /// They were copied, because downstream knows only the default layout.
    Layout,
}

/// What a frame's description cannot be trusted with.
#[derive(Debug)]
pub(super) struct Nonsense(pub(super) String);

/// What frames are turned into buffers with.
#[derive(Debug)]
pub(super) struct Converter<'a> {
    pub(super) format: &'a Format,
    /// Downstream can read a GstVideoMeta.
    pub(super) video_meta: bool,
    /// `None`: the pipeline has no clock.
    pub(super) origin: Option<Origin>,
}

impl Converter<'_> {
    /// A buffer around the frame where it lies.
    pub(super) fn in_place(
        &self,
        lease: ReadLease,
        tally: &Arc<Tally>,
    ) -> Result<(gst::Buffer, Way), Nonsense> {
        let meta = lease.meta().clone();
        self.finish(memory::readable(lease, tally), &meta, Way::InPlace)
    }

    /// A buffer with a copy of the frame, which the caller gives back afterwards.
    pub(super) fn copied(&self, lease: &ReadLease) -> Result<(gst::Buffer, Way), Nonsense> {
        let mut memory = gst::Memory::with_size(lease.len());
        let unmappable = || Nonsense("there is no room for a copy of it".to_owned());
        memory
            .get_mut()
            .and_then(|memory| memory.map_writable().ok())
            .ok_or_else(unmappable)?
            .copy_from_slice(lease.data());
        self.finish(memory, lease.meta(), Way::OverBudget)
    }

    fn finish(
        &self,
        memory: gst::Memory,
        meta: &FrameMeta,
        way: Way,
    ) -> Result<(gst::Buffer, Way), Nonsense> {
        let size = memory.size();
        let mut buffer = gst::Buffer::new();
        let buffer_ref = buffer.make_mut();
        buffer_ref.append_memory(memory);
        buffer_ref.unset_flags(gst::BufferFlags::TAG_MEMORY);
        frame::decorate(buffer_ref, meta);
        if let Some(origin) = self.origin {
            buffer_ref.set_pts(meta.timestamp.map(|time| origin.to_running_time(time)));
            buffer_ref.set_dts(
                meta.decode_timestamp
                    .map(|time| origin.to_running_time(time)),
            );
        }
        let (Some(info), Some(layout)) = (&self.format.video, &meta.video) else {
            return Ok((buffer, way));
        };
        let planes =
            Planes::check(layout, size, info).map_err(|reason| Nonsense(reason.to_owned()))?;
        planes
            .describe(buffer_ref)
            .map_err(|error| Nonsense(error.to_string()))?;
        if self.video_meta || planes.is_default() {
            return Ok((buffer, way));
        }
        let copy =
            planes::to_default_layout(buffer, info).map_err(|error| Nonsense(error.to_string()))?;
        Ok((copy, Way::Layout))
    }
}
