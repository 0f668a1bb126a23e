// SPDX-License-Identifier: MPL-2.0

//! The interfaces through which other libraries use an array.

pub(crate) mod buffer;
pub(crate) mod cuda;
pub(crate) mod dlpack;
pub(crate) mod numpy;
