// SPDX-License-Identifier: MPL-2.0

//! Events of a stream in the form in which processes exchange them. xmemsink packs them, xmemsrc unpacks them.

pub(crate) mod downstream;
pub(crate) mod key_frame;
pub(crate) mod sticky;
pub(crate) mod text;
