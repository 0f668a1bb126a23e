// SPDX-License-Identifier: MPL-2.0

//! CUDA frames between processes, on the stand-in driver `xmem-cuda-standin`, without a GPU.
#![allow(unsafe_code, unreachable_pub)] // calls of the driver, as programs make them; a program of its own

#[path = "../support/mod.rs"]
mod support;

#[cfg(any(feature = "fault-points", debug_assertions))]
mod buffer_steps;
mod buffers;
mod captures;
mod contexts;
mod deaths;
mod design;
#[cfg(any(feature = "fault-points", debug_assertions))]
mod faults;
mod foreign;
mod forged;
mod gpu;
mod hand_over;
mod lab;
mod namespaces;
mod refusals;
mod roles;
mod words;

#[test]
fn child() {
    roles::play();
}
