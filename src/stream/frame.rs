// SPDX-License-Identifier: MPL-2.0

//! Converts the description of a GstBuffer to the pool's metadata and back. `memory` handles the places of the bytes, and
//! `timing` the times.

use std::sync::Arc;

use gst_video::prelude::*;
use xmem_core::{Attachments, DType, FrameFlags, FrameLayout, FrameMeta, Text, VideoLayout};

use crate::buffers::planes::{self, Planes, TOO_SMALL};
use crate::cuda::CudaMemory;
use crate::stream::caps::CUDA_MEMORY;
use crate::stream::drm::Drm;

/// GST_BUFFER_OFFSET_NONE.
const OFFSET_NONE: u64 = u64::MAX;

fn known(offset: u64) -> Option<u64> {
    (offset != OFFSET_NONE).then_some(offset)
}

/// The properties of a stream's caps that apply to all of its frames.
#[derive(Debug, Default)]
pub(crate) struct Format {
    content_type: Text<32>,
    /// For video whose caps define the layout.
    pub(crate) video: Option<gst_video::VideoInfo>,
    /// For video whose caps do not define the layout.
    drm: Option<Drm>,
    pub(crate) audio_info: Option<gst_audio::AudioInfo>,
    /// For interleaved samples.
    audio: Option<(DType, u64)>,
    pub(crate) memory: Memory,
}

/// The memory that the caps require.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Memory {
    /// Any memory.
    #[default]
    Any,
    /// DMA buffers. They cannot be replaced by a copy.
    Dmabuf,
    /// Memory on a CUDA device.
    Cuda,
}

impl Memory {
    /// Whether a buffer is in the memory that its caps require. Only DMA buffers are checked, since all other memory is
    /// accepted.
    pub(crate) fn is_of(self, buffer: &gst::BufferRef) -> bool {
        self != Self::Dmabuf
            || buffer
                .iter_memories()
                .all(|memory| memory.is_memory_type::<gst_allocators::DmaBufMemory>())
    }
}

impl Format {
    pub(crate) fn from_caps(caps: &gst::CapsRef) -> Self {
        let Some(structure) = caps.structure(0) else {
            return Self::default();
        };
        let has = |feature| {
            caps.features(0)
                .is_some_and(|features| features.contains(feature))
        };
        let memory = if has(gst_allocators::CAPS_FEATURE_MEMORY_DMABUF.as_str()) {
            Memory::Dmabuf
        } else if has(CUDA_MEMORY) {
            Memory::Cuda
        } else {
            Memory::Any
        };
        match structure.name().as_str() {
            "video/x-raw" => {
                let drm = Drm::from_caps(structure);
                // GStreamer 1.24 parses such caps as a format without planes, which no frame matches.
                let info = || gst_video::VideoInfo::from_caps(caps).ok();
                Self {
                    content_type: Text::new("image/raw"),
                    video: if drm.is_none() { info() } else { None },
                    drm,
                    memory,
                    ..Self::default()
                }
            }
            "audio/x-raw" => Self {
                content_type: Text::new("audio/raw"),
                audio_info: gst_audio::AudioInfo::from_caps(caps).ok(),
                audio: interleaved(structure),
                memory,
                ..Self::default()
            },
            name => Self {
                content_type: Text::new(name),
                memory,
                ..Self::default()
            },
        }
    }

    /// The size of video frames.
    pub(crate) fn video_size(&self) -> Option<(u32, u32)> {
        let info = self
            .video
            .as_ref()
            .map(|info| (info.width(), info.height()));
        info.or_else(|| self.drm.map(|drm| (drm.width, drm.height)))
    }

    /// Checks the layout that another process wrote for a payload of `size` bytes, which may be none. `None`: it has no planes that
    /// are used here.
    pub(crate) fn check(
        &self,
        layout: Option<&VideoLayout>,
        size: usize,
    ) -> Result<Option<Planes>, &'static str> {
        match (layout, &self.video, self.drm) {
            (Some(layout), Some(info), _) => Planes::check(layout, size, info).map(Some),
            (Some(layout), None, Some(drm)) => drm.check(layout, size),
            // A frame without bytes is a gap.
            (None, Some(info), _) if (1..info.size()).contains(&size) => Err(TOO_SMALL),
            _ => Ok(None),
        }
    }

    /// The layout of a copy of a frame. `layout` is that of the frame.
    pub(crate) fn layout_of_copy(
        &self,
        layout: &FrameLayout,
        copy: &gst_video::VideoInfo,
    ) -> FrameLayout {
        let mut layout = layout.clone();
        layout.video = layout.video.map(|_| planes::of_info(copy));
        if let Some(info) = &self.video {
            describe_pixels(&mut layout, info);
        }
        layout
    }

    /// The layout of a buffer's bytes. `program`: the program that made the buffer.
    pub(crate) fn layout(&self, buffer: &gst::BufferRef, program: Text<32>) -> FrameLayout {
        let mut layout = FrameLayout {
            content_type: self.content_type,
            producer: program,
            ..FrameLayout::default()
        };
        if self.video.is_some() || self.drm.is_some() {
            // GstCudaMemory stores its own planes.
            let of_memory = CudaMemory::of_buffer(buffer).map(CudaMemory::info);
            layout.video = planes::of_buffer(buffer, of_memory.as_ref().or(self.video.as_ref()));
        }
        if let Some(info) = &self.video {
            describe_pixels(&mut layout, info);
        }
        if let Some((dtype, channels)) = self.audio {
            describe_samples(&mut layout, buffer.size() as u64, dtype, channels);
        }
        layout
    }
}

