// SPDX-License-Identifier: MPL-2.0

//! What the kernel does, tried once in a process.

use std::io;
use std::sync::OnceLock;

/// What is known, or else is found out now. A failure says nothing, and is not kept.
pub(super) fn once(
    known: &OnceLock<bool>,
    find: impl FnOnce() -> io::Result<bool>,
) -> io::Result<bool> {
    match known.get() {
        Some(known) => Ok(*known),
        None => find().map(|found| *known.get_or_init(|| found)),
    }
}
