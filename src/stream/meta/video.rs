// SPDX-License-Identifier: MPL-2.0

//! Metadata of a video frame besides its planes.

// The bindings cannot set some fields of a GstVideoMeta, and mistake a region without a type for one with a wrong type.
#![allow(unsafe_code)]

use gst::{MetaRef, glib::translate::IntoGlib};
use gst_video::{VideoAlignment, VideoFrameFlags, VideoRegionOfInterestMeta};
use minicbor::{Decode, Encode};

use super::kind::{Kind, Why};
use crate::stream::{frame::Format, text, untrusted};

/// The fields of a GstVideoMeta except the planes, which are in the frame's fixed metadata.
#[derive(Debug, Default, PartialEq, Encode, Decode)]
pub(super) struct Video {
    #[n(0)]
    flags: u32,
    #[n(1)]
    id: i32,
    /// Padding in pixels: top, bottom, left, right.
    #[n(2)]
    padding: [u32; 4],
    /// Stride alignments of the planes, as masks.
    #[n(3)]
    stride_align: [u32; 4],
}

/// Top, bottom, left, right.
pub(crate) fn padding(alignment: &VideoAlignment) -> [u32; 4] {
    [
        alignment.padding_top(),
        alignment.padding_bottom(),
        alignment.padding_left(),
        alignment.padding_right(),
    ]
}

impl Kind for Video {
    const KEY: &'static str = "meta:GstVideoMeta/1";
    type Meta = gst_video::VideoMeta;
    type Record<'a> = Self;

    fn describe(meta: &MetaRef<'_, Self::Meta>) -> Result<Option<Self>, Why> {
        let alignment = meta.alignment();
        let record = Self {
            flags: meta.video_frame_flags().bits(),
            id: meta.id(),
            padding: padding(&alignment),
            stride_align: *alignment.stride_align(),
        };
        Ok((record != Self::default()).then_some(record))
    }

    fn add(record: Self, buffer: &mut gst::BufferRef, _: &Format) -> Result<(), Why> {
        const LIMIT: u32 = 1 << 16;
        let Some(mut meta) = buffer.meta_mut::<gst_video::VideoMeta>() else {
            return Err("the frame has no planes".into());
        };
        let raw = meta.as_mut_ptr();
        // SAFETY: the meta is borrowed for writing, and both fields are numbers.
        unsafe {
            (*raw).flags = VideoFrameFlags::from_bits_truncate(record.flags).into_glib();
            (*raw).id = record.id;
        }
        // GStreamer computes with these values, and with an invalid mask a loop never ends.
        if record.padding.iter().any(|padding| *padding > LIMIT)
            || record
                .stride_align
                .iter()
                .any(|mask| *mask >= LIMIT || !(mask + 1).is_power_of_two())
        {
            return Err("its alignment cannot be".into());
        }
        let [top, bottom, left, right] = record.padding;
        let alignment = VideoAlignment::new(top, bottom, left, right, &record.stride_align);
        meta.set_alignment(&alignment)
            .map_err(|_| "its alignment is not that of its planes".into())
    }
}

/// The visible part of a frame.
#[derive(Debug, Encode, Decode)]
pub(super) struct Crop {
    #[n(0)]
    x: u32,
    #[n(1)]
    y: u32,
    #[n(2)]
    width: u32,
    #[n(3)]
    height: u32,
}

impl Kind for Crop {
    const KEY: &'static str = "meta:GstVideoCropMeta/1";
    type Meta = gst_video::VideoCropMeta;
    type Record<'a> = Self;

    fn describe(meta: &MetaRef<'_, Self::Meta>) -> Result<Option<Self>, Why> {
        let (x, y, width, height) = meta.rect();
        Ok(Some(Self {
            x,
            y,
            width,
            height,
        }))
    }

