// SPDX-License-Identifier: MPL-2.0

//! The CUDA driver for xmem. It is loaded at run time, and its absence causes no panic.
//!
//! There are three layers: the types are cudarc's, [`result`] calls the driver's functions by name, and the other modules
//! provide what `xmem-core` needs: devices, streams, events, shared memory, and actions in the order of a stream ([`when`]). No
//! module depends on pools. This crate is a part of `xmem-core`, and has no stable interface of its own.

#![warn(missing_docs)]
// Data from another process must not cause a panic.
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
mod host;
pub mod mark;
pub mod memory;
pub mod pending;
pub mod private;
pub mod reaper;
pub mod release_word;
pub mod result;
pub mod rows;
pub mod stream;
pub mod when;
