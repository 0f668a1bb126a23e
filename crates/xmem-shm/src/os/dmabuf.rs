// SPDX-License-Identifier: MPL-2.0

//! DMA buffers: memory of a device with a descriptor and a fixed size.
#![allow(unsafe_code)] // ioctl

use std::io;
use std::os::fd::AsFd;

use rustix::fs::{SeekFrom, fstatfs, seek};
use rustix::ioctl::{Setter, ioctl, opcode};

/// DMA_BUF_MAGIC of linux/magic.h.
const MAGIC: i64 = 0x444d_4142;

/// `struct dma_buf_sync` and its ioctl, from linux/dma-buf.h.
type Sync = u64;
const DMA_BUF_IOCTL_SYNC: rustix::ioctl::Opcode = opcode::write::<Sync>(b'b', 0);
const SYNC_READ: Sync = 1;
const SYNC_END: Sync = 1 << 2;

/// The size of a DMA buffer in bytes. `None`: the descriptor is of another kind.
pub fn len(fd: impl AsFd) -> io::Result<Option<usize>> {
    #[allow(clippy::unnecessary_cast)] // its type depends on the platform
    if fstatfs(&fd)?.f_type as i64 != MAGIC {
        return Ok(None);
    }
    // The offset of a DMA buffer has no meaning, so it may be moved.
    let len = seek(&fd, SeekFrom::End(0))?;
    Ok(usize::try_from(len).ok())
}

/// Call this before the CPU reads data that a device wrote. Waits for the device.
pub fn begin_read(fd: impl AsFd) -> io::Result<()> {
    sync(fd, SYNC_READ)
}

/// Call this after the CPU has read.
pub fn end_read(fd: impl AsFd) -> io::Result<()> {
    sync(fd, SYNC_READ | SYNC_END)
}

fn sync(fd: impl AsFd, flags: Sync) -> io::Result<()> {
    rustix::io::retry_on_intr(|| {
        // SAFETY: the ioctl takes the address of a `dma_buf_sync`, which is one word, and only reads it. It fails for other
        // descriptors.
        unsafe { ioctl(&fd, Setter::<DMA_BUF_IOCTL_SYNC, Sync>::new(flags)) }
    })?;
    Ok(())
}
