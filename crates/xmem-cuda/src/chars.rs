// SPDX-License-Identifier: MPL-2.0

//! Bytes of the C type `char`, which is signed on x86-64 and unsigned on 64-bit ARM.

use std::ffi::c_char;

/// The bytes of `chars`.
pub(crate) fn bytes<const N: usize>(chars: [c_char; N]) -> [u8; N] {
    chars.map(|char| char.to_ne_bytes()[0])
}

/// The `char`s of `bytes`.
pub(crate) fn chars<const N: usize>(bytes: [u8; N]) -> [c_char; N] {
    bytes.map(|byte| c_char::from_ne_bytes([byte]))
}
