// SPDX-License-Identifier: MPL-2.0

//! A received frame as a GstBuffer: in its slot, in parts of other memory, or copied.

// To wrap a descriptor is unsafe: it must be of the right kind and size.
#![allow(unsafe_code)]

use std::{
    os::fd::{AsFd, AsRawFd, BorrowedFd},
    sync::{Arc, LazyLock},
};

use gst::prelude::*;
use gst_allocators::{FdMemoryFlags, prelude::*};
use gst_audio::{AudioBufferRef, AudioInfo, AudioLayout, AudioMeta};
use xmem_core::{Attachments, Dmabuf, FrameMeta, Part, ReadLease};

use super::{
    run::SourceContext,
    stream::{NO_BUFFER, Snapshot},
    times::BufferTimes,
};
use crate::{
    buffers::{
        allocator::{Tally, XmemAllocator},
        bufferpool::buffer_of,
        memory, planes,
        tied::tie,
    },
    stream::{
        frame,
        meta::{self, Losses},
        received::{ReceivedPart, TAG_DMABUF},
        sticky,
    },
};

/// Where the bytes of a buffer are, and why.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Placement {
    /// In the slot of the frame.
    InPlace,
    /// Copied, because the budget was used up.
    OverBudget,
    /// Copied, because downstream can read only the default layout.
    Layout,
    /// Copied with the samples in reverse order, because the producer plays raw sound backward.
    Reversed,
    /// Copied from a device, because `download` is set.
    Downloaded,
}

/// The outcome of a received frame.
pub(super) enum Outcome {
    Buffer(gst::Buffer, Placement),
    Dropped,
    /// The element was stopped while it waited for a frame in device memory.
    Cancelled,
    /// The key frame that this frame needs is missing, or the beginning of the header that it belongs to.
    Undecodable,
}

/// Why a frame's description is invalid.
#[derive(Debug)]
pub(super) struct InvalidFrame(pub(super) String);

/// Converts a frame to a buffer.
#[derive(Debug)]
pub(super) struct Converter<'a> {
    stream: &'a mut Snapshot,
    times: BufferTimes,
    /// Counts metas that cannot be used here.
    losses: &'a Losses,
    /// Frames become DMA buffers.
    dmabuf: bool,
}

/// A frame as a buffer, and where its bytes are.
type Converted = Result<(gst::Buffer, Placement), InvalidFrame>;

/// Warns of metas that the conversion lost. Posts an error for an invalid frame.
pub(super) fn outcome(
    source: SourceContext<'_>,
    converted: Converted,
) -> Result<Outcome, gst::FlowError> {
    if source.losses.has_news() {
        report_losses(source);
    }
    converted
        .map(|(buffer, placement)| Outcome::Buffer(buffer, placement))
        .map_err(|invalid| fail(source, &invalid))
}

/// Once for each kind of meta.
#[cold]
fn report_losses(source: SourceContext<'_>) {
    for (name, why) in source.losses.news() {
        gst::element_warning!(
            source.element,
            gst::StreamError::Format,
            ("Frames come without their {name}: {why}. See the field dropped-metas of stats")
        );
    }
}

#[cold]
fn fail(source: SourceContext<'_>, InvalidFrame(reason): &InvalidFrame) -> gst::FlowError {
    match source.stream.other_gstreamer() {
        Some(producers) => gst::element_error!(
            source.element,
            gst::StreamError::Format,
            (
                "GStreamer {} cannot read a frame that GStreamer {producers} of the producer describes: {reason}. The two versions \
                 may place the planes of this format differently: use one version in both processes, or have the producer \
                 publish another format",
                sticky::gstreamer()
            )
        ),
        None => gst::element_error!(
            source.element,
            gst::StreamError::Format,
            ("The producer's description of a frame is invalid: {reason}")
        ),
    }
    gst::FlowError::Error
}

impl<'a> Converter<'a> {
    pub(super) fn new(
        source: SourceContext<'a>,
        stream: &'a mut Snapshot,
        times: BufferTimes,
    ) -> Self {
        Self {
            stream,
            times,
            losses: source.losses,
            dmabuf: source.settings.dmabuf,
        }
    }

    /// A buffer that refers to the frame in its slot.
    pub(super) fn in_place(self, lease: ReadLease, tally: &Arc<Tally>) -> Converted {
        if !lease.parts().is_empty() {
            return self.finish(memories(&lease, tally)?, lease.meta(), Placement::InPlace);
        }
        if self.dmabuf
            && let Some(slot) = lease.dmabuf()
        {
            let memory = of_slot(&lease, 0, lease.size() as usize, slot, tally);
            let memory = memory.ok_or_else(|| InvalidFrame(NO_BUFFER.to_owned()))?;
            return self.finish([memory], lease.meta(), Placement::InPlace);
        }
        let mut buffer = self
            .stream
            .buffer(&lease.meta().layout, lease.size() as usize)
            .map_err(InvalidFrame)?;
        let buffer_ref = buffer.make_mut();
        self.describe(buffer_ref, lease.meta());
        let attachments = lease.meta().attachments.clone();
        let content = memory::Content::received(lease, None, tally);
        if content.put_into(buffer_ref).is_none() {
            return Err(InvalidFrame(NO_BUFFER.to_owned()));
        }
        self.complete(buffer, &attachments, Placement::InPlace)
    }

