// SPDX-License-Identifier: MPL-2.0

//! `xmemsink` publishes buffers in a pool.

mod base;
mod consumers;
#[cfg(feature = "cuda")]
mod device;
mod events;
mod frame;
mod imp;
mod outside;
mod run;
mod settings;
mod stream;
mod when;

use gst::{glib, prelude::*};

pub use settings::{
    XmemSinkBacking, XmemSinkCopy, XmemSinkCudaIpcMode, XmemSinkDelivery, XmemSinkDmabuf,
    XmemSinkPace,
};

glib::wrapper! {
    /// The element `xmemsink`.
    pub struct XmemSink(ObjectSubclass<imp::XmemSink>)
        @extends gst_base::BaseSink, gst::Element, gst::Object,
        @implements gst::URIHandler;
}

pub(crate) fn register(plugin: &gst::Plugin) -> Result<(), glib::BoolError> {
    settings::PROPERTIES.mark_enums();
    gst::Element::register(
        Some(plugin),
        "xmemsink",
        gst::Rank::NONE,
        XmemSink::static_type(),
    )
}

/// Replaces `device` in builds without CUDA. No buffer is in device memory.
#[cfg(not(feature = "cuda"))]
mod device {
    use xmem_core::{Canceller, FrameMeta, ProducerBuilder};

    use super::{
        run::{Failure, Outcome, Started},
        settings::Settings,
        stream::SinkStream,
    };

    pub(super) fn configure(builder: ProducerBuilder, _settings: &Settings) -> ProducerBuilder {
        builder
    }

    pub(super) fn offer(
        _sink: &gst::Element,
        _started: &Started,
        _caps: &gst::Caps,
        _query: &mut gst::query::Allocation,
    ) {
    }

    pub(super) fn publish(
        _started: &Started,
        _buffer: &gst::Buffer,
        _meta: &FrameMeta,
        _stream: &SinkStream,
        _cancel: &Canceller,
    ) -> Result<Option<Outcome>, Failure> {
        Ok(None)
    }
}
