// SPDX-License-Identifier: MPL-2.0

//! The debug category of xmemsink.

use std::sync::LazyLock;

pub(super) static CAT: LazyLock<gst::DebugCategory> = LazyLock::new(|| {
    gst::DebugCategory::new(
        "xmemsink",
        gst::DebugColorFlags::empty(),
        Some("Puts buffers into a shared pool"),
    )
});
