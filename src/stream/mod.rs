// SPDX-License-Identifier: MPL-2.0

//! Streams, frames and events in the form in which processes exchange them.

pub(crate) mod caps;
pub(crate) mod description_key;
pub(crate) mod drm;
pub(crate) mod event;
pub(crate) mod frame;
pub(crate) mod meta;
pub(crate) mod received;
pub(crate) mod start;
pub(crate) mod stats;
pub(crate) mod sticky;
pub(crate) mod text;
pub(crate) mod timeline;
pub(crate) mod timing;
mod untrusted;
