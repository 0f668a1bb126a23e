// SPDX-License-Identifier: MPL-2.0

//! A second encoded frame that holds the transparency of the frame.

// The bindings do not export this meta.
#![allow(unsafe_code)]

use gst::{MetaRef, glib::translate::*};
use gst_video::ffi;
use minicbor::{Decode, Encode};

use super::kind::{Kind, Why, meta};
use crate::stream::frame::Format;

meta!(
    AlphaMeta,
    ffi::GstVideoCodecAlphaMeta,
    ffi::gst_video_codec_alpha_meta_api_get_type
);

pub(super) enum Alpha {}

#[derive(Debug, Encode, Decode)]
pub(super) struct AlphaRecord {
    #[cbor(n(0), with = "minicbor::bytes")]
    data: Vec<u8>,
}

impl Kind for Alpha {
    const KEY: &'static str = "meta:GstVideoCodecAlphaMeta/1";
    type Meta = AlphaMeta;
    type Record<'a> = AlphaRecord;

    fn describe(meta: &MetaRef<'_, Self::Meta>) -> Result<Option<AlphaRecord>, Why> {
        if meta.0.buffer.is_null() {
            return Err("it is empty".into());
        }
        // SAFETY: the meta holds a reference to the buffer.
        let alpha = unsafe { gst::BufferRef::from_ptr(meta.0.buffer) };
        let data = alpha.map_readable();
        let data = data.map_err(|_| Why::from("its bytes cannot be read"))?;
        Ok(Some(AlphaRecord {
            data: data.to_vec(),
        }))
    }

    fn add(record: AlphaRecord, buffer: &mut gst::BufferRef, _: &Format) -> Result<(), Why> {
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
