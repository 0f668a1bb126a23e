// SPDX-License-Identifier: MPL-2.0

//! The outcome of a received frame.

/// Where the bytes of a buffer are, and why.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Placement {
    /// In the slot of the frame.
    InPlace,
    /// Copied, because the budget was used up.
    OverBudget,
    /// Copied, because downstream can read only the default layout.
    Layout,
    /// Copied from a device, because `download` is set.
    Downloaded,
}

/// The outcome of a received frame.
pub(super) enum Outcome {
    Buffer(gst::Buffer, Placement),
    Dropped,
    /// The element was stopped while it waited for a frame in device memory.
    Cancelled,
    /// The key frame that this frame needs is missing.
    Undecodable,
}

/// Why a frame's description is invalid.
#[derive(Debug)]
pub(super) struct InvalidFrame(pub(super) String);
