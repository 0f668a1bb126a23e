// SPDX-License-Identifier: MPL-2.0

//! Raw video formats, which the core knows.

pub(crate) use xmem_core::VideoFormat as Format;

/// The format of this name, as GStreamer spells it.
pub(crate) fn find(name: &str) -> Option<&'static Format> {
    Format::find(name)
}

/// The names of all of them.
pub(crate) fn names() -> Vec<&'static str> {
    Format::all().iter().map(|format| format.name).collect()
}
