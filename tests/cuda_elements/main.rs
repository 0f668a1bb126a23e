// SPDX-License-Identifier: MPL-2.0

//! GstCudaMemory in xmemsink and xmemsrc, with GStreamer's own CUDA elements, between real processes. All of it runs on the
//! stand-in driver of `xmem-cuda-standin`: there is no GPU in these tests. Where GStreamer is older than 1.24 they print that
//! they did not run; `cargo xtask test` runs them again with a newer one, where it can.
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

/// Plays a part. Does nothing when the tests are run.
#[test]
fn child() {
    actor::play();
}
