// SPDX-License-Identifier: MPL-2.0

//! Memory with a separate descriptor.

// Wrapping a descriptor in a GstMemory is unsafe, because the descriptor must be valid.
#![allow(unsafe_code)]
// Each test program uses a part of this module.
#![allow(dead_code, unreachable_pub)]

use std::{
    fs::File,
    os::{
        fd::{IntoRawFd, OwnedFd},
        unix::fs::FileExt,
    },
};

use gst_allocators::{DmaBufAllocator, FdAllocator, FdMemory, FdMemoryFlags, prelude::*};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fstat, memfd_create};

pub fn memfd(fill: u8, size: usize, seals: SealFlags) -> OwnedFd {
    let fd = memfd_create("theirs", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
    let file = File::from(fd);
    file.write_all_at(&vec![fill; size], 0).unwrap();
    let fd = OwnedFd::from(file);
    fcntl_add_seals(&fd, seals).unwrap();
    fd
}

fn inode(fd: i32) -> u64 {
    // SAFETY: of a memory that the caller has.
    fstat(unsafe { std::os::fd::BorrowedFd::borrow_raw(fd) })
        .unwrap()
        .st_ino
}

pub fn fd_memory(fd: OwnedFd, size: usize) -> gst::Memory {
    // SAFETY: the memory takes over the descriptor, which has that many bytes.
    unsafe { FdAllocator::new().alloc_fd(fd.into_raw_fd(), size, FdMemoryFlags::empty()) }.unwrap()
}

pub fn dmabuf_memory(fd: OwnedFd, size: usize) -> gst::Memory {
    // SAFETY: as above. GStreamer's allocator takes any descriptor that can be mapped.
    unsafe { DmaBufAllocator::new().alloc_dmabuf(fd, size) }.unwrap()
}

pub fn inode_of(memory: &gst::MemoryRef) -> u64 {
    inode(memory.downcast_memory_ref::<FdMemory>().unwrap().fd())
}
