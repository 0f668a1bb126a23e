// SPDX-License-Identifier: MPL-2.0

//! `xmemsrc` outputs the frames of a pool as buffers.

mod base;
mod buffer;
mod connection;
#[cfg(feature = "cuda")]
mod device;
mod downstream;
mod imp;
mod latency;
mod receive;
mod run;
mod settings;
mod shift;
mod stream;
mod times;
mod window;

use gst::{glib, prelude::*};

pub use settings::{
    XmemSrcCudaWait, XmemSrcOnEos, XmemSrcOnProducerLost, XmemSrcOverBudget, XmemSrcStartFrom,
    XmemSrcTimestampMode,
};

glib::wrapper! {
    /// The element `xmemsrc`.
    pub struct XmemSrc(ObjectSubclass<imp::XmemSrc>)
        @extends gst_base::BaseSrc, gst::Element, gst::Object,
        @implements gst::URIHandler;
}

pub(crate) fn register(plugin: &gst::Plugin) -> Result<(), glib::BoolError> {
    settings::PROPERTIES.mark_enums();
    gst::Element::register(
        Some(plugin),
        "xmemsrc",
        gst::Rank::NONE,
        XmemSrc::static_type(),
    )
}

/// Replaces `device` in builds without CUDA. Frames on a device cannot be received.
#[cfg(not(feature = "cuda"))]
mod device {
    use xmem_core::ReadLease;

    use super::{
        buffer::Outcome,
        run::{SourceContext, Started},
        times::BufferTimes,
    };

    /// Posts an error.
    pub(super) fn receive(
        source: SourceContext<'_>,
        _started: &mut Started,
        _lease: &ReadLease,
        _times: BufferTimes,
        _over_budget: bool,
    ) -> Result<Outcome, gst::FlowError> {
        gst::element_error!(
            source.element,
            gst::StreamError::Format,
            ("The pool's frames are on a CUDA device, but this plugin was built without CUDA: download the frames in the producer")
        );
        Err(gst::FlowError::Error)
    }
}
