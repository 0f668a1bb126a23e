// SPDX-License-Identifier: MPL-2.0

//! `xmemsrc` outputs the frames of a pool as buffers.

mod base;
mod buffer;
mod connection;
mod context;
#[cfg_attr(not(feature = "cuda"), path = "no_device.rs")]
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
    for enumeration in [
        XmemSrcCudaWait::static_type(),
        XmemSrcOnEos::static_type(),
        XmemSrcOnProducerLost::static_type(),
        XmemSrcOverBudget::static_type(),
        XmemSrcStartFrom::static_type(),
        XmemSrcTimestampMode::static_type(),
    ] {
        enumeration.mark_as_plugin_api(gst::PluginAPIFlags::empty());
    }
    gst::Element::register(
        Some(plugin),
        "xmemsrc",
        gst::Rank::NONE,
        XmemSrc::static_type(),
    )
}
