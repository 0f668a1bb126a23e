// SPDX-License-Identifier: MPL-2.0

//! Random numbers.

use rustix::rand::{GetRandomFlags, getrandom};

/// A random number.
pub fn u64() -> u64 {
    let mut bytes = [0; 8];
    match getrandom(&mut bytes, GetRandomFlags::empty()) {
        Ok(8) => u64::from_ne_bytes(bytes),
        // Only before the kernel has enough entropy at boot. The time is unique enough for names.
        _ => crate::os::clock::monotonic_ns().cast_unsigned(),
    }
}
