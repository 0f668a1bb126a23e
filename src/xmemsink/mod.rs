// SPDX-License-Identifier: MPL-2.0

//! `xmemsink` publishes buffers in a pool.

mod base;
mod consumers;
#[cfg_attr(not(feature = "cuda"), path = "no_device.rs")]
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
