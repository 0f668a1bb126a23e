// SPDX-License-Identifier: MPL-2.0

//! System calls. Nothing here depends on how they are used.

pub mod clock;
pub mod cred;
pub mod dmabuf;
pub mod eventfd;
pub mod fork;
pub mod futex;
pub mod lock;
pub mod mapping;
pub mod memfd;
mod probe;
pub mod random;
pub mod sealed;
pub mod socket;
pub mod thread;
pub mod udmabuf;
pub mod wake_socket;
