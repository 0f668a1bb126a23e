// SPDX-License-Identifier: MPL-2.0

//! A received message, and its blocks.
#![allow(unsafe_code)] // a slice of a held frame, and the buffer protocol

use std::ffi::c_int;
use std::sync::Arc;

use pyo3::exceptions::PyMemoryError;
use pyo3::ffi;
use pyo3::prelude::*;
use xmem_core::cuda::CudaError;
use xmem_core::{DType, Part, ReadLease};

use super::arrays::{self, Arrays, DeviceBlock};
use super::memory::fill_bytes;
use super::message::{ALIGN, Place, Table};
use super::refs::RefLease;
use crate::array::Array;
use crate::keeper::{Held, Keeper, PrivateBytes};

/// Bytes of a message.
#[derive(Debug, Clone)]
pub(super) struct Bytes {
    keeper: Keeper,
    start: usize,
    len: usize,
}

impl Bytes {
    fn as_slice(&self) -> &[u8] {
        // SAFETY: `Table::decode` checked that the bytes are in memory that the keeper keeps alive. A held frame is not
        // written, and a private copy only through its arrays.
        unsafe { std::slice::from_raw_parts(self.start as *const u8, self.len) }
    }

    /// A copy in private memory. `Err`: there is no memory.
    fn to_private(&self) -> Result<Self, String> {
        let bytes = PrivateBytes::aligned(self.as_slice(), ALIGN)
            .ok_or_else(|| format!("not enough memory to copy {} bytes", self.len))?;
        Ok(Self {
            start: bytes.ptr() as usize,
            len: self.len,
            keeper: Keeper::Private(Arc::new(bytes)),
        })
    }
}

/// A message, in place or copied.
#[derive(Debug)]
pub(super) struct Message {
    pickle: Bytes,
    /// `None`: the block is on a device.
    blocks: Vec<(Option<Bytes>, Place)>,
    pub(super) is_private: bool,
}

impl Message {
    /// The message in a held frame. `Err`: why the frame is not a message.
    pub(super) fn new(lease: Arc<ReadLease>) -> Result<Self, String> {
        let parts: Vec<&[u8]> = match lease.parts() {
            [] => vec![lease.bytes().map_err(|error| error.to_string())?],
            parts => {
                let parts: Result<_, _> = parts.iter().map(Part::map).collect();
                parts.map_err(|error| format!("a part of a message cannot be mapped: {error}"))?
            }
        };
        let sizes: Vec<usize> = parts.iter().map(|part| part.len()).collect();
        let table = parts
            .first()
            .and_then(|first| Table::decode(first, &sizes))
            .ok_or("the table of a message does not match its parts")?;
        let keeper = Keeper::Lease(Held::new(lease.clone()));
        let bytes = |place: &Place| Bytes {
            keeper: keeper.clone(),
            start: parts[place.part as usize].as_ptr() as usize + place.offset,
            len: place.len,
        };
        Ok(Self {
            pickle: bytes(&table.pickle),
            blocks: table
                .blocks
                .iter()
                .map(|place| ((!place.on_device).then(|| bytes(place)), *place))
                .collect(),
            is_private: false,
        })
    }

    /// A writable copy in private memory.
    pub(super) fn to_private(&self) -> Result<Self, String> {
        let blocks = self.blocks.iter();
        let blocks = blocks.map(|(bytes, place)| {
            let bytes = bytes.as_ref().map(Bytes::to_private);
            Ok((bytes.transpose()?, *place))
        });
        Ok(Self {
            pickle: self.pickle.to_private()?,
            blocks: blocks.collect::<Result<_, String>>()?,
            is_private: true,
        })
    }
}

/// A received message.
#[pyclass(frozen, module = "xmem._xmem", name = "_Incoming")]
#[derive(Debug)]
pub(crate) struct Incoming {
    pub(super) message: Message,
    pub(super) sender: u64,
    pub(super) refs: Option<Arc<ReadLease>>,
    /// The frames with its arrays on devices, and the numbers of these frames.
    pub(super) devices: Vec<(u32, Arrays)>,
}

