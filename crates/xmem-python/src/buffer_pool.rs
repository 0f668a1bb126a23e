// SPDX-License-Identifier: MPL-2.0

//! Buffers by number.

mod cuda;
mod errors;
mod guard;
mod pool;
mod reader;

pub(crate) use guard::BufferGuard;
pub(crate) use pool::BufferPool;
pub(crate) use reader::Reader;
