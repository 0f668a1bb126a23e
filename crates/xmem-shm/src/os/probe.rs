// SPDX-License-Identifier: MPL-2.0

//! Properties of the kernel that are tested once in a process.

use std::io;
use std::sync::OnceLock;

/// The known result, otherwise a new one from `probe`. A failure is not stored.
pub(super) fn once(
    known: &OnceLock<bool>,
    find: impl FnOnce() -> io::Result<bool>,
) -> io::Result<bool> {
    match known.get() {
        Some(known) => Ok(*known),
        None => find().map(|found| *known.get_or_init(|| found)),
    }
}
