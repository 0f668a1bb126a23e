// SPDX-License-Identifier: MPL-2.0

//! The C structure of a memory, and the name of its type.

use std::sync::Arc;

use gst::glib;

use super::{slot::Slot, spare::Owner};

/// The type name of the memory, for `gst_memory_is_type`. A static, because its address is compared, and the compiler may copy a
/// constant.
pub(crate) static MEMORY_TYPE: &glib::GStr = glib::gstr!("XmemMemory");

/// The C structure behind [`XmemMemory`](super::XmemMemory).
#[repr(C)]
#[allow(unreachable_pub, missing_debug_implementations)] // the public traits of the wrapper name it
pub struct XmemMemory {
    pub(super) mem: gst::ffi::GstMemory,
    pub(super) slot: Arc<Slot>,
    /// The buffer that is reused together with this memory.
    pub(super) owner: Option<Owner>,
}
