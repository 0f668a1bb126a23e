// SPDX-License-Identifier: MPL-2.0

//! System calls, and nothing that knows what they are for.

pub(crate) mod clock;
pub(crate) mod cred;
pub(crate) mod dmabuf;
pub(crate) mod eventfd;
pub(crate) mod fork;
pub(crate) mod futex;
pub(crate) mod lock;
pub(crate) mod mapping;
pub(crate) mod memfd;
mod probe;
pub(crate) mod socket;
pub(crate) mod thread;
