// SPDX-License-Identifier: MPL-2.0

//! Checks CUDA devices and how their memory can be shared.

use super::finding::Finding;

const CHECK: &str = "CUDA";

#[cfg(feature = "cuda")]
pub(super) fn check() -> Vec<Finding> {
    use xmem_core::cuda::{devices, is_available};

    if !is_available() {
        return vec![Finding::ok(
            CHECK,
            "no driver (libcuda.so.1): frames are shared in host memory",
        )];
    }
    match devices() {
        Ok(devices) => devices
            .iter()
            .map(|device| {
                let way = if device.has_vmm() {
                    "by descriptor (vmm)"
                } else {
                    "by handle only (legacy)"
                };
                let what = format!(
                    "device {}: {}, shares memory {way}",
                    device.ordinal(),
                    device.name()
                );
                Finding::ok(CHECK, what)
            })
            .collect(),
        Err(error) => vec![Finding::warning(
            CHECK,
            format!("the driver cannot be used: {error}"),
            "Look at nvidia-smi; a container needs the NVIDIA container toolkit",
        )],
    }
}

#[cfg(not(feature = "cuda"))]
pub(super) fn check() -> Vec<Finding> {
    vec![Finding::ok(CHECK, "this build of xmem has no CUDA support")]
}
