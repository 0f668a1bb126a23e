// SPDX-License-Identifier: MPL-2.0

//! `xmemsrc` outputs the frames of a pool as buffers.

mod class;
mod connection;
mod delivery;
#[cfg_attr(not(feature = "cuda"), path = "no_device.rs")]
mod device;
mod enums;
mod events;
mod figures;
mod frame_buffers;
mod frames;
mod header;
mod imp;
mod key_frame_gate;
mod latency;
mod log;
mod mapping;
mod messages;
mod outcome;
mod outgoing;
mod parts;
mod pipeline;
mod settings;
mod shift;
mod source;
mod started;
mod sticky_state;
mod stream;
mod times;
mod window;

use gst::{glib, prelude::*};

pub use enums::{
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
