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

/// The seals of memory that can neither shrink nor get holes.
pub const SEALED: SealFlags = SealFlags::SHRINK.union(SealFlags::FUTURE_WRITE);

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

/// Memory that stands for a DMA buffer: it can be written, and can neither shrink nor get holes.
pub fn dmabuf_memory(fill: u8, size: usize) -> gst::Memory {
    let fd = memfd(fill, size, SealFlags::empty());
    let seal = fd.try_clone().unwrap();
    let (fd, flags) = (fd.into_raw_fd(), FdMemoryFlags::KEEP_MAPPED);
    // SAFETY: as above. GStreamer's allocator takes any descriptor that can be mapped.
    let memory = unsafe { DmaBufAllocator::new().alloc_dmabuf_with_flags(fd, size, flags) };
    // It stays mapped for writing: the seal forbids further mappings of this kind.
    let memory = memory.unwrap().into_mapped_memory_writable();
    let memory = memory.unwrap_or_else(|_| panic!("it can be mapped"));
    fcntl_add_seals(&seal, SEALED).unwrap();
    memory.into_memory()
}

pub fn inode_of(memory: &gst::MemoryRef) -> u64 {
    inode(memory.downcast_memory_ref::<FdMemory>().unwrap().fd())
}
