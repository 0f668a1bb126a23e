// SPDX-License-Identifier: MPL-2.0

//! How device memory is shared.
#![allow(unreachable_pub)] // a build without CUDA has no module `cuda`, which is its face

/// How the memory of a pool's CUDA slots is shared.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Mode {
    /// By descriptor if the device can, else by legacy handle.
    #[default]
    Auto,
    /// By descriptor (virtual memory management): the memory exists while any process uses it, also when the producer was
    /// killed.
    Vmm,
    /// By legacy handle: it ends with the producer.
    Legacy,
}