    fn add(record: Self, buffer: &mut gst::BufferRef, format: &Format) -> Result<(), Why> {
        // Cropping elements add these offsets to the addresses of the planes.
        let frame = buffer
            .meta::<gst_video::VideoMeta>()
            .map(|meta| (meta.width(), meta.height()))
            .or_else(|| format.video_size());
        let inside = |start: u32, len: u32, all: u32| {
            len > 0 && start.checked_add(len).is_some_and(|end| end <= all)
        };
        let Some((all_width, all_height)) = frame else {
            return Err("the frame has no size".into());
        };
        if !inside(record.x, record.width, all_width)
            || !inside(record.y, record.height, all_height)
        {
            return Err("it lies outside the frame".into());
        }
        gst_video::VideoCropMeta::add(buffer, (record.x, record.y, record.width, record.height));
        Ok(())
    }
}

/// A transformation of the frame.
#[derive(Debug, Encode, Decode)]
pub(super) struct Affine {
    #[n(0)]
    rows: [[f32; 4]; 4],
}

impl Kind for Affine {
    const KEY: &'static str = "meta:GstVideoAffineTransformationMeta/1";
    type Meta = gst_video::VideoAffineTransformationMeta;
    type Record<'a> = Self;

    fn describe(meta: &MetaRef<'_, Self::Meta>) -> Result<Option<Self>, Why> {
        Ok(Some(Self {
            rows: *meta.matrix(),
        }))
    }

    fn add(record: Self, buffer: &mut gst::BufferRef, _: &Format) -> Result<(), Why> {
        gst_video::VideoAffineTransformationMeta::add(buffer, Some(&record.rows));
        Ok(())
    }
}

/// A region of interest, with its parameters.
#[derive(Debug, Encode, Decode)]
pub(super) struct Region<'a> {
    /// The kind of object, such as `face`. Empty: none.
    #[b(0)]
    kind: &'a str,
    #[n(1)]
    id: i32,
    #[n(2)]
    parent_id: i32,
    #[n(3)]
    x: u32,
    #[n(4)]
    y: u32,
    #[n(5)]
    width: u32,
    #[n(6)]
    height: u32,
    /// GstStructures as text.
    #[n(7)]
    params: Vec<String>,
    /// Fields of the parameters that cannot be written as text.
    #[cbor(skip)]
    lost: Vec<String>,
}

impl Kind for Region<'static> {
    const KEY: &'static str = "meta:GstVideoRegionOfInterestMeta/1";
    type Meta = VideoRegionOfInterestMeta;
    type Record<'a> = Region<'a>;

    fn describe<'a>(meta: &'a MetaRef<'_, Self::Meta>) -> Result<Option<Region<'a>>, Why> {
        // SAFETY: reads a number of a live meta of this kind.
        let has_type = unsafe { (*meta.as_ptr()).roi_type } != 0;
        let (x, y, width, height) = meta.rect();
        let (mut params, mut lost) = (Vec::new(), Vec::new());
        for param in meta.params() {
            let (text, fields) = text::of_structure(param);
            params.push(text);
            lost.extend(fields);
        }
        Ok(Some(Region {
            kind: if has_type { meta.roi_type() } else { "" },
            id: meta.id(),
            parent_id: meta.parent_id(),
            x,
            y,
            width,
            height,
            params,
            lost,
        }))
    }

    fn lost<'a>(record: &'a Region<'_>) -> &'a [String] {
        &record.lost
    }

    fn add(record: Region<'_>, buffer: &mut gst::BufferRef, _: &Format) -> Result<(), Why> {
        if !record.kind.is_empty() && untrusted::to_quark(record.kind).is_none() {
            return Err("its type cannot be".into());
        }
        let params = record.params.iter().map(|param| text::to_structure(param));
        let Some(params) = params.collect::<Option<Vec<_>>>() else {
            return Err("a parameter is invalid".into());
        };
        let rectangle = (record.x, record.y, record.width, record.height);
        let mut meta = VideoRegionOfInterestMeta::add(buffer, record.kind, rectangle);
        meta.set_id(record.id);
        meta.set_parent_id(record.parent_id);
        params.into_iter().for_each(|param| meta.add_param(param));
        Ok(())
    }
}
