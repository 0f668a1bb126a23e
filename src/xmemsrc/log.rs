// SPDX-License-Identifier: MPL-2.0

//! The debug category of xmemsrc.

use std::sync::LazyLock;

pub(super) static CAT: LazyLock<gst::DebugCategory> = LazyLock::new(|| {
    gst::DebugCategory::new(
        "xmemsrc",
        gst::DebugColorFlags::empty(),
        Some("Takes buffers out of a shared pool"),
    )
});
