// SPDX-License-Identifier: MPL-2.0

//! Buffers by number.

mod cuda;
mod errors;
mod guard;
mod pool;

pub(crate) use guard::BufferGuard;
pub(crate) use pool::BufferPool;
