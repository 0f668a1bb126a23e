// SPDX-License-Identifier: MPL-2.0

//! Checks CUDA devices and how their memory can be shared.

use super::finding::Finding;

const CHECK: &str = "CUDA";

#[cfg(feature = "cuda")]
pub(super) fn check() -> Vec<Finding> {
    use xmem_core::cuda::{CudaError, device_count, devices};

    let lacks = match device_count() {
        Err(CudaError::NoDriver { reason }) => Some(format!("no driver to use ({reason})")),
        Ok(0) => Some("no device".to_owned()),
        _ => None,
    };
    if let Some(lacks) = lacks {
        return vec![Finding::ok(
            CHECK,
            format!("{lacks}: frames are shared in host memory"),
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
