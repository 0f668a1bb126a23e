// SPDX-License-Identifier: MPL-2.0

//! An array over bytes that a [`Keeper`] holds: an address, a shape, strides and a type.
#![allow(unsafe_code)] // addresses in shared memory

use std::sync::Arc;

use pyo3::prelude::*;
use xmem_core::DType;

use crate::device::DeviceCopy;
use crate::errors::{IntoPyResult, Kind};
use crate::keeper::{Export, Keeper, PrivateBytes};

/// The place of an array's elements.
#[derive(Debug, Clone)]
pub(crate) struct Array {
    pub(crate) keeper: Keeper,
    ptr: *const u8,
    pub(crate) shape: Vec<isize>,
    /// In bytes.
    pub(crate) strides: Vec<isize>,
    pub(crate) dtype: DType,
}

// SAFETY: `keeper` keeps the memory alive, and any thread may read it.
unsafe impl Send for Array {}
// SAFETY: as above.
unsafe impl Sync for Array {}

impl Array {
    /// An array whose first element is at `offset` in `bytes`. `None`: an element is outside of `bytes`, or elements overlap, so
    /// that a copy could need more memory than the frame has.
    pub(crate) fn new(
        keeper: Keeper,
        (bytes, len): (*const u8, usize),
        offset: usize,
        shape: &[isize],
        strides: &[isize],
        dtype: DType,
    ) -> Option<Self> {
        if shape.len() != strides.len() || shape.iter().any(|size| *size < 0) {
            return None;
        }
        let itemsize = isize::try_from(dtype.size()).ok()?;
        let offset_ = isize::try_from(offset).ok()?;
        let len_ = isize::try_from(len).ok()?;
        // The lowest and the highest byte of all elements.
        let (mut low, mut high) = (offset_, offset_.checked_add(itemsize)?);
        let mut nbytes = itemsize;
        let is_empty = shape.contains(&0);
        for (size, stride) in shape.iter().zip(strides) {
            // The size of an empty array must not overflow either.
            nbytes = nbytes.checked_mul((*size).max(1))?;
            let way = stride.checked_mul((*size - 1).max(0))?;
            if way < 0 {
                low = low.checked_add(way)?;
            } else {
                high = high.checked_add(way)?;
            }
            // Misaligned elements would be undefined behaviour in other libraries.
            if stride % itemsize != 0 && *size > 1 {
                return None;
            }
        }
        if !is_empty && (low < 0 || high > len_ || nbytes > len_) {
            return None;
        }
        let ptr = bytes.wrapping_add(offset.min(len));
        if !is_empty && ptr.addr() % dtype.size() != 0 {
            return None;
        }
        Some(Self {
            keeper,
            ptr,
            shape: shape.to_vec(),
            strides: strides.to_vec(),
            dtype,
        })
    }

    pub(crate) fn ptr(&self) -> *const u8 {
        self.ptr
    }

    /// The number of the array's device. `None`: host memory.
    pub(crate) fn device(&self) -> Option<u32> {
        self.keeper.device()
    }

    /// Why the CPU cannot read the array. `None`: it can.
    pub(crate) fn on_device(&self) -> Option<String> {
        self.device().map(|ordinal| {
            format!(
                "this frame is on CUDA device {ordinal}, where the CPU cannot read it: use it on the device \
                 (torch.from_dlpack(frame), cupy.from_dlpack(frame)), or copy it to host memory with frame.cpu()"
            )
        })
    }

    pub(crate) fn itemsize(&self) -> isize {
        self.dtype.size().cast_signed()
    }

    /// The size of the first dimension, as for Python's `len`.
    pub(crate) fn len(&self) -> usize {
        self.shape.first().map_or(0, |size| size.cast_unsigned())
    }

    /// Size of the elements in bytes, without gaps.
    pub(crate) fn nbytes(&self) -> isize {
        self.shape.iter().product::<isize>() * self.itemsize()
    }

    /// The address of the lowest byte, and the number of bytes to the end of the highest element, including gaps.
    pub(crate) fn span(&self) -> (*const u8, usize) {
        // `new` does not check the strides of an empty array.
        if self.nbytes() == 0 {
            return (self.ptr, 0);
        }
        let (mut below, mut len) = (0, self.itemsize());
        for (size, stride) in self.shape.iter().zip(&self.strides) {
            let way = stride * (size - 1);
            below += way.min(0);
            len += way.abs();
        }
        (self.ptr.wrapping_offset(below), len.cast_unsigned())
    }