    /// A buffer with a copy of the frame. The caller keeps the frame's lease.
    #[inline(never)]
    pub(super) fn copied(self, lease: &ReadLease) -> Converted {
        let bytes = lease
            .to_vec()
            .map_err(|error| InvalidFrame(format!("it cannot be copied: {error}")))?;
        let memory = gst::Memory::from_slice(bytes);
        self.finish([memory], lease.meta(), Placement::OverBudget)
    }

    /// A buffer around these memories.
    #[inline(never)]
    pub(super) fn finish(
        self,
        memories: impl IntoIterator<Item = gst::Memory>,
        meta: &FrameMeta,
        placement: Placement,
    ) -> Converted {
        let mut buffer = buffer_of(memories);
        let size = buffer.size();
        let buffer_ref = buffer.make_mut();
        let planes = self.stream.check(&meta.layout, size);
        if let Some(planes) = planes.map_err(|reason| InvalidFrame(reason.to_owned()))? {
            planes
                .describe(buffer_ref)
                .map_err(|error| InvalidFrame(error.to_string()))?;
        }
        self.describe(buffer_ref, meta);
        self.complete(buffer, &meta.attachments, placement)
    }

    fn describe(&self, buffer: &mut gst::BufferRef, meta: &FrameMeta) {
        frame::apply(buffer, meta);
        buffer.set_pts(self.times.pts);
        buffer.set_dts(self.times.dts);
        buffer.set_duration(self.times.duration);
    }

    /// Adds the metas to a described buffer with its memory, and gives it a layout that downstream can read.
    fn complete(
        self,
        mut buffer: gst::Buffer,
        attachments: &Attachments,
        placement: Placement,
    ) -> Converted {
        let format = self.stream.format();
        if !format.memory.is_of(&buffer) {
            let reason = "its caps say memory:DMABuf, and it is in no DMA buffer";
            return Err(InvalidFrame(reason.to_owned()));
        }
        if !attachments.is_empty() {
            meta::onto_buffer(attachments, buffer.make_mut(), format, self.losses);
        }
        // If downstream does not know GstVideoMeta, it needs the layout and the size of the caps. Only planes at other places need a
        // copy.
        if self.stream.takes_any_layout() {
            Ok((buffer, placement))
        } else if self.stream.is_default() {
            Ok((self.without_rest(buffer), placement))
        } else {
            self.copy_to_default(buffer, placement)
        }
    }

    /// The buffer without the bytes behind its planes. Decoders that pad the height leave such bytes.
    fn without_rest(&self, mut buffer: gst::Buffer) -> gst::Buffer {
        if let Some(info) = &self.stream.format().video
            && buffer.size() > info.size()
        {
            buffer.make_mut().set_size(info.size());
        }
        buffer
    }

    #[inline(never)]
    fn copy_to_default(self, buffer: gst::Buffer, placement: Placement) -> Converted {
        if let Some(info) = &self.stream.format().audio_info {
            let copy = reversed(&buffer, info);
            return copy
                .map(|copy| (copy, Placement::Reversed))
                .ok_or_else(|| InvalidFrame("its samples cannot be read".to_owned()));
        }
        let Some(info) = &self.stream.format().video else {
            return Ok((buffer, placement));
        };
        let copy = planes::to_default_layout(buffer, info)
            .map_err(|error| InvalidFrame(error.to_string()))?;
        Ok((copy, Placement::Layout))
    }
}

/// The memories of a frame in parts.
pub(super) fn memories(
    lease: &ReadLease,
    tally: &Arc<Tally>,
) -> Result<Vec<gst::Memory>, InvalidFrame> {
    let memory = |(index, part): (usize, &Part)| {
        if part.tag() == TAG_DMABUF
            && let Some(memory) = dmabuf(lease, index, part, tally)
        {
            return Ok(memory);
        }
        // Only if this element asks for DMA buffers.
        if let Some(slot) = part.dmabuf()
            && let Some(memory) = of_slot(lease, index, part.len(), slot, tally)
        {
            return Ok(memory);
        }
        bytes(part)?;
        let content = memory::Content::received(lease.clone(), Some(index), tally);
        Ok(content.into_memory(XmemAllocator::of_received_frames()))
    };
    lease.parts().iter().enumerate().map(memory).collect()
}

/// The bytes of a part.
pub(super) fn bytes(part: &Part) -> Result<&[u8], InvalidFrame> {
    let unmappable = |error| InvalidFrame(format!("its memory cannot be mapped: {error}"));
    part.map().map_err(unmappable)
}

