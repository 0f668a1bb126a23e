// SPDX-License-Identifier: MPL-2.0

//! Publishing frames: claims, writes and publishes slots.

pub(super) mod claim;
#[cfg(feature = "cuda")]
pub(super) mod devices;
#[cfg(not(feature = "cuda"))]
#[path = "no_devices.rs"]
pub(super) mod devices;
pub(super) mod forward;
pub(super) mod import;
pub(super) mod own_hold;
pub(super) mod own_slot;
mod owned;
pub(super) mod part_lease;
pub(super) mod publish;
pub(super) mod spec;
pub(super) mod write_lease;
