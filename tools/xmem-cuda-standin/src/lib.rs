// SPDX-License-Identifier: MPL-2.0

//! A stand-in for `libcuda.so.1`. **Test code without a GPU**: it has the C interface of the part of NVIDIA's driver that xmem
//! uses, and implements the documented behaviour in host memory, including its inconvenient cases. No package contains it. Its
//! devices are called `xmem stand-in (no GPU)`.
//!
//! Programs under test load it as they load the driver: [`Machine`] creates a folder with `libcuda.so.1`, and prepares commands
//! that find it there. All processes with the same machine have the same devices.
//!
//! - The CPU cannot access memory by a device pointer: its pages have no access rights. The driver accesses the same bytes through
//!   a separate mapping.
//! - Work on streams is delayed, and copies are done in two halves, so that a missing wait results in a torn frame.
//! - Allocations and interprocess events are files in the machine's folder. A killed process only leaves files, whose locks the
//!   kernel has released.
//! - Calls are counted for each process, and forbidden calls are logged: [`Machine::calls`], [`Machine::violations`].
//!
//! The stand-in does not show the real driver's behaviour where its documentation leaves it open; see each module.

#[macro_use]
mod entry;
mod capture;
mod context;
mod copy;
mod device;
mod error;
mod event;
mod files;
mod host;
mod ipc;
mod kernel;
mod machine;
mod memory;
mod pools;
mod settings;
mod space;
mod stream;
mod trace;
mod unsupported;
mod video;
mod vmm;
mod work;

pub use machine::{Hold, Machine, is_held};

/// The name of every device.
pub const DEVICE_NAME: &str = "xmem stand-in (no GPU)";

/// Kernels for tests, as PTX. A real driver compiles it; the stand-in implements the same entry points natively.
///
/// - `xmem_fill(u64 pointer, u64 length, u32 byte, u32 pause)`: writes `byte` to all bytes, with a pause of `pause` µs after each
///   64 KiB
/// - `xmem_check(u64 pointer, u64 length, u32 byte, u64 result)`: adds the number of bytes that differ to the `u32` at `result`
/// - `xmem_sum(u64 pointer, u64 length, u64 result)`: stores the sum of all bytes as `u64`
/// - `xmem_end_lease(u64 word)`: stores 0 to the `u32` at `word`, after a system-wide fence
/// - `xmem_trap()`: stores to address 0, which puts the context in error
///
/// Each kernel runs in one thread: launch it with a grid and a block of 1. From 64 KiB on, `xmem_check`, and `xmem_fill` without a
/// pause, use units of 16 bytes, because a thread needs over 100 ns for each read.
pub const PTX: &str = include_str!("kernels.ptx");
