// SPDX-License-Identifier: MPL-2.0

//! The arrays of a received message that lie on CUDA devices.

use std::sync::Arc;
use std::time::Duration;

use pyo3::prelude::*;
use xmem_core::cuda::CudaError;
use xmem_core::{Canceller, DType, ReadLease};

use super::message::Place;
use crate::addresses;
use crate::array::Array;
use crate::device::{self, DeviceCopy, DeviceFrame};
use crate::errors::IntoPyErr;
use crate::keeper::Keeper;
use crate::layout;

/// The longest wait for arrays that are copied because there is no lease left.
const PATIENCE: Duration = Duration::from_secs(10);

/// A frame with arrays of a received message.
#[derive(Debug, Clone)]
pub(super) enum Arrays {
    Frame(Arc<DeviceFrame>),
    Private(Arc<DeviceCopy>),
    /// An error for each use of its arrays.
    Failed(CudaError),
}

impl Arrays {
    pub(super) fn of(lease: ReadLease) -> Self {
        match DeviceFrame::new(lease) {
            Ok(frame) => {
                addresses::note_on_device(&frame);
                Self::Frame(frame)
            }
            Err(error) => Self::Failed(error),
        }
    }

    /// A copy, because there is no lease left. Closing the channel ends the wait for the device.
    pub(super) fn copied(lease: &ReadLease, canceller: &Canceller) -> Self {
        match layout::copy_on_device(lease, PATIENCE, Some(canceller)) {
            Ok(Some(part)) => match part.keeper {
                Keeper::PrivateDevice(memory) => Self::Private(memory),
                _ => Self::Failed(CudaError::NotOnDevice),
            },
            Ok(None) => Self::Failed(CudaError::Unfinished),
            Err(error) => Self::Failed(error),
        }
    }

    /// The memory of the payload, part by part.
    fn memory(&self) -> Result<(Keeper, Vec<(u64, usize)>), CudaError> {
        match self {
            Self::Frame(frame) => Ok((Keeper::Device(frame.clone()), frame.parts().collect())),
            Self::Private(memory) => Ok((
                Keeper::PrivateDevice(memory.clone()),
                vec![(memory.ptr(), memory.len())],
            )),
            Self::Failed(error) => Err(error.clone()),
        }
    }

    /// The same in memory of this process.
    pub(super) fn to_private(&self, py: Python<'_>) -> PyResult<Self> {
        let Self::Frame(frame) = self else {
            return Ok(self.clone());
        };
        frame.wait(py)?;
        let copy = py.detach(|| device::copy_all(frame));
        Ok(copy.map_or_else(Self::Failed, |copy| {
            Self::Private(Arc::new(DeviceCopy::new(copy)))
        }))
    }
}

/// Bytes of a message on a device.
#[pyclass(frozen, module = "xmem._xmem", name = "_DeviceBlock")]
#[derive(Debug)]
pub(crate) struct DeviceBlock {
    pub(super) arrays: Arrays,
    pub(super) place: Place,
}

impl DeviceBlock {
    /// An array whose first element is `offset` bytes into it. `None`: it does not lie inside.
    pub(super) fn array(
        &self,
        offset: usize,
        shape: &[isize],
        strides: &[isize],
        dtype: DType,
    ) -> PyResult<Option<Array>> {
        let (keeper, parts) = self.arrays.memory().map_err(|error| {
            error
                .kind()
                .error(format!("the message has arrays on a device: {error}"))
        })?;
        let mut before = 0;
        let block = parts.into_iter().find_map(|(ptr, size)| {
            let at = self.place.offset.checked_sub(before);
            before += size;
            let at = at?;
            (at.checked_add(self.place.len)? <= size).then_some(ptr as usize + at)
        });
        Ok(block.and_then(|start| {
            let bytes = (std::ptr::without_provenance(start), self.place.len);
            Array::new(keeper, bytes, offset, shape, strides, dtype)
        }))
    }
}
