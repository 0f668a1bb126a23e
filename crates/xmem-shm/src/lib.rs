// SPDX-License-Identifier: MPL-2.0

//! The memory that the processes of a pool share, and the system calls for it.
//!
//! [`protocol`] has the algorithms over references to atomics, [`abi`] the layout of the memory and the messages, [`os`] the
//! system calls, [`fault`] the points at which tests end a process. No module here depends on a producer or consumer: `xmem-core`
//! is the pool on top. This crate is a part of `xmem-core`, and has no stable interface of its own.

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

#[cfg(not(target_pointer_width = "64"))]
compile_error!(
    "xmem is for 64-bit machines only: others read 64-bit words from memory that they may not write in ways that Rust does not define"
);

#[cfg(not(xmem_loom))]
pub mod abi;
#[cfg(not(xmem_loom))]
pub mod bounds;
pub mod fault;
#[cfg(not(xmem_loom))]
pub mod lock;
#[cfg(not(xmem_loom))]
pub mod os;
#[cfg(not(xmem_loom))]
pub mod prefetch;
#[cfg(not(xmem_loom))]
pub mod printable;
pub mod protocol;
pub mod sync;
#[cfg(not(xmem_loom))]
#[doc(hidden)]
pub mod testing;
