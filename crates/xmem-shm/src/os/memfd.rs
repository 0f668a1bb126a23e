// SPDX-License-Identifier: MPL-2.0

//! Anonymous memory with a descriptor. It is reserved, so that no access causes SIGBUS, and sealed against resizing.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::OnceLock;

use rustix::fs::{
    FallocateFlags, MemfdFlags, Mode, OFlags, SealFlags, Stat, fallocate, fchmod, fcntl_add_seals,
    fcntl_get_seals, fstat, fstatfs, ftruncate, memfd_create, open,
};
use rustix::io::{Errno, retry_on_intr};
use rustix::process::{Resource, getrlimit};

use super::mapping::{Access, Mapping};
use super::probe;
use crate::fault::{self, Point};

/// The type of the file system of memory in huge pages.
const HUGETLBFS_MAGIC: u32 = 0x9584_58f6;
const RESERVE_STEP: usize = 8 << 20;

/// Creates `len` bytes of reserved zeros. Seals nothing.
pub fn create(name: &str, len: usize) -> io::Result<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    fault::call(Point::MemfdCreate)?;
    // Kernels before 6.3 have no NOEXEC_SEAL.
    let fd = memfd_create(name, flags | MemfdFlags::NOEXEC_SEAL).or_else(|error| {
        if error == Errno::INVAL {
            memfd_create(name, flags)
        } else {
            Err(error)
        }
    })?;
    fault::point(Point::MemfdCreated);
    reserve(&fd, len)?;
    Ok(fd)
}

/// Checks whether this process may create a file of this size. Above the limit (RLIMIT_FSIZE, which also applies to files in
/// memory) the kernel sends SIGXFSZ, which ends the process.
pub fn check_file_size(len: usize) -> io::Result<()> {
    match getrlimit(Resource::Fsize).current {
        Some(limit) if len as u64 > limit => Err(io::Error::new(
            io::ErrorKind::FileTooLarge,
            format!(
                "this process may make no files larger than {limit} bytes: raise RLIMIT_FSIZE (ulimit -f)"
            ),
        )),
        _ => Ok(()),
    }
}

/// Reserves memory for the first `len` bytes of a file.
pub fn reserve(fd: impl AsFd, len: usize) -> io::Result<()> {
    check_file_size(len)?;
    if len as u64 > all_memory() {
        // The kernel would try, and the OOM killer would end a process.
        return Err(Errno::NOMEM.into());
    }
    // In steps: a signal undoes the step that it interrupts, so with a profiler's timer a large step would never end.
    for start in (0..len).step_by(RESERVE_STEP) {
        fault::call(Point::Fallocate)?;
        let step = RESERVE_STEP.min(len - start);
        retry_on_intr(|| fallocate(&fd, FallocateFlags::empty(), start as u64, step as u64))?;
    }
    Ok(())
}

/// The machine's memory and swap, in bytes.
fn all_memory() -> u64 {
    let info = rustix::system::sysinfo();
    let units = info.totalram.saturating_add(info.totalswap);
    units.saturating_mul(info.mem_unit.into())
}

/// The operations that remain possible.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Seal {
    /// Write through mappings, but not resize.
    Size,
    /// Like `Size`, and write only through existing mappings.
    SizeAndFutureWrites,
    /// Only read.
    Everything,
}

/// Seals a descriptor against shrinking only, which DMA buffers of it require.
pub fn seal_shrinking(fd: impl AsFd) -> io::Result<()> {
    Ok(fcntl_add_seals(fd, SealFlags::SHRINK)?)
}

/// Seals a descriptor, also against further seals.
pub fn seal(fd: impl AsFd, seal: Seal) -> io::Result<()> {
    let size = SealFlags::GROW | SealFlags::SHRINK | SealFlags::SEAL;
    let seals = match seal {
        Seal::Size => size,
        Seal::SizeAndFutureWrites => size | SealFlags::FUTURE_WRITE,
        Seal::Everything => size | SealFlags::WRITE,
    };
    fcntl_add_seals(fd, seals)?;
    fault::point(Point::Sealed);
    Ok(())
}

/// A descriptor for processes that may only read memory that is sealed against future writes. It is the same descriptor if the
/// seal works.
///
/// gVisor accepts the seal and does not enforce it (as of 2026). There the result is a descriptor that cannot write. A process
/// of the same user, or of root, can reopen it and write nevertheless.
pub fn for_reading(fd: OwnedFd) -> io::Result<OwnedFd> {
    if future_writes_are_refused()? {
        Ok(fd)
    } else {
        without_writing(&fd)
    }
}

