// SPDX-License-Identifier: MPL-2.0

use rustix::rand::{GetRandomFlags, getrandom};

/// A number nobody else has.
pub fn u64() -> u64 {
    let mut bytes = [0; 8];
    match getrandom(&mut bytes, GetRandomFlags::empty()) {
        Ok(8) => u64::from_ne_bytes(bytes),
        // Only before the kernel has gathered entropy at boot; the clock tells apart what has to be told apart.
        _ => crate::os::clock::monotonic_ns().cast_unsigned(),
    }
}
