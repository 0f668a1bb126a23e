// SPDX-License-Identifier: MPL-2.0

//! A published frame as its readers have it. Nothing here knows which role keeps the frame where it is.

pub(crate) mod hold;
pub(crate) mod lease;
pub(crate) mod parts;
