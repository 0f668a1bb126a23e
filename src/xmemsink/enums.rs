// SPDX-License-Identifier: MPL-2.0

//! The choices that properties offer.

use gst::glib;

/// How the pool treats a slow consumer.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, glib::Enum)]
#[repr(u32)]
#[enum_type(name = "GstXmemSinkDelivery")]
pub enum XmemSinkDelivery {
    /// It misses frames.
    #[default]
    #[enum_value(
        name = "Live: a slow consumer misses frames, the sink does not wait for it",
        nick = "live"
    )]
    Live,
    /// The sink waits for it.
    #[enum_value(
        name = "Lossless: every connected consumer gets every frame, the sink waits",
        nick = "lossless"
    )]
    Lossless,
}

/// Whether frames that upstream did not write into a slot may be copied into one.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, glib::Enum)]
#[repr(u32)]
#[enum_type(name = "GstXmemSinkCopy")]
pub enum XmemSinkCopy {
    /// They are copied once.
    #[default]
    #[enum_value(name = "Allow: copy foreign frames once", nick = "allow")]
    Allow,
    /// They are an error.
    #[enum_value(name = "Forbid: a foreign frame is an element error", nick = "forbid")]
    Forbid,
}

/// The kind of shared memory that the slots lie in.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, glib::Enum)]
#[repr(u32)]
#[enum_type(name = "GstXmemSinkBacking")]
pub enum XmemSinkBacking {
    /// Sealed anonymous memory.
    #[default]
    #[enum_value(
        name = "Memfd: anonymous memory that consumers can neither write nor resize",
        nick = "memfd"
    )]
    Memfd,
    /// Named segments.
    #[enum_value(
        name = "POSIX shared memory: named segments, for this user only",
        nick = "posix-shm"
    )]
    PosixShm,
}

/// When a frame is handed over.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, glib::Enum)]
#[repr(u32)]
#[enum_type(name = "GstXmemSinkPace")]
pub enum XmemSinkPace {
    /// As it comes from live input, at its time otherwise.
    #[default]
    #[enum_value(
        name = "Auto: live input at once, other input at its time",
        nick = "auto"
    )]
    Auto,
    /// At its time.
    #[enum_value(name = "Always: every frame at its time", nick = "always")]
    Always,
    /// As it comes.
    #[enum_value(name = "Never: every frame at once", nick = "never")]
    Never,
}

/// How slots on CUDA devices are shared.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, glib::Enum)]
#[repr(u32)]
#[enum_type(name = "GstXmemSinkCudaIpcMode")]
pub enum XmemSinkCudaIpcMode {
    /// By descriptor if the device can, else by handle.
    #[default]
    #[enum_value(
        name = "Auto: by descriptor if the device can, else by legacy handle",
        nick = "auto"
    )]
    Auto,
    /// By descriptor.
    #[enum_value(
        name = "VMM: by descriptor, memory that lives for as long as anybody uses it",
        nick = "vmm"
    )]
    Vmm,
    /// By legacy handle.
    #[enum_value(
        name = "Legacy: by handle, memory that ends with this process",
        nick = "legacy"
    )]
    Legacy,
}
