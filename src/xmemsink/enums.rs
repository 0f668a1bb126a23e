// SPDX-License-Identifier: MPL-2.0

//! The values of enum properties.

use crate::properties::choices;

choices! {
    /// How the pool treats a slow consumer.
    XmemSinkDelivery = "GstXmemSinkDelivery" {
        Live = "live", "Live: a slow consumer misses frames, the sink does not wait for it";
        Lossless = "lossless", "Lossless: every connected consumer receives every frame, the sink waits";
    }

    /// Whether frames that upstream did not write into a slot may be copied into one.
    XmemSinkCopy = "GstXmemSinkCopy" {
        Allow = "allow", "Allow: copy foreign frames once";
        Forbid = "forbid", "Forbid: a foreign frame causes an element error";
    }

    /// The kind of shared memory that holds the slots.
    XmemSinkBacking = "GstXmemSinkBacking" {
        Memfd = "memfd", "Memfd: anonymous memory that consumers can neither write nor resize";
        PosixShm = "posix-shm", "POSIX shared memory: named segments, for this user only";
    }

    /// When a frame is published.
    XmemSinkPace = "GstXmemSinkPace" {
        Auto = "auto", "Auto: live input immediately, other input at its time";
        Always = "always", "Always: every frame at its time";
        Never = "never", "Never: every frame immediately";
    }

    /// How slots on CUDA devices are shared.
    XmemSinkCudaIpcMode = "GstXmemSinkCudaIpcMode" {
        Auto = "auto", "Auto: by file descriptor if the device supports it, else by legacy handle";
        Vmm = "vmm", "VMM: by file descriptor, the memory exists as long as any process uses it";
        Legacy = "legacy", "Legacy: by IPC handle, the memory is freed with this process";
    }
}
