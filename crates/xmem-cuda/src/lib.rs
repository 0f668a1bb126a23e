// SPDX-License-Identifier: MPL-2.0

//! The CUDA driver for xmem: loaded at run time, without a panic where there is none.
//!
//! Three floors: the types are cudarc's, [`result`] calls the driver's functions by name, and the rest is what `xmem-core`
//! builds on: devices, streams, events, memory that processes share, and an end in the order of a stream ([`when`]). Nothing
//! here knows a pool. This crate is a part of `xmem-core`, and has no stable interface of its own.

#![warn(missing_docs)]
// Nothing here panics on what another process wrote.
#![cfg_attr(
    not(test),
    deny(
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::panic,
        clippy::unreachable,
        clippy::unwrap_used
    )
)]

mod chars;
pub mod copy;
pub mod counts;
pub mod device;
mod driver;
pub mod error;
pub mod event;
pub mod host;
pub mod mark;
pub mod memory;
pub mod pending;
pub mod private;
pub mod reaper;
pub mod result;
pub mod rows;
pub mod stream;
pub mod when;
