// SPDX-License-Identifier: MPL-2.0

//! The arrays of a received message on CUDA devices.

use std::time::Duration;

use pyo3::prelude::*;
use xmem_core::cuda::CudaError;
use xmem_core::{Canceller, DType, ReadLease};

use super::message::Place;
use crate::addresses;
use crate::array::Array;
use crate::device::{self, DeviceFrame};
use crate::errors::IntoPyErr;
use crate::keeper::Keeper;
use crate::layout::{self, Part};

/// The longest wait for arrays that are copied because the budget is used up.
const PATIENCE: Duration = Duration::from_secs(10);

/// A frame with arrays of a received message: the bytes of each part of its payload, or the error that each use of them raises.
pub(super) type Arrays = Result<Vec<Array>, CudaError>;

fn bytes_of(parts: &[Part]) -> Vec<Array> {
    parts.iter().filter_map(layout::bytes).collect()
}

/// A received frame in place.
pub(super) fn received(lease: ReadLease) -> Arrays {
    let frame = DeviceFrame::new(lease)?;
    addresses::note_on_device(&frame);
    Ok(bytes_of(&layout::device_parts(&frame)))
}

/// A copy, because the budget is used up. Closing the channel cancels the wait for the device.
pub(super) fn copied(lease: &ReadLease, canceller: &Canceller) -> Arrays {
    let part = layout::copy_on_device(lease, PATIENCE, Some(canceller))?;
    Ok(bytes_of(&[part.ok_or(CudaError::Unfinished)?]))
}

/// A copy of the arrays in private memory.
pub(super) fn to_private(py: Python<'_>, arrays: &Arrays) -> PyResult<Arrays> {
    let first = arrays.as_ref().ok().and_then(|parts| parts.first());
    let Some(Keeper::Device(frame)) = first.map(|part| &part.keeper) else {
        return Ok(arrays.clone());
    };
    frame.wait(py)?;
    let copy = py.detach(|| device::copy_all(frame));
    Ok(copy.map(|copy| bytes_of(&[layout::private_on_device(copy)])))
}

/// Bytes of a message on a device.
#[pyclass(frozen, module = "xmem._xmem", name = "_DeviceBlock")]
#[derive(Debug)]
pub(crate) struct DeviceBlock {
    pub(super) arrays: Arrays,
    pub(super) place: Place,
}

impl DeviceBlock {
    /// An array whose first element is at `offset` in the block. `None`: it is not inside of the block.
    pub(super) fn array(
        &self,
        offset: usize,
        shape: &[isize],
        strides: &[isize],
        dtype: DType,
    ) -> PyResult<Option<Array>> {
        let parts = self.arrays.as_ref().map_err(|error| {
            error.kind().error(format!(
                "cannot open the arrays of this message on their device: {error}"
            ))
        })?;
        let mut before = 0;
        let len = self.place.len;
        let block = parts.iter().find_map(|part| {
            let size = part.len();
            let at = self.place.offset.checked_sub(before);
            before += size;
            let at = at?;
            (at.checked_add(len)? <= size).then(|| (part, part.ptr().wrapping_add(at)))
        });
        Ok(block.and_then(|(part, start)| {
            let keeper = part.keeper.clone();
            Array::new(keeper, (start, len), offset, shape, strides, dtype)
        }))
    }
}
