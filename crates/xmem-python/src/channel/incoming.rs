// SPDX-License-Identifier: MPL-2.0

//! A message that came, and the blocks in it.
#![allow(unsafe_code)] // slices over pieces of a frame that is held, and the buffer protocol

use std::ffi::c_int;
use std::sync::Arc;

use pyo3::exceptions::PyValueError;
use pyo3::ffi;
use pyo3::prelude::*;
use xmem_core::ReadLease;

use super::device::Arrays;
use super::memory::{self, fill_bytes};
use super::message::{ALIGN, Place, Table};
use crate::array::Plane;

#[repr(align(64))]
#[derive(Debug, Clone, Copy)]
struct Line(#[expect(dead_code, reason = "only its address counts")] [u8; ALIGN]);

/// What keeps a block's bytes.
#[derive(Debug)]
enum Keeper {
    Lease(#[expect(dead_code, reason = "held")] Arc<ReadLease>),
    Private(#[expect(dead_code, reason = "held")] Box<[Line]>),
}

/// Bytes of a message.
#[derive(Debug, Clone)]
pub(super) struct Bytes {
    #[expect(dead_code, reason = "held")]
    keeper: Arc<Keeper>,
    start: usize,
    len: usize,
}

impl Bytes {
    fn as_slice(&self) -> &[u8] {
        // SAFETY: inside of what the keeper keeps, checked when this was made. Nobody writes a frame that is held, and a
        // private copy is written by who has its arrays only.
        unsafe { std::slice::from_raw_parts(self.start as *const u8, self.len) }
    }

    /// The same bytes in memory of their own.
    fn to_private(&self) -> Self {
        let mut lines = vec![Line([0; ALIGN]); self.len.div_ceil(ALIGN).max(1)].into_boxed_slice();
        let start = lines.as_mut_ptr().cast::<u8>();
        // SAFETY: as many bytes are there, rounded up, and they are new.
        unsafe { std::ptr::copy_nonoverlapping(self.as_slice().as_ptr(), start, self.len) };
        Self {
            start: start as usize,
            len: self.len,
            keeper: Arc::new(Keeper::Private(lines)),
        }
    }
}

/// A message, where it lies or copied.
#[derive(Debug)]
pub(super) struct Message {
    pickle: Bytes,
    blocks: Vec<(Bytes, Place)>,
    is_private: bool,
}

impl Message {
    /// A message that is held. `Err` says what is wrong with it.
    pub(super) fn new(lease: ReadLease) -> Result<Self, String> {
        let lease = Arc::new(lease);
        let pieces = match lease.parts() {
            [] => vec![lease.data()],
            parts => {
                let map = |part: &xmem_core::Part| {
                    // SAFETY: the part lives as long as the lease, which the keeper has.
                    part.map()
                        .map(|b| unsafe { std::slice::from_raw_parts(b.as_ptr(), b.len()) })
                };
                let pieces: Result<Vec<&[u8]>, _> = parts.iter().map(map).collect();
                pieces.map_err(|error| format!("a piece of a message cannot be mapped: {error}"))?
            }
        };
        let sizes: Vec<usize> = pieces.iter().map(|piece| piece.len()).collect();
        let table = pieces
            .first()
            .and_then(|first| Table::decode(first, &sizes))
            .ok_or("a message makes no sense")?;
        memory::note(&lease);
        let keeper = Arc::new(Keeper::Lease(lease.clone()));
        let bytes = |place: &Place| Bytes {
            keeper: keeper.clone(),
            start: pieces[place.piece as usize].as_ptr() as usize + place.offset,
            len: place.len,
        };
        Ok(Self {
            pickle: bytes(&table.pickle),
            blocks: table
                .blocks
                .iter()
                .map(|place| (bytes(place), *place))
                .collect(),
            is_private: false,
        })
    }

    /// The same in memory of this process, which may be written.
    pub(super) fn to_private(&self) -> Self {
        Self {
            pickle: self.pickle.to_private(),
            blocks: self
                .blocks
                .iter()
                .map(|(bytes, place)| (bytes.to_private(), *place))
                .collect(),
            is_private: true,
        }
    }
}

/// Held by references, so that what they refer to stays.
#[pyclass(frozen, module = "xmem._xmem", name = "_RefLease")]
#[derive(Debug, Clone)]
pub(crate) struct RefLease(#[expect(dead_code, reason = "held")] pub(super) Arc<ReadLease>);

/// A message that came.
#[pyclass(frozen, module = "xmem._xmem", name = "_Incoming")]
#[derive(Debug)]
pub(crate) struct Incoming {
    pub(super) message: Message,
    pub(super) sender: u64,
    pub(super) refs: Option<RefLease>,
    pub(super) device: Option<Arrays>,
}

impl Incoming {
    pub(super) fn is_copied(&self) -> bool {
        self.message.is_private
    }
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

    /// What its references hold.
    #[getter]
    fn refs(&self) -> Option<RefLease> {
        self.refs.clone()
    }

    /// Each block, whether the pickle takes it in its order, and how many bytes before it were left out.
    fn blocks(&self) -> Vec<(Block, bool, usize)> {
        let block = |(bytes, place): &(Bytes, Place)| {
            let block = Block {
                bytes: bytes.clone(),
                readonly: !self.message.is_private,
            };
            (block, place.in_order, place.shift)
        };
        self.message.blocks.iter().map(block).collect()
    }

    /// The same message in memory of this process, which may be written.
    fn copied(&self, py: Python<'_>) -> PyResult<Self> {
        let device = self.device.as_ref().map(|arrays| arrays.to_private(py));
        Ok(Self {
            message: py.detach(|| self.message.to_private()),
            sender: self.sender,
            refs: self.refs.clone(),
            device: device.transpose()?,
        })
    }

    /// One of its arrays on a device.
    fn device_array(
        &self,
        offset: usize,
        shape: Vec<isize>,
        strides: Vec<isize>,
        dtype: &Bound<'_, PyAny>,
    ) -> PyResult<Plane> {
        let arrays = self.device.as_ref().ok_or_else(|| {
            PyValueError::new_err("the message has no arrays on a device, and its pickle says so")
        })?;
        arrays.plane(offset, &shape, &strides, dtype)
    }
}

/// Bytes of a message. It lives as long as the last array over it.
#[pyclass(frozen, module = "xmem._xmem", name = "_Block")]
#[derive(Debug)]
pub(crate) struct Block {
    bytes: Bytes,
    readonly: bool,
}

#[pymethods]
impl Block {
    /// The same bytes for a library that has no read-only arrays. Writing them ends the process if they are shared.
    fn unprotected(&self) -> Self {
        Self {
            bytes: self.bytes.clone(),
            readonly: false,
        }
    }

    fn __len__(&self) -> usize {
        self.bytes.len
    }

    /// # Safety
    ///
    /// `view` is Python's, to be filled in.
    unsafe fn __getbuffer__(
        slf: Bound<'_, Self>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        let Self { bytes, readonly } = slf.get();
        // SAFETY: the caller's promise; the keeper keeps the bytes as long as this object lives.
        unsafe {
            fill_bytes(
                view,
                flags,
                slf.as_any(),
                (bytes.start, bytes.len),
                *readonly,
            )
        }
    }
}
