// SPDX-License-Identifier: MPL-2.0

//! The pools of this host as devices, for `gst-device-monitor-1.0` and other programs with a choice of sources.

mod device;
mod imp;
mod pools;

use std::sync::LazyLock;

use gst::{glib, prelude::*};

use crate::debug_category;

static CAT: LazyLock<gst::DebugCategory> =
    LazyLock::new(|| debug_category("xmemdeviceprovider", "Lists pools"));

glib::wrapper! {
    /// Lists the pools of the runtime directory.
    pub struct XmemDeviceProvider(ObjectSubclass<imp::XmemDeviceProvider>)
        @extends gst::DeviceProvider, gst::Object;
}

glib::wrapper! {
    /// A pool.
    pub struct XmemDevice(ObjectSubclass<device::XmemDevice>) @extends gst::Device, gst::Object;
}

pub(crate) fn register(plugin: &gst::Plugin) -> Result<(), glib::BoolError> {
    gst::DeviceProvider::register(
        Some(plugin),
        "xmemdeviceprovider",
        // Below cameras and microphones, because some programs use the first device.
        gst::Rank::MARGINAL,
        XmemDeviceProvider::static_type(),
    )
}