/// Describes a buffer, except its times on CLOCK_MONOTONIC and the places of its bytes.
pub(crate) fn describe(
    buffer: &gst::BufferRef,
    layout: Arc<FrameLayout>,
    attachments: &Attachments,
) -> FrameMeta {
    // The upper flags depend on the type of the stream. Those of video include all others.
    let flags =
        (buffer.flags() - gst::BufferFlags::TAG_MEMORY).bits() | buffer.video_flags().bits();
    let mut meta = FrameMeta::with_layout(buffer.size(), layout)
        .flags(FrameFlags::from_bits(flags))
        .attachments(attachments.clone());
    meta.pts = buffer.pts().map(gst::ClockTime::nseconds);
    meta.dts = buffer.dts().map(gst::ClockTime::nseconds);
    meta.duration = buffer.duration().map(gst::ClockTime::nseconds);
    meta.buffer_offset = known(buffer.offset());
    meta.buffer_offset_end = known(buffer.offset_end());
    meta
}

/// Sets the properties of a buffer, except its times and its planes.
pub(crate) fn apply(buffer: &mut gst::BufferRef, meta: &FrameMeta) {
    buffer.set_offset(meta.buffer_offset.unwrap_or(OFFSET_NONE));
    buffer.set_offset_end(meta.buffer_offset_end.unwrap_or(OFFSET_NONE));
    let flags = meta.flags.bits();
    buffer.set_flags(gst::BufferFlags::from_bits_truncate(flags) - gst::BufferFlags::TAG_MEMORY);
    buffer.set_video_flags(gst_video::VideoBufferFlags::from_bits_truncate(flags));
}

/// A frame with one plane whose pixels are whole elements is also an array of rows, columns and channels.
fn describe_pixels(described: &mut FrameLayout, info: &gst_video::VideoInfo) {
    let Some(layout) = described.video else {
        return;
    };
    let format = info.format_info();
    if info.n_planes() != 1
        || format.is_complex()
        || !(format.is_rgb() || format.is_gray())
        || format.has_palette()
    {
        return;
    }
    let (Some(bits), Some(pixel)) = (format.depth().first(), format.pixel_stride().first()) else {
        return;
    };
    let dtype = match bits {
        8 => DType::U8,
        16 if format.is_le() => DType::U16,
        _ => return,
    };
    let (Ok(pixel), element) = (u64::try_from(*pixel), dtype.size() as u64) else {
        return;
    };
    if pixel == 0 || pixel % element != 0 || format.depth().iter().any(|depth| depth != bits) {
        return;
    }
    let [row, ..] = layout.strides;
    described.dtype = dtype;
    described.ndim = if format.is_gray() && pixel == element {
        2
    } else {
        3
    };
    described.shape[..3].copy_from_slice(&[
        u64::from(layout.height),
        u64::from(layout.width),
        pixel / element,
    ]);
    described.strides[..3].copy_from_slice(&[
        i64::from(row),
        pixel.cast_signed(),
        element.cast_signed(),
    ]);
    if described.ndim == 2 {
        described.shape[2] = 0;
        described.strides[2] = 0;
    }
}

/// Interleaved samples are an array of frames and channels.
fn describe_samples(described: &mut FrameLayout, size: u64, dtype: DType, channels: u64) {
    let element = dtype.size() as u64;
    let frame = element * channels;
    described.dtype = dtype;
    described.ndim = 2;
    described.shape[..2].copy_from_slice(&[size / frame, channels]);
    described.strides[..2].copy_from_slice(&[frame.cast_signed(), element.cast_signed()]);
}

fn interleaved(structure: &gst::StructureRef) -> Option<(DType, u64)> {
    if structure.get::<&str>("layout").ok()? != "interleaved" {
        return None;
    }
    let dtype = match structure.get::<&str>("format").ok()? {
        "S8" => DType::I8,
        "U8" => DType::U8,
        "S16LE" => DType::I16,
        "U16LE" => DType::U16,
        "S32LE" => DType::I32,
        "U32LE" => DType::U32,
        "F32LE" => DType::F32,
        "F64LE" => DType::F64,
        _ => return None,
    };
    let channels = structure.get::<i32>("channels").ok()?;
    u64::try_from(channels)
        .ok()
        .filter(|channels| *channels > 0)
        .map(|channels| (dtype, channels))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extreme_metadata_do_no_harm() {
        gst::init().unwrap();
        let mut buffer = gst::Buffer::new();
        for number in [0, 1, u64::MAX] {
            let mut meta = FrameMeta::new(0);
            meta.flags = FrameFlags::from_bits(number as u32);
            meta.buffer_offset = Some(number);
            meta.buffer_offset_end = Some(number);
            apply(buffer.make_mut(), &meta);
            assert_eq!(buffer.offset(), number);
        }
    }
}
