// SPDX-License-Identifier: MPL-2.0

//! Replaces `devices` in a build without CUDA. No slot of this pool is on a device.

use std::sync::Arc;

use super::import::ImportedMemory;
use crate::error::{AcquireError, ForwardError, PublishError};
use crate::frame::forwarded::HeldPart;
use crate::producer::pool::Pool;
use crate::producer::pool::slots::{Claimed, Want};
use crate::region::device::{Device, View};

pub(in crate::producer) fn claim_on(
    _pool: &Pool,
    _want: Want,
    device: &Device,
) -> Result<Claimed, AcquireError> {
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

pub(in crate::producer) fn wait_until_done(_pool: &Pool) {}

pub(in crate::producer) fn wait_until_unused(_pool: &Pool) {}

pub(in crate::producer) fn leak(_pool: &Pool) {}

pub(in crate::producer) fn mark(_pool: &Arc<Pool>) {}

pub(super) fn set_ready(_claimed: &Claimed, _ready: bool) {}

pub(super) fn update_ready(_pool: &Pool, _claimed: &Claimed) -> Result<(), PublishError> {
    Ok(())
}
