// SPDX-License-Identifier: MPL-2.0

//! The values of enum properties.

use crate::properties::choices;

choices! {
    /// How the pool treats a slow consumer.
    XmemSinkDelivery = "GstXmemSinkDelivery" {
        Live = "live", "Live: a slow consumer misses frames, the sink does not wait for it";
        Lossless = "lossless", "Lossless: every connected consumer gets every frame, the sink waits";
    }

    /// Whether frames that upstream did not write into a slot may be copied into one.
    XmemSinkCopy = "GstXmemSinkCopy" {
        Allow = "allow", "Allow: copy foreign frames once";
        Forbid = "forbid", "Forbid: a foreign frame is an element error";
    }

    /// The kind of shared memory that holds the slots.
    XmemSinkBacking = "GstXmemSinkBacking" {
        Memfd = "memfd", "Memfd: anonymous memory that consumers can neither write nor resize";
        PosixShm = "posix-shm", "POSIX shared memory: named segments, for this user only";
    }

    /// When a frame is published.
    XmemSinkPace = "GstXmemSinkPace" {
        Auto = "auto", "Auto: live input at once, other input at its time";
        Always = "always", "Always: every frame at its time";
        Never = "never", "Never: every frame at once";
    }

    /// How slots on CUDA devices are shared.
    XmemSinkCudaIpcMode = "GstXmemSinkCudaIpcMode" {
        Auto = "auto", "Auto: by descriptor if the device can, else by legacy handle";
        Vmm = "vmm", "VMM: by descriptor, memory that lives for as long as anybody uses it";
        Legacy = "legacy", "Legacy: by handle, memory that ends with this process";
    }
}
