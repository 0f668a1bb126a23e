// SPDX-License-Identifier: MPL-2.0

//! A buffer's metadata in the form that Python has.

use std::ffi::CStr;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use xmem_core::{FrameMeta, MAX_DIMS};

use crate::dtype;

/// A buffer as an array.
#[derive(Debug)]
pub(super) struct Shaped {
    pub(super) shape: Vec<isize>,
    pub(super) strides: Vec<isize>,
    pub(super) item: usize,
    pub(super) format: &'static CStr,
}

impl Shaped {
    /// From its metadata. Plain bytes, if there are none, or if they do not fit.
    pub(super) fn new(meta: &FrameMeta, len: usize) -> Self {
        Self::of_meta(meta, len).unwrap_or_else(|| Self {
            shape: vec![len.cast_signed()],
            strides: vec![1],
            item: 1,
            format: c"B",
        })
    }

    /// Whether its C order is a Fortran order too.
    pub(super) fn is_f_contiguous(&self) -> bool {
        self.shape.iter().filter(|extent| **extent > 1).count() <= 1
    }

    fn of_meta(meta: &FrameMeta, len: usize) -> Option<Self> {
        let ndim = usize::from(meta.ndim);
        if ndim == 0 || ndim > MAX_DIMS {
            return None;
        }
        let format = dtype::format(meta.dtype)?;
        let item = meta.dtype.size();
        // Another process wrote this. An array that is not in C order becomes plain bytes.
        let mut bytes = item;
        for (extent, stride) in meta.shape.iter().zip(&meta.strides).take(ndim).rev() {
            if usize::try_from(*stride) != Ok(bytes) && *extent > 1 {
                return None;
            }
            bytes = bytes.checked_mul(usize::try_from(*extent).ok()?)?;
        }
        if bytes == 0 || bytes > len {
            return None;
        }
        Some(Self {
            shape: meta.shape[..ndim].iter().map(|n| *n as isize).collect(),
            strides: meta.strides[..ndim].iter().map(|n| *n as isize).collect(),
            item,
            format,
        })
    }
}

/// Sets shape and type, in C order.
pub(super) fn set_shape(meta: &mut FrameMeta, shape: &[u64], size: usize) -> PyResult<()> {
    if shape.len() > MAX_DIMS {
        return Err(PyValueError::new_err(format!(
            "a buffer has at most {MAX_DIMS} dimensions, and this shape has {}",
            shape.len()
        )));
    }
    let item = meta.dtype.size() as u64;
    let bytes = shape
        .iter()
        .try_fold(item, |n, extent| n.checked_mul(*extent));
    if bytes.is_none_or(|bytes| bytes > size as u64) {
        return Err(PyValueError::new_err(format!(
            "an array of shape {shape:?} and type {} does not fit into {size} bytes",
            dtype::name(meta.dtype)
        )));
    }
    meta.ndim = shape.len() as u8;
    let mut stride = item;
    for (at, extent) in shape.iter().enumerate().rev() {
        meta.shape[at] = *extent;
        meta.strides[at] = stride as i64;
        stride *= (*extent).max(1);
    }
    Ok(())
}
