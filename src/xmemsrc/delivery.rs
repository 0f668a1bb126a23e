// SPDX-License-Identifier: MPL-2.0

//! A received frame as a GstBuffer.

use std::sync::Arc;

use xmem_core::{FrameMeta, ReadLease};

use super::{pieces, times::Times};
use crate::{
    bufferpool::buffer_of,
    frame::{self, Format},
    memory::Tally,
    meta::{self, Losses},
    planes,
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
    /// They were copied from a device, as was asked for.
    #[cfg(feature = "cuda")]
    Downloaded,
}

/// What a frame's description cannot be trusted with.
#[derive(Debug)]
pub(super) struct Nonsense(pub(super) String);

/// What frames are turned into buffers with.
#[derive(Debug)]
pub(super) struct Converter<'a> {
    pub(super) format: &'a Format,
    /// Downstream finds the planes wherever they are: it can read a GstVideoMeta, or the memory itself, on a device.
    pub(super) any_layout: bool,
    pub(super) times: Times,
    /// Metas that make no sense here.
    pub(super) losses: &'a Losses,
}

impl Converter<'_> {
    /// A buffer around the frame where it lies.
    pub(super) fn in_place(
        &self,
        lease: ReadLease,
        tally: &Arc<Tally>,
    ) -> Result<(gst::Buffer, Way), Nonsense> {
        let memories = pieces::memories(&lease, tally)?;
        self.finish(memories, lease.meta(), Way::InPlace)
    }

    /// A buffer with a copy of the frame, which the caller gives back afterwards.
    pub(super) fn copied(&self, lease: &ReadLease) -> Result<(gst::Buffer, Way), Nonsense> {
        let pieces: Result<Vec<&[u8]>, Nonsense> = match lease.parts() {
            [] => Ok(vec![lease.data()]),
            parts => parts.iter().map(pieces::bytes).collect(),
        };
        let bytes = pieces?.concat();
        let memory = gst::Memory::from_slice(bytes);
        self.finish(vec![memory], lease.meta(), Way::OverBudget)
    }

    /// A buffer around the memory that a frame has come to.
    #[cfg(feature = "cuda")]
    pub(super) fn around(
        &self,
        memory: gst::Memory,
        meta: &FrameMeta,
        way: Way,
    ) -> Result<(gst::Buffer, Way), Nonsense> {
        self.finish(vec![memory], meta, way)
    }

    fn finish(
        &self,
        memories: Vec<gst::Memory>,
        meta: &FrameMeta,
        way: Way,
    ) -> Result<(gst::Buffer, Way), Nonsense> {
        let size = memories.iter().map(|memory| memory.size()).sum();
        let mut buffer = buffer_of(memories);
        if !self.format.keeps_its_word(&buffer) {
            let reason = "its caps say memory:DMABuf, and it is in no DMA buffer";
            return Err(Nonsense(reason.to_owned()));
        }
        let buffer_ref = buffer.make_mut();
        frame::decorate(buffer_ref, meta);
        buffer_ref.set_pts(self.times.pts);
        buffer_ref.set_dts(self.times.dts);
        buffer_ref.set_duration(self.times.duration);
        let layout = meta.video.as_ref();
        let planes = layout.map(|layout| self.format.check(layout, size));
        let planes = planes
            .transpose()
            .map_err(|reason| Nonsense(reason.to_owned()))?
            .flatten();
        if let Some(planes) = &planes {
            planes
                .describe(buffer_ref)
                .map_err(|error| Nonsense(error.to_string()))?;
        }
        meta::onto_buffer(&meta.attachments, buffer_ref, self.format, self.losses);
        let info = match (planes, &self.format.video) {
            (Some(planes), Some(info)) if !self.any_layout && !planes.is_default() => info,
            _ => return Ok((buffer, way)),
        };
        let copy =
            planes::to_default_layout(buffer, info).map_err(|error| Nonsense(error.to_string()))?;
        Ok((copy, Way::Layout))
    }
}
