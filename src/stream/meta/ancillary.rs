// SPDX-License-Identifier: MPL-2.0

//! Data that accompany video: captions, active format, bars, data of encoders, transparency.

// The bindings do not export two of these metas.
#![allow(unsafe_code)]

use gst::{MetaRef, glib::translate::*};
use gst_video::{
    VideoAFDMeta, VideoAFDSpec, VideoAFDValue, VideoBarMeta, VideoCaptionMeta, VideoCaptionType,
    ffi,
};
use minicbor::{Decode, Encode};

use super::kind::{Kind, Why, meta};
use crate::stream::frame::Format;

/// Closed captions.
#[derive(Debug, Encode, Decode)]
pub(super) struct Caption<'a> {
    /// A number of GstVideoCaptionType.
    #[n(0)]
    kind: u8,
    #[cbor(b(1), with = "minicbor::bytes")]
    data: &'a [u8],
}

const CAPTION_TYPES: [VideoCaptionType; 4] = [
    VideoCaptionType::Cea608Raw,
    VideoCaptionType::Cea608S3341a,
    VideoCaptionType::Cea708Raw,
    VideoCaptionType::Cea708Cdp,
];

impl Kind for Caption<'static> {
    const KEY: &'static str = "meta:GstVideoCaptionMeta/1";
    type Meta = VideoCaptionMeta;
    type Record<'a> = Caption<'a>;

    fn describe<'a>(meta: &'a MetaRef<'_, Self::Meta>) -> Result<Option<Caption<'a>>, Why> {
        Ok(Some(Caption {
            kind: number(&CAPTION_TYPES, 1, meta.caption_type())?,
            data: meta.data(),
        }))
    }

    fn add(record: Caption<'_>, buffer: &mut gst::BufferRef, _: &Format) -> Result<(), Why> {
        let kind = numbered(&CAPTION_TYPES, 1, record.kind)?;
        VideoCaptionMeta::add(buffer, kind, filled(record.data)?);
        Ok(())
    }
}

/// The active area of the picture.
#[derive(Debug, Encode, Decode)]
pub(super) struct Afd {
    #[n(0)]
    field: u8,
    /// A number of GstVideoAFDSpec.
    #[n(1)]
    spec: u8,
    /// The code of the standard.
    #[n(2)]
    afd: u8,
}

const AFD_SPECS: [VideoAFDSpec; 3] = [
    VideoAFDSpec::DvbEtsi,
    VideoAFDSpec::AtscA53,
    VideoAFDSpec::SmpteSt20161,
];

const AFD_VALUES: [(u8, VideoAFDValue); 11] = [
    (0, VideoAFDValue::Unavailable),
    (2, VideoAFDValue::_169TopAligned),
    (3, VideoAFDValue::_149TopAligned),
    (4, VideoAFDValue::GreaterThan169),
    (8, VideoAFDValue::_43Full169Full),
    (9, VideoAFDValue::_43Full43Pillar),
    (10, VideoAFDValue::_169Letter169Full),
    (11, VideoAFDValue::_149Letter149Pillar),
    (13, VideoAFDValue::_43Full149Center),
    (14, VideoAFDValue::_169Letter149Center),
    (15, VideoAFDValue::_169Letter43Center),
];

impl Kind for Afd {
    const KEY: &'static str = "meta:GstVideoAFDMeta/1";
    type Meta = VideoAFDMeta;
    type Record<'a> = Self;

    fn describe(meta: &MetaRef<'_, Self::Meta>) -> Result<Option<Self>, Why> {
        let afd = AFD_VALUES.iter().find(|(_, value)| *value == meta.afd());
        let (afd, _) = *afd.ok_or(UNKNOWN)?;
        Ok(Some(Self {
            field: meta.field(),
            spec: number(&AFD_SPECS, 0, meta.spec())?,
            afd,
        }))
    }

    fn add(record: Self, buffer: &mut gst::BufferRef, _: &Format) -> Result<(), Why> {
        let spec = numbered(&AFD_SPECS, 0, record.spec)?;
        let afd = AFD_VALUES.iter().find(|(code, _)| *code == record.afd);
        let (_, afd) = *afd.ok_or(UNKNOWN)?;
        // DVB has no code for this value.
        if spec == VideoAFDSpec::DvbEtsi && afd == VideoAFDValue::Unavailable {
            return Err(UNKNOWN.into());
        }
        check_field(record.field)?;
        VideoAFDMeta::add(buffer, record.field, spec, afd);
        Ok(())
    }
}

/// The positions of black bars.
#[derive(Debug, Encode, Decode)]
pub(super) struct Bar {
    #[n(0)]
    field: u8,
    #[n(1)]
    letterbox: bool,
    #[n(2)]
    first: u32,
    #[n(3)]
    second: u32,
}

impl Kind for Bar {
    const KEY: &'static str = "meta:GstVideoBarMeta/1";
    type Meta = VideoBarMeta;
    type Record<'a> = Self;

    fn describe(meta: &MetaRef<'_, Self::Meta>) -> Result<Option<Self>, Why> {
        Ok(Some(Self {
            field: meta.field(),
            letterbox: meta.is_letterbox(),
            first: meta.bar_data1(),
            second: meta.bar_data2(),
        }))
    }

