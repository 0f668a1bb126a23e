// SPDX-License-Identifier: MPL-2.0

//! Detects that the description of the previous buffer applies to the next one, so that it is not computed again.

use xmem_core::MAX_PLANES;

use crate::{
    cuda::CudaMemory,
    stream::meta::{is_about_memory, padding},
};

/// The properties of a buffer that, with its caps, decide its description. Buffers with equal keys have equal descriptions,
/// except for what [`describe`](crate::stream::frame::describe) adds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct DescriptionKey {
    size: usize,
    planes: Option<VideoMetaFields>,
}

/// The fields of a GstVideoMeta.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct VideoMetaFields {
    format: gst_video::VideoFormat,
    flags: gst_video::VideoFrameFlags,
    id: i32,
    size: (u32, u32),
    count: u32,
    offsets: [usize; MAX_PLANES],
    strides: [i32; MAX_PLANES],
    padding: [u32; 4],
    stride_align: [u32; MAX_PLANES],
}

impl DescriptionKey {
    /// Whether a buffer has this key.
    pub(crate) fn matches(&self, buffer: &gst::BufferRef) -> bool {
        let Ok(planes) = only_video_meta(buffer) else {
            return false;
        };
        let same_planes = match (&self.planes, &planes) {
            (Some(before), Some(planes)) => before.matches(planes),
            (None, None) => true,
            _ => false,
        };
        same_planes && self.size == buffer.size()
    }

    /// `None`: the description depends on other properties too, such as other metas.
    pub(crate) fn of(buffer: &gst::BufferRef) -> Option<Self> {
        let planes = match only_video_meta(buffer).ok()? {
            Some(meta) => Some(VideoMetaFields::of(&meta)?),
            None => None,
        };
        Some(Self {
            size: buffer.size(),
            planes,
        })
    }
}

/// A buffer has other metas that its description depends on.
struct OtherMetas;

/// The GstVideoMeta of a buffer, if it has one. Fails if another meta is part of its description.
fn only_video_meta(
    buffer: &gst::BufferRef,
) -> Result<Option<gst::MetaRef<'_, gst_video::VideoMeta>>, OtherMetas> {
    let mut planes = None;
    for meta in buffer.iter_meta::<gst::Meta>() {
        match meta.downcast_ref::<gst_video::VideoMeta>() {
            Some(meta) if planes.is_none() => planes = Some(meta.clone()),
            None if is_about_memory(&meta) => {}
            _ => return Err(OtherMetas),
        }
    }
    // GstCudaMemory stores its own planes.
    if planes.is_none() && CudaMemory::of_buffer(buffer).is_some() {
        return Err(OtherMetas);
    }
    Ok(planes)
}

impl VideoMetaFields {
    fn matches(&self, meta: &gst_video::VideoMeta) -> bool {
        let (offsets, strides) = (meta.offset(), meta.stride());
        let alignment = meta.alignment();
        self.format == meta.format()
            && self.flags == meta.video_frame_flags()
            && self.id == meta.id()
            && self.size == (meta.width(), meta.height())
            && self.count == meta.n_planes()
            // Both have the same length. For so few elements, comparing in place is faster than a call.
            && self.offsets.iter().zip(offsets).all(|(one, other)| one == other)
            && self.strides.iter().zip(strides).all(|(one, other)| one == other)
            && self.padding == padding(&alignment)
            && self.stride_align == *alignment.stride_align()
    }

