// SPDX-License-Identifier: MPL-2.0

//! Regions of interest, with their parameters.

// The bindings mistake a region without a type for one with a wrong type.
#![allow(unsafe_code)]

use gst::MetaRef;
use gst_video::VideoRegionOfInterestMeta;
use minicbor::{Decode, Encode};

use super::kind::{Kind, Why};
use crate::stream::{frame::Format, names, text};

pub(super) enum Region {}

#[derive(Debug, Encode, Decode)]
pub(super) struct RegionRecord<'a> {
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

impl Kind for Region {
    const KEY: &'static str = "meta:GstVideoRegionOfInterestMeta/1";
    type Meta = VideoRegionOfInterestMeta;
    type Record<'a> = RegionRecord<'a>;

    fn describe<'a>(meta: &'a MetaRef<'_, Self::Meta>) -> Result<Option<RegionRecord<'a>>, Why> {
        // SAFETY: reads a number of a live meta of this kind.
        let has_type = unsafe { (*meta.as_ptr()).roi_type } != 0;
        let (x, y, width, height) = meta.rect();
        let (mut params, mut lost) = (Vec::new(), Vec::new());
        for param in meta.params() {
            let (text, fields) = text::of_structure(param);
            params.push(text);
            lost.extend(fields);
        }
        Ok(Some(RegionRecord {
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

    fn lost<'a>(record: &'a RegionRecord<'_>) -> &'a [String] {
        &record.lost
    }

    fn add(record: RegionRecord<'_>, buffer: &mut gst::BufferRef, _: &Format) -> Result<(), Why> {
        if !record.kind.is_empty() && names::to_quark(record.kind).is_none() {
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
