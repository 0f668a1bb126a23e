// SPDX-License-Identifier: MPL-2.0

//! The debug category of the device provider.

use std::sync::LazyLock;

pub(super) static CAT: LazyLock<gst::DebugCategory> = LazyLock::new(|| {
    gst::DebugCategory::new(
        "xmemdeviceprovider",
        gst::DebugColorFlags::empty(),
        Some("Lists pools"),
    )
});
