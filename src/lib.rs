// SPDX-License-Identifier: MPL-2.0

#![allow(unused_doc_comments)]
// Data from another process must not cause a panic.
#![cfg_attr(
    not(test),
    deny(clippy::indexing_slicing, clippy::unwrap_used, clippy::expect_used)
)]
// Some functions are used only for device memory.
#![cfg_attr(not(feature = "cuda"), allow(dead_code))]

//! GStreamer elements that share frames between processes without a copy.
//!
//! `xmemsink` publishes the buffers of a pipeline in a named pool. `xmemsrc` in another process outputs them without a copy.
//! The crate `xmem-core` implements pools. The elements decide which frames are published and when.
//!
//! A program that links the plugin instead of letting GStreamer load it calls [`plugin_register_static`].

/**
 * plugin-xmem:
 *
 * Since: plugin-xmem-0.1
 */
mod buffers;
mod bytes;
mod core_log;
#[cfg_attr(not(feature = "cuda"), path = "cuda/none.rs")]
mod cuda;
mod deviceprovider;
mod later;
mod library;
mod pipeline;
mod properties;
mod stream;
mod unwind;
mod uri;
mod xmemsink;
mod xmemsrc;

pub use buffers::allocator::XmemAllocator;
pub use buffers::bufferpool::XmemBufferPool;
pub use buffers::memory::{XmemMemory, XmemMemoryRef};
pub use deviceprovider::{XmemDevice, XmemDeviceProvider};
pub use stream::received::FrameInfo;
pub use xmemsink::{
    XmemSink, XmemSinkBacking, XmemSinkCopy, XmemSinkCudaIpcMode, XmemSinkDelivery, XmemSinkDmabuf,
    XmemSinkPace,
};
pub use xmemsrc::{
    XmemSrc, XmemSrcCudaWait, XmemSrcOnEos, XmemSrcOnProducerLost, XmemSrcOverBudget,
    XmemSrcStartFrom, XmemSrcTimestampMode,
};

use std::sync::{Mutex, MutexGuard, PoisonError};

use gst::glib;

/// Locks a mutex, also if a thread panicked while it held the lock: what it guards is always valid.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The debug category of a part of the plugin.
fn debug_category(name: &str, description: &str) -> gst::DebugCategory {
    gst::DebugCategory::new(name, gst::DebugColorFlags::empty(), Some(description))
}

/// The template of an element's only pad, for any caps.
fn pad_template(name: &str, direction: gst::PadDirection) -> Vec<gst::PadTemplate> {
    let caps = gst::Caps::new_any();
    let template = gst::PadTemplate::new(name, direction, gst::PadPresence::Always, &caps);
    template.into_iter().collect()
}

fn plugin_init(plugin: &gst::Plugin) -> Result<(), glib::BoolError> {
    core_log::init(plugin);
    stream::caps::register_types();
    xmemsink::register(plugin)?;
    xmemsrc::register(plugin)?;
    deviceprovider::register(plugin)
}

gst::plugin_define!(
    xmem,
    env!("CARGO_PKG_DESCRIPTION"),
    plugin_init,
    concat!(env!("CARGO_PKG_VERSION"), "-", env!("COMMIT_ID")),
    "MPL-2.0",
    env!("CARGO_PKG_NAME"),
    env!("CARGO_PKG_NAME"),
    // GStreamer requires an origin, and the crate has no URL yet.
    env!("CARGO_PKG_NAME"),
    env!("BUILD_REL_DATE")
);
