// SPDX-License-Identifier: MPL-2.0

//! DMA buffers over parts of a memfd, made by the kernel's device udmabuf.
#![allow(unsafe_code)] // ioctl

use std::ffi::c_void;
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

use rustix::fs::{Mode, OFlags, open};
use rustix::ioctl::{Ioctl, IoctlOutput, Opcode, ioctl, opcode};

/// The device that makes DMA buffers.
#[derive(Debug)]
pub struct Udmabuf(OwnedFd);

/// `struct udmabuf_create` of linux/udmabuf.h.
#[repr(C)]
struct Create {
    memfd: u32,
    flags: u32,
    offset: u64,
    size: u64,
}

const UDMABUF_CREATE: Opcode = opcode::write::<Create>(b'u', 0x42);
const UDMABUF_FLAGS_CLOEXEC: u32 = 1;

// SAFETY: the opcode is that of the structure, which the kernel only reads. The result is a new descriptor.
unsafe impl Ioctl for Create {
    type Output = OwnedFd;
    const IS_MUTATING: bool = false;

    fn opcode(&self) -> Opcode {
        UDMABUF_CREATE
    }

    fn as_ptr(&mut self) -> *mut c_void {
        (&raw mut *self).cast()
    }

    unsafe fn output_from_ptr(fd: IoctlOutput, _: *mut c_void) -> rustix::io::Result<OwnedFd> {
        // SAFETY: the ioctl succeeded, so it made this descriptor, and nothing else has it.
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    }
}

impl Udmabuf {
    /// Opens the device.
    pub fn open() -> io::Result<Self> {
        let flags = OFlags::RDWR | OFlags::CLOEXEC;
        Ok(Self(open("/dev/udmabuf", flags, Mode::empty())?))
    }

    /// A DMA buffer of a part of a memfd, in whole pages. The memfd is sealed against shrinking and not yet against writing,
    /// and every page of the part was accessed before: otherwise the kernel clears the page at its first access, with what a
    /// device wrote there. Whoever has the descriptor can write, whatever the memfd's seals are.
    pub fn make(&self, memfd: impl AsFd, offset: usize, len: usize) -> io::Result<OwnedFd> {
        let create = Create {
            memfd: memfd.as_fd().as_raw_fd().cast_unsigned(),
            flags: UDMABUF_FLAGS_CLOEXEC,
            offset: offset as u64,
            size: len as u64,
        };
        // SAFETY: the kernel fails for descriptors of another kind, and checks the range.
        Ok(unsafe { ioctl(&self.0, create) }?)
    }
}