    /// `None`: it has more planes than this can hold.
    fn of(meta: &gst_video::VideoMeta) -> Option<Self> {
        let mut key = Self {
            format: meta.format(),
            flags: meta.video_frame_flags(),
            id: meta.id(),
            size: (meta.width(), meta.height()),
            count: meta.n_planes(),
            offsets: [0; MAX_PLANES],
            strides: [0; MAX_PLANES],
            padding: [0; 4],
            stride_align: [0; MAX_PLANES],
        };
        let (offsets, strides) = (meta.offset(), meta.stride());
        key.offsets
            .get_mut(..offsets.len())?
            .copy_from_slice(offsets);
        key.strides
            .get_mut(..strides.len())?
            .copy_from_slice(strides);
        let alignment = meta.alignment();
        key.padding = padding(&alignment);
        key.stride_align = *alignment.stride_align();
        Some(key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stream::frame::{self, Format};
    use crate::stream::meta::{self, Losses};

    fn buffer(change: impl FnOnce(&mut gst::BufferRef)) -> gst::Buffer {
        let mut buffer = gst::Buffer::with_size(64 * 64 * 2).unwrap();
        let own = buffer.make_mut();
        let (flags, format) = (
            gst_video::VideoFrameFlags::empty(),
            gst_video::VideoFormat::I420,
        );
        gst_video::VideoMeta::add(own, flags, format, 64, 64).unwrap();
        change(own);
        buffer
    }

    fn align(buffer: &mut gst::BufferRef, right: u32) {
        let alignment = gst_video::VideoAlignment::new(0, 0, 0, right, &[0; 4]);
        let mut meta = buffer.meta_mut::<gst_video::VideoMeta>().unwrap();
        meta.set_alignment(&alignment).unwrap();
    }

    #[test]
    fn equal_keys_have_equal_descriptions() {
        gst::init().unwrap();
        let caps = "video/x-raw,format=I420,width=64,height=64,framerate=30/1";
        let format = Format::from_caps(&caps.parse::<gst::Caps>().unwrap());
        let losses = Losses::default();
        let describe = |buffer: &gst::BufferRef| {
            let layout = format.layout(buffer, "test".into());
            frame::describe(buffer, layout.into(), &meta::of_buffer(buffer, &losses))
        };
        let time = gst::ClockTime::SECOND;
        // The first three have equal keys.
        let buffers = [
            buffer(|_| ()),
            buffer(|buffer| {
                buffer.set_pts(time);
                buffer.set_dts(time);
                buffer.set_duration(time);
                buffer.set_offset(1);
                buffer.set_offset_end(2);
                buffer.set_flags(gst::BufferFlags::DELTA_UNIT);
            }),
            buffer(|buffer| {
                let other = gst::Buffer::new();
                gst::ParentBufferMeta::add(buffer, &other);
            }),
            buffer(|buffer| buffer.set_size(64 * 64 * 2 - 1)),
            buffer(|buffer| {
                gst_video::VideoCropMeta::add(buffer, (1, 2, 3, 4));
            }),
            buffer(|buffer| align(buffer, 0)),
            buffer(|buffer| {
                let meta = buffer.meta_mut::<gst_video::VideoMeta>().unwrap();
                meta.remove().unwrap();
            }),
            buffer(|buffer| {
                let meta = buffer.meta_mut::<gst_video::VideoMeta>().unwrap();
                meta.remove().unwrap();
                gst_video::VideoMeta::add_full(
                    buffer,
                    gst_video::VideoFrameFlags::INTERLACED,
                    gst_video::VideoFormat::I420,
                    64,
                    64,
                    &[0, 64 * 64, 64 * 64 + 64 * 32],
                    &[64, 64, 64],
                )
                .unwrap();
            }),
        ];
        let mut equal = 0;
        for one in &buffers {
            for other in &buffers {
                let key = DescriptionKey::of(one);
                let matches = key.is_some_and(|key| key.matches(other));
                assert_eq!(matches, key.is_some() && key == DescriptionKey::of(other));
                if matches {
                    let one = describe(one);
                    let reused = frame::describe(other, one.layout, &one.attachments);
                    assert_eq!(format!("{reused:?}"), format!("{:?}", describe(other)));
                    equal += 1;
                }
            }
        }
        assert!(equal < buffers.len() * buffers.len() / 2);
        assert_eq!(
            DescriptionKey::of(&buffers[0]),
            DescriptionKey::of(&buffers[1])
        );
        assert_eq!(
            DescriptionKey::of(&buffers[0]),
            DescriptionKey::of(&buffers[2])
        );
        assert_ne!(
            DescriptionKey::of(&buffers[0]),
            DescriptionKey::of(&buffers[3])
        );
        assert_eq!(DescriptionKey::of(&buffers[4]), None);
        assert_ne!(
            DescriptionKey::of(&buffers[0]),
            DescriptionKey::of(&buffers[6])
        );
        assert_ne!(
            DescriptionKey::of(&buffers[0]),
            DescriptionKey::of(&buffers[7])
        );
    }
}