#[pymethods]
impl Incoming {
    /// The number of the process that sent it.
    #[getter]
    fn sender(&self) -> u64 {
        self.sender
    }

    /// The pickle.
    #[getter]
    fn pickle(&self) -> Block {
        Block {
            bytes: self.message.pickle.clone(),
            readonly: true,
        }
    }

    /// The lease of a reference, by the tag that its sender chose.
    fn refs(&self, tag: u32) -> Option<RefLease> {
        let lease = self.refs.clone();
        lease.map(|lease| RefLease::new(lease, tag))
    }

    /// The blocks, each with whether the pickle reads it in order, and the number of bytes that were omitted before it.
    fn blocks(&self) -> Vec<(AnyBlock, bool, usize)> {
        let block = |(bytes, place): &(Option<Bytes>, Place)| {
            let block = match bytes {
                Some(bytes) => AnyBlock::Host(Block {
                    bytes: bytes.clone(),
                    readonly: !self.message.is_private,
                }),
                None => AnyBlock::Device(DeviceBlock {
                    // The sender may have written any number.
                    arrays: self
                        .devices
                        .iter()
                        .find(|(number, _)| *number == place.part)
                        .map_or(Err(CudaError::NotOnDevice), |(_, arrays)| arrays.clone()),
                    place: *place,
                }),
            };
            (block, place.in_order, place.shift)
        };
        self.message.blocks.iter().map(block).collect()
    }

    /// The same message in writable private memory.
    fn copied(&self, py: Python<'_>) -> PyResult<Self> {
        self.message.pickle.keeper.check_process()?;
        let message = py.detach(|| self.message.to_private());
        let devices = self.devices.iter();
        let devices =
            devices.map(|(number, arrays)| Ok((*number, arrays::to_private(py, arrays)?)));
        Ok(Self {
            message: message.map_err(PyMemoryError::new_err)?,
            sender: self.sender,
            refs: self.refs.clone(),
            devices: devices.collect::<PyResult<_>>()?,
        })
    }
}

/// A block in any memory.
#[derive(Debug, IntoPyObject)]
enum AnyBlock {
    Host(Block),
    Device(DeviceBlock),
}

/// Bytes of a message. They are kept until the last array over them is dropped.
#[pyclass(frozen, module = "xmem._xmem", name = "_Block")]
#[derive(Debug)]
pub(crate) struct Block {
    bytes: Bytes,
    readonly: bool,
}

impl Block {
    /// An array whose first element is at `offset` in the block. `None`: it is not inside of the block.
    pub(super) fn array(
        &self,
        offset: usize,
        shape: &[isize],
        strides: &[isize],
        dtype: DType,
    ) -> Option<Array> {
        let Bytes { keeper, start, len } = &self.bytes;
        let place = (*start as *const u8, *len);
        Array::new(keeper.clone(), place, offset, shape, strides, dtype)
    }
}

#[pymethods]
impl Block {
    /// The same bytes for a library without read-only arrays. If they are shared, writing to them ends the process.
    fn unprotected(&self) -> Self {
        Self {
            bytes: self.bytes.clone(),
            readonly: false,
        }
    }

    fn __bool__(&self) -> bool {
        true
    }

    fn __len__(&self) -> usize {
        self.bytes.len
    }

    /// # Safety
    ///
    /// `view` is the argument of `__getbuffer__`.
    unsafe fn __getbuffer__(
        slf: Bound<'_, Self>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        let Self { bytes, readonly } = slf.get();
        let checked = bytes.keeper.check_process();
        let bytes = checked.map(|()| (bytes.start, bytes.len, *readonly));
        // SAFETY: promised by the caller. The keeper keeps the bytes as long as this object lives.
        unsafe { fill_bytes(view, flags, slf.as_any(), bytes) }
    }
}
