// SPDX-License-Identifier: MPL-2.0

//! A published frame as its readers have it. This module does not depend on the role that keeps the frame in place.

pub(crate) mod description;
pub(crate) mod hold;
pub(crate) mod lease;
pub(crate) mod parts;
