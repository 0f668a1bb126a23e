// SPDX-License-Identifier: MPL-2.0

//! What of `BufferPool` and `BufferGuard` needs a CUDA device. All of it is here, whether or not there is one: without, each
//! says so.

use pyo3::prelude::*;
use xmem_core as core;

use super::guard::BufferGuard;
use crate::errors::Kind;

/// Why nothing here works.
fn no_cuda(what: &str) -> PyErr {
    Kind::NoCuda.error(format!(
        "{what} needs CUDA, and this build of xmem has none: use the *_cpu calls"
    ))
}

pub(super) fn preallocate(
    _py: Python<'_>,
    _pool: &core::BufferPool,
    _size: usize,
    _count: usize,
    _device_id: i32,
) -> PyResult<Vec<u32>> {
    Err(no_cuda("preallocate_cuda"))
}

pub(super) fn acquire(
    _py: Python<'_>,
    _pool: core::BufferPool,
    _size: usize,
    _device_id: i32,
) -> PyResult<BufferGuard> {
    Err(no_cuda("acquire_cuda"))
}

pub(super) fn ptr(_guard: &core::BufferGuard) -> PyResult<u64> {
    Err(no_cuda("cuda_ptr"))
}

pub(super) fn ptr_mut(_guard: &mut core::BufferGuard) -> PyResult<u64> {
    Err(no_cuda("cuda_ptr_mut"))
}

pub(super) fn copy_to_device(
    _py: Python<'_>,
    _pool: &core::BufferPool,
    _guard: &core::BufferGuard,
    _device_id: i32,
) -> PyResult<BufferGuard> {
    Err(no_cuda("copy_to_cuda"))
}