/// A descriptor of the same memory that cannot write, and that other users cannot reopen for writing.
fn without_writing(fd: &OwnedFd) -> io::Result<OwnedFd> {
    fchmod(fd, Mode::RUSR)?;
    let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
    Ok(open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?)
}

fn future_writes_are_refused() -> io::Result<bool> {
    const LEN: usize = 4096;
    static REFUSED: OnceLock<bool> = OnceLock::new();
    probe::once(&REFUSED, || {
        let fd = memfd_create(
            "xmem-probe",
            MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING,
        )?;
        ftruncate(&fd, LEN as u64)?;
        fcntl_add_seals(&fd, SealFlags::FUTURE_WRITE)?;
        match Mapping::new(&fd, LEN, Access::ReadWrite) {
            Ok(_) => Ok(false),
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Ok(true),
            // Another error does not show whether the seal works.
            Err(error) => Err(error),
        }
    })
}

/// The size of memory from a peer, if accesses to it are safe: the requested seals are set, and all of it is reserved. An
/// access to a hole would allocate memory for the accessing process.
pub fn sealed_len(fd: impl AsFd, seal: Seal) -> Result<usize, &'static str> {
    let seals = fcntl_get_seals(&fd);
    let seals = seals.map_err(why_unchecked("it is not memory that can be sealed"))?;
    if !seals.contains(SealFlags::SHRINK) {
        return Err("it is not sealed against truncation");
    }
    // Without this seal, its creator could punch holes.
    let frozen = SealFlags::FUTURE_WRITE | SealFlags::WRITE;
    if seal != Seal::Size && !seals.intersects(frozen) {
        return Err("it is not sealed against writing");
    }
    // Only whole huge pages can be unmapped, and only the owner knows their size.
    let file_system = fstatfs(&fd).map_err(why_unchecked("it has no file system"))?;
    if file_system.f_type as u32 == HUGETLBFS_MAGIC {
        return Err("it consists of huge pages");
    }
    let stat = fstat(&fd).map_err(why_unchecked("it has no size"))?;
    reserved_len(&stat)
}

/// Why memory from a peer cannot be checked: `reason`, unless a sandbox refuses the system call.
fn why_unchecked(reason: &'static str) -> impl FnOnce(Errno) -> &'static str {
    move |errno| match errno {
        Errno::PERM | Errno::NOSYS => {
            "it cannot be checked, because a sandbox of this process forbids fcntl, fstat or fstatfs"
        }
        _ => reason,
    }
}

/// The size of a file that is fully allocated.
pub fn reserved_len(stat: &Stat) -> Result<usize, &'static str> {
    let len = usize::try_from(stat.st_size).map_err(|_| "it has no size")?;
    // Blocks have 512 bytes, independent of the file system.
    let reserved = u64::try_from(stat.st_blocks).unwrap_or(0);
    if reserved.saturating_mul(512) < len as u64 {
        return Err("its memory is not reserved");
    }
    Ok(len)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Part of a huge page stays mapped when the rest of it is unmapped.
    #[test]
    fn memory_in_huge_pages_is_refused() {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING | MemfdFlags::HUGETLB;
        let Ok(fd) = memfd_create("xmem-test", flags) else {
            eprintln!("not run: this kernel has no huge pages");
            return;
        };
        seal(&fd, Seal::SizeAndFutureWrites).unwrap();
        let refused = sealed_len(&fd, Seal::Size);
        assert_eq!(refused, Err("it consists of huge pages"));
    }

    #[test]
    fn a_descriptor_without_writing_only_reads() {
        const LEN: usize = 8192;
        let fd = create("xmem-test", LEN).unwrap();
        seal(&fd, Seal::Size).unwrap();
        rustix::io::pwrite(&fd, b"frame", 0).unwrap();
        let reader = without_writing(&fd).unwrap();
        assert_eq!(sealed_len(&reader, Seal::Size), Ok(LEN));
        let mut read = [0; 5];
        rustix::io::pread(&reader, &mut read, 0).unwrap();
        assert_eq!(&read, b"frame");
        assert!(Mapping::new(&reader, LEN, Access::Read).is_ok());
        assert!(Mapping::new(&reader, LEN, Access::ReadWrite).is_err());
        assert!(rustix::io::pwrite(&reader, b"x", 0).is_err());
        assert_eq!(fstat(&reader).unwrap().st_mode & 0o777, 0o400);
    }
}
