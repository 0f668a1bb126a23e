// SPDX-License-Identifier: MPL-2.0

//! The arrays that a message has on a CUDA device. They are a frame of their own, which is published before the message, and
//! held by whoever has one of the arrays.

use std::sync::Arc;
use std::time::Duration;

use pyo3::prelude::*;
use xmem_core::cuda::{CudaError, Device, Rows, Stream};
use xmem_core::{DType, Producer, ReadLease, WriteLease};

use super::end::ChannelEnd;
use crate::array::{Array, Keeper};
use crate::device::{DeviceCopy, DeviceFrame, stream_of};
use crate::errors::{IntoPyErr, Kind};
use crate::layout;
use crate::signals::Deadline;

/// One array: where it is to be in the frame, where it is, its size in bytes, and the stream that is still to write it.
#[derive(Debug, FromPyObject)]
struct Block<'py>(usize, u64, usize, Option<Bound<'py, PyAny>>);

/// What is to be sent: the device, the stream for the copies, and whether its arrays may go when `send` is over.
#[derive(Debug, FromPyObject)]
pub(super) struct ToSend<'py>(u32, Bound<'py, PyAny>, bool, Vec<Block<'py>>);

/// A slot that a stream copies the arrays into.
#[derive(Debug)]
pub(super) struct Outgoing {
    pub(super) lease: WriteLease,
    pub(super) stream: Stream,
    pub(super) size: usize,
}

impl Outgoing {
    pub(super) fn new(
        py: Python<'_>,
        end: &ChannelEnd,
        producer: &Producer,
        arrays: &ToSend<'_>,
        deadline: Deadline,
    ) -> PyResult<Self> {
        let ToSend(ordinal, stream, keeps, blocks) = arrays;
        let stream = stream_of(stream)?;
        let mut copies = Vec::with_capacity(blocks.len());
        let mut others: Vec<Stream> = Vec::new();
        let mut size = 1;
        for Block(offset, ptr, len, ready_on) in blocks {
            size = size.max(offset + len);
            copies.push((*ptr, Rows::plain(0, *offset, *len)));
            if let Some(other) = ready_on.as_ref().map(stream_of).transpose()?
                && other != stream
                && !others.contains(&other)
            {
                others.push(other);
            }
        }
        let device = py.detach(|| Device::new(*ordinal));
        let device = device.map_err(IntoPyErr::into_py_err)?;
        let lease = end.acquire_on_device(py, producer, size, &device, deadline)?;
        let keeps = *keeps;
        // A driver may wait for what needs the interpreter.
        let (lease, copied) = py.detach(move || {
            let copied = fill(&lease, &device, (stream, &others), &copies, keeps);
            (lease, copied)
        });
        let outgoing = Self {
            lease,
            stream,
            size,
        };
        match copied {
            Ok(()) => Ok(outgoing),
            Err(error) => {
                outgoing.give_back();
                Err(error.into_py_err())
            }
        }
    }

    /// It is not sent.
    pub(super) fn give_back(self) {
        self.lease.give_back_later(vec![self.stream]);
    }
}

/// Has a stream copy arrays into a slot, behind what the other streams have to do.
fn fill(
    lease: &WriteLease,
    device: &Device,
    (stream, others): (Stream, &[Stream]),
    copies: &[(u64, Rows)],
    keeps: bool,
) -> Result<(), CudaError> {
    for other in others {
        other.synchronize(device)?;
    }
    let slot = lease.cuda().ok_or(CudaError::NotOnDevice)?;
    slot.wait_on(stream)?;
    for (ptr, rows) in copies {
        slot.copy_rows_from(stream, *ptr, std::slice::from_ref(rows))?;
    }
    if keeps {
        Ok(())
    } else {
        stream.synchronize(device)
    }
}

/// How long arrays are waited for that are copied for want of a lease.
const PATIENCE: Duration = Duration::from_secs(10);

/// The arrays of a message that came.
#[derive(Debug, Clone)]
pub(super) enum Arrays {
    Frame(Arc<DeviceFrame>),
    Private(Arc<DeviceCopy>),
    /// Whoever asks for one is told why not.
    Failed(CudaError),
}

impl Arrays {
    pub(super) fn of(lease: ReadLease) -> Self {
        DeviceFrame::new(lease).map_or_else(Self::Failed, Self::Frame)
    }

    /// For want of a lease, as a copy.
    pub(super) fn copied(lease: &ReadLease) -> Self {
        match layout::copy_on_device(lease, PATIENCE) {
            Ok(Some(piece)) => match piece.keeper {
                Keeper::PrivateDevice(memory) => Self::Private(memory),
                _ => Self::Failed(CudaError::NotOnDevice),
            },
            Ok(None) => Self::Failed(CudaError::Unfinished),
            Err(error) => Self::Failed(error),
        }
    }

    fn memory(&self) -> Result<(Keeper, (u64, usize)), CudaError> {
        match self {
            Self::Frame(frame) => {
                let piece = frame.pieces().first().copied();
                Ok((
                    Keeper::Device(frame.clone()),
                    piece.ok_or(CudaError::NotOnDevice)?,
                ))
            }
            Self::Private(memory) => Ok((
                Keeper::PrivateDevice(memory.clone()),
                (memory.ptr(), memory.len()),
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
        let (ptr, len) = self.memory().map_err(IntoPyErr::into_py_err)?.1;
        let copy = py.detach(|| frame.copy(ptr, len));
        Ok(copy.map_or_else(Self::Failed, |copy| {
            Self::Private(Arc::new(DeviceCopy::new(copy)))
        }))
    }

    /// One of them. `None`: it does not lie there.
    pub(super) fn array(
        &self,
        offset: usize,
        shape: &[isize],
        strides: &[isize],
        dtype: DType,
    ) -> PyResult<Option<Array>> {
        let (keeper, (ptr, len)) = self.memory().map_err(|error| {
            let kind = error.kind().unwrap_or(Kind::Cuda);
            kind.error(format!("the message has arrays on a device: {error}"))
        })?;
        let bytes = (std::ptr::without_provenance(ptr as usize), len);
        Ok(Array::new(keeper, bytes, offset, shape, strides, dtype))
    }
}

/// What a message's arrays on a device lie in.
#[pyclass(frozen, module = "xmem._xmem", name = "_DeviceBlock")]
#[derive(Debug)]
pub(crate) struct DeviceBlock(pub(super) Arrays);
