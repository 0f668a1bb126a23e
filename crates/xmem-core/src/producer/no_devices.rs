// SPDX-License-Identifier: MPL-2.0

//! Replaces `devices` in a build without CUDA. No slot of this pool is on a device.

use std::sync::Arc;

use super::slot::Slot;
use crate::error::{AcquireError, PublishError};
use crate::producer::pool::Pool;
use crate::producer::pool::slots::Want;
use crate::region::device::Device;

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

pub(super) fn finish(_pool: &Pool, _is_answering: bool) {}

pub(super) fn mark(_pool: &Arc<Pool>) {}

pub(super) fn set_ready(_slot: &Slot, _ready: bool) {}

pub(super) fn update_ready(_slot: &Slot) -> Result<(), PublishError> {
    Ok(())
}
