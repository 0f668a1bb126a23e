// SPDX-License-Identifier: MPL-2.0

//! A descriptor that is made readable to wake a thread that polls it.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::event::EventfdFlags;

/// Creates one that is not readable.
pub fn new() -> io::Result<OwnedFd> {
    let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
    Ok(rustix::event::eventfd(0, flags)?)
}

/// Makes it readable.
pub fn ring(fd: impl AsFd) {
    // It fails only if the counter is full, and then it is already readable.
    let _ = rustix::io::write(fd, &1u64.to_ne_bytes());
}

/// Makes it unreadable until `ring`.
pub fn silence(fd: impl AsFd) {
    let _ = rustix::io::read(fd, &mut [0; 8]);
}
