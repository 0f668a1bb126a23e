// SPDX-License-Identifier: MPL-2.0

//! A published frame for readers. This module does not depend on the role that holds the frame.

pub(crate) mod dmabuf;
pub(crate) mod forwarded;
pub(crate) mod hold;
pub(crate) mod lease;
pub(crate) mod parts;
