// SPDX-License-Identifier: MPL-2.0

//! The interfaces through which other libraries use an array.

pub(crate) mod array_interface;
pub(crate) mod buffer;
pub(crate) mod dlpack;
