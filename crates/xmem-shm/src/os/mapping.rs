// SPDX-License-Identifier: MPL-2.0

//! Mappings of shared memory. All references into them are to atomics, because other processes write there.
#![allow(unsafe_code)] // mmap, and references into the mapping

use std::ffi::c_void;
use std::io;
use std::mem;
use std::os::fd::AsFd;
use std::ptr::{self, NonNull};

use super::fork::ProcessId;
use crate::bounds::is_range_inside;
use crate::fault::{self, Point};
use crate::sync::{AtomicU32, AtomicU64, Ordering};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, munmap};

/// The access of a mapping.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Loads only.
    Read,
    /// Loads and stores.
    ReadWrite,
}

/// A shared mapping of the first `len` bytes of a descriptor.
#[derive(Debug)]
pub struct Mapping {
    ptr: NonNull<u8>,
    len: usize,
    /// The process of the mapping, if forked children do not inherit it.
    only_in: Option<ProcessId>,
}

// SAFETY: a mapping is plain memory without thread affinity. All access through it is atomic or by raw pointer.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

#[allow(clippy::len_without_is_empty)] // no mapping is empty
impl Mapping {
    /// Maps a descriptor. Its pages are added to the page table at once, so that the first accesses do not fault.
    pub fn new(fd: impl AsFd, len: usize, access: Access) -> io::Result<Self> {
        Self::with(fd, len, access, MapFlags::SHARED | MapFlags::POPULATE)
    }

    /// Maps a descriptor for reading. A page is added to the page table, with those around it, when it is read first. For memory
    /// of which a process may read little.
    pub fn when_read(fd: impl AsFd, len: usize) -> io::Result<Self> {
        Self::with(fd, len, Access::Read, MapFlags::SHARED)
    }

    fn with(fd: impl AsFd, len: usize, access: Access, flags: MapFlags) -> io::Result<Self> {
        let prot = match access {
            Access::Read => ProtFlags::READ,
            Access::ReadWrite => ProtFlags::READ | ProtFlags::WRITE,
        };
        fault::call(Point::Mmap)?;
        // SAFETY: a new mapping at an address that the kernel chooses overlaps nothing.
        let ptr = unsafe { mmap(ptr::null_mut(), len, prot, flags, fd, 0) }?;
        fault::point(Point::Mapped);
        let ptr = NonNull::new(ptr.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self {
            ptr,
            len,
            only_in: None,
        })
    }

    /// Excludes the mapping from processes that are forked from this one.
    pub fn keep_from_children(&mut self) -> io::Result<()> {
        // SAFETY: the range is this mapping, and DONTFORK does not change it in this process.
        unsafe {
            madvise(
                self.ptr.as_ptr().cast::<c_void>(),
                self.len,
                Advice::LinuxDontFork,
            )
        }?;
        self.only_in = Some(ProcessId::current());
        Ok(())
    }

    /// Accesses every page, so that the kernel clears it now and not later. Only for a new mapping that no other process has.
    pub fn touch(&self) {
        let words = self.words64(0, self.len / 8);
        for word in words.iter().step_by(rustix::param::page_size() / 8) {
            word.store(0, Ordering::Relaxed);
        }
    }

    /// The first byte. Other processes may write there at any time.
    #[inline]
    pub fn ptr(&self) -> *mut u8 {
        self.ptr.as_ptr()
    }

    /// Size in bytes.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// `count` words from byte `offset` on; empty if they are not inside of the mapping.
    #[inline]
    pub fn words64(&self, offset: usize, count: usize) -> &[AtomicU64] {
        match self.range::<AtomicU64>(offset, count) {
            // SAFETY: in range and aligned (checked), valid while `self` is borrowed, and every bit pattern is a valid
            // AtomicU64. On read-only mappings callers use only relaxed loads, which Rust defines there.
            Some(ptr) => unsafe { std::slice::from_raw_parts(ptr, count) },
            None => &[],
        }
    }

    /// Like `words64`, for 32-bit words.
    #[inline]
    pub fn words32(&self, offset: usize, count: usize) -> &[AtomicU32] {
        match self.range::<AtomicU32>(offset, count) {
            // SAFETY: as in `words64`.
            Some(ptr) => unsafe { std::slice::from_raw_parts(ptr, count) },
            None => &[],
        }
    }

    #[inline]
    fn range<T>(&self, offset: usize, count: usize) -> Option<*const T> {
        let size = count.checked_mul(mem::size_of::<T>())?;
        (is_range_inside(offset as u64, size as u64, self.len as u64)
            && offset.is_multiple_of(mem::align_of::<T>()))
        .then(|| self.ptr.as_ptr().wrapping_add(offset).cast_const().cast())
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // In a forked child without the mapping, the address may be used for something else.
        if self.only_in.is_some_and(|process| !process.is_current()) {
            return;
        }
        // SAFETY: mapped by `new` with this length. References into it borrow `self`, so there are none left.
        let _ = unsafe { munmap(self.ptr.as_ptr().cast(), self.len) };
        fault::point(Point::Unmapped);
    }
}