    fn add(record: Self, buffer: &mut gst::BufferRef, _: &Format) -> Result<(), Why> {
        check_field(record.field)?;
        VideoBarMeta::add(
            buffer,
            record.field,
            record.letterbox,
            record.first,
            record.second,
        );
        Ok(())
    }
}

meta!(
    SeiMeta,
    ffi::GstVideoSEIUserDataUnregisteredMeta,
    ffi::gst_video_sei_user_data_unregistered_meta_api_get_type
);

/// Data that an encoder added to the frame (SEI user data).
#[derive(Debug, Encode, Decode)]
pub(super) struct Sei<'a> {
    #[cbor(n(0), with = "minicbor::bytes")]
    uuid: [u8; 16],
    #[cbor(b(1), with = "minicbor::bytes")]
    data: &'a [u8],
}

impl Kind for Sei<'static> {
    const KEY: &'static str = "meta:GstVideoSEIUserDataUnregisteredMeta/1";
    type Meta = SeiMeta;
    type Record<'a> = Sei<'a>;

    fn describe<'a>(meta: &'a MetaRef<'_, Self::Meta>) -> Result<Option<Sei<'a>>, Why> {
        let SeiMeta(ffi::GstVideoSEIUserDataUnregisteredMeta {
            uuid, data, size, ..
        }) = &**meta;
        if data.is_null() || *size == 0 {
            return Err("it is empty".into());
        }
        // SAFETY: the meta owns these bytes, and states their number.
        let data = unsafe { std::slice::from_raw_parts(*data, *size) };
        Ok(Some(Sei { uuid: *uuid, data }))
    }

    fn add(record: Sei<'_>, buffer: &mut gst::BufferRef, _: &Format) -> Result<(), Why> {
        let (mut uuid, data) = (record.uuid, filled(record.data)?);
        // SAFETY: the buffer is borrowed for writing. The bytes are only read and copied.
        unsafe {
            ffi::gst_buffer_add_video_sei_user_data_unregistered_meta(
                buffer.as_mut_ptr(),
                &mut uuid,
                data.as_ptr().cast_mut(),
                data.len(),
            );
        }
        Ok(())
    }
}

meta!(
    AlphaMeta,
    ffi::GstVideoCodecAlphaMeta,
    ffi::gst_video_codec_alpha_meta_api_get_type
);

/// A second encoded frame that holds the transparency of the frame.
#[derive(Debug, Encode, Decode)]
pub(super) struct Alpha {
    #[cbor(n(0), with = "minicbor::bytes")]
    data: Vec<u8>,
}

impl Kind for Alpha {
    const KEY: &'static str = "meta:GstVideoCodecAlphaMeta/1";
    type Meta = AlphaMeta;
    type Record<'a> = Self;

    fn describe(meta: &MetaRef<'_, Self::Meta>) -> Result<Option<Self>, Why> {
        if meta.0.buffer.is_null() {
            return Err("it is empty".into());
        }
        // SAFETY: the meta holds a reference to the buffer.
        let alpha = unsafe { gst::BufferRef::from_ptr(meta.0.buffer) };
        let data = alpha.map_readable();
        let data = data.map_err(|_| Why::from("its bytes cannot be read"))?;
        Ok(Some(Self {
            data: data.to_vec(),
        }))
    }

    fn add(record: Self, buffer: &mut gst::BufferRef, _: &Format) -> Result<(), Why> {
        let mut alpha = gst::Buffer::from_mut_slice(record.data);
        // It is decoded at the frame's time.
        let flags = gst::BufferCopyFlags::FLAGS | gst::BufferCopyFlags::TIMESTAMPS;
        buffer
            .copy_into(alpha.make_mut(), flags, ..)
            .map_err(|error| Why::from(error.message))?;
        // SAFETY: the buffer is borrowed for writing. The meta takes over the reference.
        unsafe {
            ffi::gst_buffer_add_video_codec_alpha_meta(buffer.as_mut_ptr(), alpha.into_glib_ptr());
        }
        Ok(())
    }
}

/// GStreamer refuses other numbers, and the bindings panic then.
fn check_field(field: u8) -> Result<(), Why> {
    if field > 1 {
        return Err("there is no such field".into());
    }
    Ok(())
}

const UNKNOWN: &str = "it is of no known kind";

/// The number of a value in a list, counted from `first`.
fn number<T: PartialEq>(known: &[T], first: u8, value: T) -> Result<u8, Why> {
    known
        .iter()
        .zip(first..)
        .find(|(known, _)| **known == value)
        .map(|(_, number)| number)
        .ok_or_else(|| UNKNOWN.into())
}

fn numbered<T: Copy>(known: &[T], first: u8, number: u8) -> Result<T, Why> {
    let index = number.checked_sub(first).map(usize::from);
    index
        .and_then(|index| known.get(index))
        .copied()
        .ok_or_else(|| UNKNOWN.into())
}

/// The bindings do not accept empty data.
fn filled(data: &[u8]) -> Result<&[u8], Why> {
    if data.is_empty() {
        return Err("it is empty".into());
    }
    Ok(data)
}
