// SPDX-License-Identifier: MPL-2.0

//! GstCudaMemory in xmemsink and xmemsrc, with GStreamer's CUDA elements, between processes. The tests use the stand-in driver
//! `xmem-cuda-standin`, without a GPU. With GStreamer older than 1.24 they print that they did not run. `cargo xtask test` repeats
//! them with a newer version if it can.
#![cfg(feature = "cuda")]
#![allow(unreachable_pub)] // a program of its own

#[path = "../../crates/xmem-core/tests/support/child.rs"]
#[allow(dead_code, unsafe_code)]
mod child;
#[path = "../support/mod.rs"]
mod support;

mod actor;
mod bit_exact;
mod contexts;
mod figures;
mod foreign;
mod gstcuda;
mod lab;
mod late;
mod lifetime;
mod negotiation;
mod pictures;
mod read_only;
mod zero_copy;

/// Runs a role in a child process. Does nothing in a normal test run.
#[test]
fn child() {
    actor::play();
}
