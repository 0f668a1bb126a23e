// SPDX-License-Identifier: MPL-2.0

//! Replaces `devices` in a build without CUDA. No slot of this pool is on a device.

use std::sync::Arc;

use super::parts::ImportedMemory;
use super::slot::Slot;
use crate::error::{AcquireError, ForwardError, PublishError};
use crate::frame::forwarded::HeldPart;
use crate::producer::pool::Pool;
use crate::producer::pool::slots::Want;
use crate::region::device::{Device, View};

pub(super) fn claim_on(
    _pool: &Arc<Pool>,
    _want: Want,
    device: &Device,
) -> Result<Slot, AcquireError> {
    match *device {}
}

pub(super) fn ordinal(device: &Device) -> Result<u16, AcquireError> {
    match *device {}
}

/// Without CUDA only the region's host half could be forwarded, which is not a frame.
pub(super) fn import_region(
    _pool: &Arc<Pool>,
    _part: &HeldPart,
    _view: &View,
) -> Result<ImportedMemory, ForwardError> {
    Err(ForwardError::NoDescriptor)
}

pub(super) fn wait_until_done(_pool: &Pool) {}

pub(super) fn wait_until_unused(_pool: &Pool) {}

pub(super) fn leak(_pool: &Pool) {}

pub(super) fn mark(_pool: &Arc<Pool>) {}

pub(super) fn set_ready(_slot: &Slot, _ready: bool) {}

pub(super) fn update_ready(_slot: &Slot) -> Result<(), PublishError> {
    Ok(())
}
