// SPDX-License-Identifier: MPL-2.0

//! `xmemsrc` outputs the frames of a pool as buffers.

mod base;
mod buffer;
mod connection;
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
    settings::PROPERTIES.mark_enums();
    gst::Element::register(
        Some(plugin),
        "xmemsrc",
        gst::Rank::NONE,
        XmemSrc::static_type(),
    )
}
