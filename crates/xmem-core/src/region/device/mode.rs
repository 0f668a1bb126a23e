// SPDX-License-Identifier: MPL-2.0

//! How device memory is shared.

/// How the memory of a pool's CUDA slots is shared.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Mode {
    /// By descriptor if the device can, else by legacy handle.
    #[default]
    Auto,
    /// By descriptor (virtual memory management): it lives for as long as anybody uses it, also when the producer was
    /// killed.
    Vmm,
    /// By legacy handle: it ends with the producer.
    Legacy,
}
