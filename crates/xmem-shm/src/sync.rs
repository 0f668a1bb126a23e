// SPDX-License-Identifier: MPL-2.0

//! The only import of atomics, so that loom can replace them.
//!
//! Accesses to shared memory are `Relaxed`, with separate fences. On memory that is mapped read-only, Rust defines only relaxed
//! loads, and loom supports `fence(SeqCst)` but not `SeqCst` accesses.

#[cfg(not(xmem_loom))]
pub use std::hint::spin_loop;
#[cfg(not(xmem_loom))]
pub use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

#[cfg(xmem_loom)]
pub use loom::hint::spin_loop;
#[cfg(xmem_loom)]
pub use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
