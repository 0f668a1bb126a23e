// SPDX-License-Identifier: MPL-2.0

//! A received frame as a GstBuffer.

use std::sync::Arc;

use xmem_core::{FrameMeta, ReadLease};

use super::{pieces, source::Source, stream::Snapshot, times::Times};
use crate::{
    bufferpool::buffer_of,
    frame, memory,
    meta::{self, Losses},
    planes::{self, Planes},
    tally::Tally,
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
    /// They were copied from a device, because `download` is set.
    Downloaded,
}

/// The outcome of a received frame.
pub(super) enum Received {
    Buffer(gst::Buffer, Way),
    Dropped,
    /// The element was stopped while the frame was waited for. Only frames in device memory are.
    CalledOff,
    /// The key frame that it needs is missing.
    Undecodable,
}

/// Why a frame's description is invalid.
#[derive(Debug)]
pub(super) struct Nonsense(pub(super) String);

/// Turns frames into buffers.
#[derive(Debug)]
pub(super) struct Converter<'a> {
    stream: &'a mut Snapshot,
    times: Times,
    /// Metas that cannot be used here.
    losses: &'a Losses,
}

/// Makes a buffer of a frame. An invalid frame ends the stream with an error.
pub(super) fn convert(
    source: Source<'_>,
    stream: &mut Snapshot,
    times: Times,
    convert: impl FnOnce(Converter<'_>) -> Result<(gst::Buffer, Way), Nonsense>,
) -> Result<Received, gst::FlowError> {
    let converted = convert(Converter {
        stream,
        times,
        losses: source.losses,
    });
    // Once for each name.
    for (name, why) in source.losses.news() {
        gst::element_warning!(
            source.element,
            gst::StreamError::Format,
            ("Frames come without their {name}: {why}. See the field dropped-metas of stats")
        );
    }
    converted
        .map(|(buffer, way)| Received::Buffer(buffer, way))
        .map_err(|Nonsense(reason)| {
            gst::element_error!(
                source.element,
                gst::StreamError::Format,
                ("The producer describes a frame that cannot be: {reason}")
            );
            gst::FlowError::Error
        })
}

impl Converter<'_> {
    /// A buffer around the frame where it lies.
    pub(super) fn in_place(
        mut self,
        lease: ReadLease,
        tally: &Arc<Tally>,
    ) -> Result<(gst::Buffer, Way), Nonsense> {
        let meta = lease.meta().clone();
        if !lease.parts().is_empty() {
            return self.finish(pieces::memories(&lease, tally)?, &meta, Way::InPlace);
        }
        self.check(&meta, lease.len())?;
        let Some(buffers) = self.stream.buffers() else {
            let memory = memory::readable(lease, None, tally);
            return self.finish([memory], &meta, Way::InPlace);
        };
        let buffer = buffers.buffer(lease, tally);
        let buffer = buffer.map_err(|flow| Nonsense(format!("there is no buffer: {flow}")))?;
        self.decorate(buffer, &meta, Way::InPlace)
    }

    /// A buffer with a copy of the frame, which the caller gives back afterwards.
    pub(super) fn copied(self, lease: &ReadLease) -> Result<(gst::Buffer, Way), Nonsense> {
        let pieces: Result<Vec<&[u8]>, Nonsense> = match lease.parts() {
            [] => Ok(vec![lease.data()]),
            parts => parts.iter().map(pieces::bytes).collect(),
        };
        let bytes = pieces?.concat();
        let memory = gst::Memory::from_slice(bytes);
        self.finish([memory], lease.meta(), Way::OverBudget)
    }

    /// A buffer around memories that hold or stand for the frame.
    pub(super) fn finish(
        mut self,
        memories: impl IntoIterator<Item = gst::Memory>,
        meta: &FrameMeta,
        way: Way,
    ) -> Result<(gst::Buffer, Way), Nonsense> {
        let mut buffer = buffer_of(memories);
        if !self.stream.format().memory.is_of(&buffer) {
            let reason = "its caps say memory:DMABuf, and it is in no DMA buffer";
            return Err(Nonsense(reason.to_owned()));
        }
        let size = buffer.size();
        if let Some(planes) = self.check(meta, size)? {
            planes
                .describe(buffer.make_mut())
                .map_err(|error| Nonsense(error.to_string()))?;
        }
        self.decorate(buffer, meta, way)
    }

    fn check(&mut self, meta: &FrameMeta, size: usize) -> Result<Option<&Planes>, Nonsense> {
        let planes = self.stream.check(&meta.layout, size);
        planes.map_err(|reason| Nonsense(reason.to_owned()))
    }

    /// Puts the frame's description on a buffer that has its planes.
    fn decorate(
        self,
        mut buffer: gst::Buffer,
        meta: &FrameMeta,
        way: Way,
    ) -> Result<(gst::Buffer, Way), Nonsense> {
        let buffer_ref = buffer.make_mut();
        frame::decorate(buffer_ref, meta);
        buffer_ref.set_pts(self.times.pts);
        buffer_ref.set_dts(self.times.dts);
        buffer_ref.set_duration(self.times.duration);
        let format = self.stream.format();
        meta::onto_buffer(&meta.attachments, buffer_ref, format, self.losses);
        let Some(info) = &format.video else {
            return Ok((buffer, way));
        };
        if self.stream.takes_any_layout() || self.stream.is_default() {
            return Ok((buffer, way));
        }
        let copy =
            planes::to_default_layout(buffer, info).map_err(|error| Nonsense(error.to_string()))?;
        Ok((copy, Way::Layout))
    }
}
