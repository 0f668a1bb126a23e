// SPDX-License-Identifier: MPL-2.0

//! A memory mapping for the ring.

#![allow(unsafe_code)]

use std::os::fd::BorrowedFd;
use std::{ptr, slice};

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use crate::Error;

/// A mapping of a whole shared memory file.
pub(super) struct Mapping {
    start: *mut u8,
    len: usize,
    is_writable: bool,
}

// SAFETY: the mapping is not bound to a thread.
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
        // SAFETY: the kernel chooses the address of the new mapping, so it overlaps no other mapping.
        let start = unsafe { mmap(ptr::null_mut(), len, access, MapFlags::SHARED, memory, 0)? };
        Ok(Self {
            start: start.cast(),
            len,
            is_writable,
        })
    }

    pub(super) fn bytes(&self) -> &[u8] {
        // SAFETY: the memory is mapped readable while `self` exists. The sender overwrites a slot after seven other frames; the
        // benchmark does not check that it was read.
        unsafe { slice::from_raw_parts(self.start, self.len) }
    }

    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        assert!(self.is_writable, "mapped for reading only");
        // SAFETY: the memory is mapped writable while `self` exists. Receivers read other slots.
        unsafe { slice::from_raw_parts_mut(self.start, self.len) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: slices borrow `self`, so none of them exists any more.
        let _ = unsafe { munmap(self.start.cast(), self.len) };
    }
}
