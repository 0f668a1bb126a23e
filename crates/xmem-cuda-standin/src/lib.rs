// SPDX-License-Identifier: MPL-2.0

//! A stand-in for `libcuda.so.1`. **Test code, and no GPU**: it has the C interface of the part of NVIDIA's driver that
//! xmem uses, and does over host memory what the driver's documentation describes, also where that is inconvenient. Nothing
//! that is shipped contains it, and its devices are called `xmem stand-in (no GPU)`.
//!
//! Programs under test load it as they would load the driver: [`Machine`] makes a folder with `libcuda.so.1` in it, and
//! prepares commands that find it there. All processes with the same machine see the same devices.
//!
//! - A device pointer cannot be dereferenced by the CPU: its pages have no access. The driver reaches the same bytes
//!   through a mapping of its own.
//! - Work on streams is late on purpose, and copies happen in two halves, so that a missing wait shows as a torn frame.
//! - Allocations and interprocess events are files in the machine's folder. A killed process leaves files and locks that
//!   the kernel has released, nothing else.
//! - Each call is counted for each process, and what is forbidden is written to a log: [`Machine::calls`],
//!   [`Machine::violations`].
//!
//! The real driver's behaviour where its documentation is silent is not known here; see each module.

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

/// Kernels for tests, as PTX: a real driver compiles it, the stand-in knows the same entry names natively.
///
/// - `xmem_fill(u64 pointer, u64 length, u32 byte, u32 pause)`: write `byte` everywhere; `pause` (in µs) after each 64 KiB;
/// - `xmem_check(u64 pointer, u64 length, u32 byte, u64 result)`: add to the `u32` at `result` how many bytes differ;
/// - `xmem_sum(u64 pointer, u64 length, u64 result)`: store the sum of all bytes, as `u64`;
/// - `xmem_end_lease(u64 word)`: after a fence for the whole system, store 0 to the `u32` at `word`;
/// - `xmem_trap()`: store to address 0, which leaves the context in error.
///
/// Each runs in one thread: launch it with a grid and a block of 1.
pub const PTX: &str = include_str!("kernels.ptx");
