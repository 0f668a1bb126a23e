// SPDX-License-Identifier: MPL-2.0

//! What is around an element.

use gst::prelude::*;

/// The outermost bin. `None`: the element is in no bin.
pub(crate) fn of(element: &gst::Element) -> Option<gst::Bin> {
    let bins = std::iter::successors(element.parent(), gst::Object::parent);
    bins.filter_map(|parent| parent.downcast().ok()).last()
}

/// Each xmemsrc in the pipeline of this element.
pub(crate) fn sources(element: &gst::Element) -> Vec<gst::Element> {
    let pipeline = of(element).into_iter();
    let all = pipeline.flat_map(|it| it.iterate_all_by_element_factory_name("xmemsrc"));
    all.filter_map(Result::ok).collect()
}