/// A part in a DMA buffer of upstream.
fn dmabuf(lease: &ReadLease, index: usize, part: &Part, tally: &Arc<Tally>) -> Option<gst::Memory> {
    let received = ReceivedPart {
        frame: lease.clone(),
        index,
        bytes: part.offset()..part.offset().checked_add(part.len())?,
        slot: None,
        _tally: tally.clone(),
    };
    dmabuf_memory(part.fd()?, received)
}

/// A part in a slot, or a frame in its slot, as a DMA buffer.
fn of_slot(
    lease: &ReadLease,
    index: usize,
    size: usize,
    slot: Dmabuf,
    tally: &Arc<Tally>,
) -> Option<gst::Memory> {
    let received = ReceivedPart {
        frame: lease.clone(),
        index,
        bytes: slot.offset()..slot.offset().checked_add(size)?,
        slot: Some(slot.clone()),
        _tally: tally.clone(),
    };
    dmabuf_memory(slot.as_fd(), received)
}

/// The memory of a DMA buffer. `received` keeps the descriptor open.
fn dmabuf_memory(fd: BorrowedFd<'_>, received: ReceivedPart) -> Option<gst::Memory> {
    static ALLOCATOR: LazyLock<gst_allocators::DmaBufAllocator> = LazyLock::new(|| {
        let allocator = gst_allocators::DmaBufAllocator::new();
        // SAFETY: every GstAllocator is a GstObject. The bindings do not declare it for this type.
        let object = unsafe { allocator.unsafe_cast_ref::<gst::Object>() };
        object.set_object_flags(gst::ObjectFlags::MAY_BE_LEAKED);
        allocator
    });
    let (fd, end) = (fd.as_raw_fd(), received.bytes.end);
    // SAFETY: what is tied to the memory below keeps the descriptor open, and DONT_CLOSE keeps the memory from closing it.
    let memory = unsafe { ALLOCATOR.alloc_dmabuf_with_flags(fd, end, FdMemoryFlags::DONT_CLOSE) };
    let mut memory = memory.ok()?;
    let memory_ref = memory.get_mut()?;
    memory_ref.resize(received.bytes.clone());
    // SAFETY: sets a flag of a memory that has no other user yet.
    unsafe {
        (*memory_ref.as_mut_ptr()).mini_object.flags |= gst::ffi::GST_MEMORY_FLAG_READONLY;
    }
    tie(&memory, received);
    Some(memory)
}

/// A copy of raw sound that the producer plays backward, with the samples in reverse order. The frames come in reverse, and the samples
/// of each in the order of the recording: sinks reverse them, by a segment with a negative rate. The times of this source go forward,
/// so it reverses the samples. `None`: the samples cannot be read.
fn reversed(buffer: &gst::BufferRef, info: &AudioInfo) -> Option<gst::Buffer> {
    let bytes = buffer.map_readable().ok()?.as_slice().to_vec();
    let mut copy = gst::Buffer::from_mut_slice(bytes);
    let copied =
        gst::BufferCopyFlags::FLAGS | gst::BufferCopyFlags::TIMESTAMPS | gst::BufferCopyFlags::META;
    let own = copy.get_mut()?;
    buffer.copy_into(own, copied, ..).ok()?;
    let unit = match info.layout() {
        // GStreamer prints a critical message about such a buffer.
        AudioLayout::NonInterleaved if own.meta::<AudioMeta>().is_none() => return None,
        AudioLayout::NonInterleaved => info.width() / 8,
        _ => info.bpf(),
    };
    let mut samples = AudioBufferRef::from_buffer_ref_writable(own, info).ok()?;
    for plane in 0..samples.n_planes() {
        let plane = samples.plane_data_mut(plane).ok()?;
        plane.reverse();
        plane
            .chunks_exact_mut(unit.max(1) as usize)
            .for_each(<[u8]>::reverse);
    }
    drop(samples);
    Some(copy)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reversed_bytes(layout: &str, bytes: &[u8]) -> Option<Vec<u8>> {
        gst::init().unwrap();
        let caps = format!(
            "audio/x-raw,format=S16LE,rate=8000,channels=2,channel-mask=(bitmask)3,layout={layout}"
        );
        let caps: gst::Caps = caps.parse().unwrap();
        let info = AudioInfo::from_caps(&caps).unwrap();
        let buffer = reversed(&gst::Buffer::from_slice(bytes.to_vec()), &info)?;
        Some(buffer.map_readable().unwrap().to_vec())
    }

    /// Another process made them.
    #[test]
    fn odd_buffers_are_no_problem() {
        let reversed = |bytes| reversed_bytes("interleaved", bytes).unwrap();
        assert_eq!(
            reversed(&[0, 1, 2, 3, 4, 5, 6, 7]),
            [4, 5, 6, 7, 0, 1, 2, 3]
        );
        assert_eq!(reversed(&[0, 1, 2, 3, 4]), [0, 1, 2, 3, 4]);
        assert_eq!(reversed(&[]), [0; 0]);
        assert_eq!(reversed_bytes("non-interleaved", &[0, 1, 2, 3]), None);
    }
}
