// SPDX-License-Identifier: MPL-2.0

//! The pipeline around a source: its address, and its other sources.

use gst::prelude::*;
use gst_base::prelude::*;

/// The other sources of this kind in the pipeline.
pub(super) fn others(src: &gst_base::BaseSrc) -> Vec<gst::Element> {
    let Some(pipeline) = outermost_bin(src) else {
        return Vec::new();
    };
    pipeline
        .iterate_all_by_element_factory_name("xmemsrc")
        .into_iter()
        .filter_map(Result::ok)
        .filter(|element| *element != *src)
        .collect()
}

/// Whether the pipeline has a live source of another kind, such as a microphone.
pub(super) fn has_other_live_source(src: &gst_base::BaseSrc) -> bool {
    let Some(pipeline) = outermost_bin(src) else {
        return false;
    };
    let elements = pipeline.iterate_recurse().into_iter();
    let mut sources = elements
        .filter_map(Result::ok)
        .filter_map(|element| element.downcast::<gst_base::BaseSrc>().ok());
    sources.any(|other| other.type_() != src.type_() && other.is_live())
}

/// The address of the pipeline, as a name for it while the source is in it.
pub(super) fn address(src: &gst_base::BaseSrc) -> usize {
    match outermost_bin(src) {
        Some(pipeline) => pipeline.as_ptr() as usize,
        None => src.as_ptr() as usize,
    }
}

/// `None`: the source is in no bin.
fn outermost_bin(src: &gst_base::BaseSrc) -> Option<gst::Bin> {
    let bins = std::iter::successors(src.parent(), gst::Object::parent);
    bins.filter_map(|parent| parent.downcast().ok()).last()
}