    /// The bytes of `span`, in host memory.
    pub(crate) fn bytes(&self) -> &[u8] {
        let (start, len) = self.span();
        // SAFETY: `new` checked that the elements are inside of the memory that `keeper` keeps alive.
        unsafe { std::slice::from_raw_parts(start, len) }
    }

    fn is_contiguous_in(&self, dims: impl Iterator<Item = usize>) -> bool {
        let mut expected = self.itemsize();
        for dim in dims {
            let (size, stride) = (self.shape[dim], self.strides[dim]);
            if size != 1 && stride != expected {
                return self.nbytes() == 0;
            }
            expected *= size;
        }
        true
    }

    pub(crate) fn is_c_contiguous(&self) -> bool {
        self.is_contiguous_in((0..self.shape.len()).rev())
    }

    pub(crate) fn is_f_contiguous(&self) -> bool {
        self.is_contiguous_in(0..self.shape.len())
    }

    /// The same elements over a copy of the span.
    fn over(&self, keeper: Keeper, span: *const u8) -> Self {
        let below = self.ptr.addr() - self.span().0.addr();
        Self {
            keeper,
            ptr: span.wrapping_add(below),
            ..self.clone()
        }
    }

    /// A copy in private memory, after [`Keeper::settle`]: in host memory without gaps, on a device with gaps.
    pub(crate) fn to_private(&self) -> PyResult<Self> {
        if self.device().is_none() {
            return self.to_private_host();
        }
        let (start, len) = (self.span().0.addr() as u64, self.span().1);
        let copy = match &self.keeper {
            Keeper::Device(frame) => frame.copy(start, len),
            Keeper::PrivateDevice(memory) => memory.copy(start, len),
            _ => return Err(not_copied()),
        };
        let copy = Arc::new(DeviceCopy::new(copy.into_py_result()?));
        let span = std::ptr::without_provenance(copy.ptr() as usize);
        Ok(self.over(Keeper::PrivateDevice(copy), span))
    }

    /// The array itself if it is in host memory. Otherwise a copy without gaps, after [`Keeper::settle`].
    pub(crate) fn to_host(&self) -> PyResult<Self> {
        if self.device().is_none() {
            return Ok(self.clone());
        }
        let (start, len) = (self.span().0.addr() as u64, self.span().1);
        let mut bytes = vec![0; len];
        match &self.keeper {
            Keeper::Device(frame) => frame.copy_to_host(start, &mut bytes),
            Keeper::PrivateDevice(memory) => memory.copy_to_host(start, &mut bytes),
            _ => return Err(not_copied()),
        }
        .into_py_result()?;
        let bytes = Arc::new(PrivateBytes::new(bytes));
        let span = bytes.ptr();
        let copy = self.over(Keeper::Private(bytes), span);
        if copy.is_c_contiguous() {
            Ok(copy)
        } else {
            copy.to_private_host()
        }
    }

    fn to_private_host(&self) -> PyResult<Self> {
        let _keeps_the_slot = Export::new(&self.keeper)?;
        let mut bytes = Vec::with_capacity(self.nbytes().cast_unsigned());
        self.append_to(0, self.ptr, &mut bytes);
        let mut strides = vec![0; self.shape.len()];
        let mut stride = self.itemsize();
        for (to, size) in strides.iter_mut().zip(&self.shape).rev() {
            *to = stride;
            stride *= (*size).max(1);
        }
        let bytes = Arc::new(PrivateBytes::new(bytes));
        Ok(Self {
            ptr: bytes.ptr(),
            keeper: Keeper::Private(bytes),
            shape: self.shape.clone(),
            strides,
            dtype: self.dtype,
        })
    }

    fn append_to(&self, dim: usize, at: *const u8, bytes: &mut Vec<u8>) {
        let rest = dim..self.shape.len();
        if self.nbytes() == 0 {
            return;
        }
        if self.is_contiguous_in(rest.clone().rev()) {
            let len = rest.map(|dim| self.shape[dim]).product::<isize>() * self.itemsize();
            // SAFETY: `new` checked that the elements are inside of the memory that `keeper` keeps alive.
            let row = unsafe { std::slice::from_raw_parts(at, len.cast_unsigned()) };
            bytes.extend_from_slice(row);
            return;
        }
        for index in 0..self.shape[dim] {
            self.append_to(
                dim + 1,
                at.wrapping_offset(self.strides[dim] * index),
                bytes,
            );
        }
    }
}

fn not_copied() -> PyErr {
    Kind::Cuda.error("a frame on a device cannot be copied while it is being written: receive it first, or copy the array \
         that you write it with")
}
