// SPDX-License-Identifier: MPL-2.0

//! The C structure of a memory, and the name of its type.

use gst::glib;

use super::slot::Slot;

/// The type name of the memory, for `gst_memory_is_type`. A static, because its address is compared, and the compiler may copy a
/// constant.
pub(crate) static MEMORY_TYPE: &glib::GStr = glib::gstr!("XmemMemory");

/// The C structure behind [`XmemMemory`](super::XmemMemory).
#[repr(C)]
#[allow(unreachable_pub, missing_debug_implementations)] // the public traits of the wrapper name it
pub struct XmemMemory {
    pub(super) mem: gst::ffi::GstMemory,
    /// Changes only while no other code has the memory.
    pub(super) slot: SlotOf,
    /// How often `freeze` locked the memory. Changes under the lock of the slot.
    pub(super) locks: u32,
}

/// The slot of a memory.
pub(super) enum SlotOf {
    Own(Slot),
    /// That of another memory, which has it as `Own`.
    Other(gst::Memory),
}
