// SPDX-License-Identifier: MPL-2.0

//! Mapped memory for the ring.

#![allow(unsafe_code)]

use std::os::fd::BorrowedFd;
use std::{ptr, slice};

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use crate::Error;

/// Shared memory, all of it.
pub(super) struct Mapping {
    start: *mut u8,
    len: usize,
    is_writable: bool,
}

// SAFETY: nothing in it belongs to a thread.
unsafe impl Send for Mapping {}

impl Mapping {
    pub(super) fn new(
        memory: BorrowedFd<'_>,
        len: usize,
        is_writable: bool,
    ) -> Result<Self, Error> {
        let mut access = ProtFlags::READ;
        if is_writable {
            access |= ProtFlags::WRITE;
        }
        // SAFETY: a new mapping at a place of the kernel's choice overlaps no other.
        let start = unsafe { mmap(ptr::null_mut(), len, access, MapFlags::SHARED, memory, 0)? };
        Ok(Self {
            start: start.cast(),
            len,
            is_writable,
        })
    }

    pub(super) fn bytes(&self) -> &[u8] {
        // SAFETY: mapped for reading for as long as we live. The sender writes it again only seven frames later;
        // nothing checks more than that.
        unsafe { slice::from_raw_parts(self.start, self.len) }
    }

    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        assert!(self.is_writable, "mapped for reading only");
        // SAFETY: mapped for writing for as long as we live; receivers read what was sent, which is elsewhere.
        unsafe { slice::from_raw_parts_mut(self.start, self.len) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: no slice of it exists any more.
        let _ = unsafe { munmap(self.start.cast(), self.len) };
    }
}
