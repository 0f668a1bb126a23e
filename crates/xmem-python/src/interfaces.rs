// SPDX-License-Identifier: MPL-2.0

//! The ways in which other libraries take an array.

pub(crate) mod buffer;
pub(crate) mod cuda;
pub(crate) mod dlpack;
pub(crate) mod numpy;
