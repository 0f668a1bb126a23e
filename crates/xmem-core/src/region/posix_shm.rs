// SPDX-License-Identifier: MPL-2.0

//! Named segments under /dev/shm, through the crate `shared_memory`.
//!
//! They cannot be sealed, and they remain after their owner is killed. The owner holds a lock (flock) on each segment while it
//! lives. Any process of the same user may remove a segment without a lock.
#![allow(unsafe_code)] // a handle of shared_memory holds a raw pointer, so it is not Send

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, FlockOperation, Mode, OFlags, flock, fstat, open};
use rustix::io::{Errno, retry_on_intr};
use rustix::shm;
use shared_memory::{Shmem, ShmemConf, ShmemError};
use xmem_shm::fault::{self, Point};
use xmem_shm::os::cred::own_uid;
use xmem_shm::os::fork::{KeptFromChildren, ProcessId};
use xmem_shm::os::mapping::Mapping;
use xmem_shm::os::memfd;

use super::imported::{check_len, system};
use crate::error::RegionError;

const DIR: &str = "/dev/shm";

/// Another process may have put a link or a FIFO there. A link is not followed, and a FIFO is not waited for.
const READ: OFlags = OFlags::RDONLY
    .union(OFlags::CLOEXEC)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::NONBLOCK);

/// How often a segment is created again, if another process removes it before it is locked.
const TRIES: u32 = 5;

/// Prefix of the names of all segments of this user.
fn prefix_of_all() -> String {
    format!("xmem-{}-", own_uid())
}

/// The prefix of the names of a pool's segments: a hash of the directory's identity and the socket's name. So it does not
/// depend on the spelling of the path, or on where the directory is mounted.
pub(crate) fn prefix(socket: &Path) -> String {
    let dir = match socket.parent() {
        Some(dir) if !dir.as_os_str().is_empty() => dir,
        _ => Path::new("."),
    };
    let place = fs::metadata(dir).map_or((0, 0), |meta| (meta.dev(), meta.ino()));
    let name = socket.file_name().unwrap_or_default().as_encoded_bytes();
    // FNV-1a. If two pools have the same prefix, the locks still protect their segments.
    let hash = [place.0.to_le_bytes(), place.1.to_le_bytes()]
        .iter()
        .flatten()
        .chain(name)
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
        });
    format!("{}{hash:016x}.", prefix_of_all())
}

/// Removes the segments with this prefix that killed producers left. Returns the removed paths.
pub(crate) fn sweep(prefix: &str) -> Vec<PathBuf> {
    sweep_if(|name| name.starts_with(prefix))
}

/// Removes the segments under `/dev/shm` that killed producers of this user left, of any pool, and returns them.
/// Their pools and directories need not exist any more. Segments of a live producer stay.
///
/// Only [`Backing::PosixShm`](crate::Backing::PosixShm) creates such segments. Other memory leaves no files.
pub fn remove_stale_segments() -> Vec<PathBuf> {
    let prefix = prefix_of_all();
    let is_hex = |text: &str| text.len() == 16 && text.bytes().all(|b| b.is_ascii_hexdigit());
    sweep_if(|name| {
        let rest = name.strip_prefix(&prefix);
        let parts = rest.and_then(|rest| rest.split_once('.'));
        // The whole name must match, not only its beginning.
        parts.is_some_and(|(pool, number)| is_hex(pool) && is_hex(number))
    })
}

fn sweep_if(is_meant: impl Fn(&str) -> bool) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(DIR) else {
        return Vec::new();
    };
    entries
        .flatten()
        .filter(|entry| entry.file_name().to_str().is_some_and(&is_meant))
        .map(|entry| entry.path())
        .filter(|path| remove_if_left(path))
        .collect()
}

/// Removes a segment without an owner. `false`: it has an owner, or is not a segment of xmem.
fn remove_if_left(path: &Path) -> bool {
    let Ok(file) = open(path, READ, Mode::empty()) else {
        return false;
    };
    let is_ours = fstat(&file).is_ok_and(|stat| {
        FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile && stat.st_uid == own_uid()
    });
    // The lock is held while the file is removed, so that an owner that is about to lock it detects that.
    if !is_ours || !lock(&file) {
        return false;
    }
    log::info!("removing {path:?}, left by a producer that was killed");
    let removed = fs::remove_file(path).is_ok();
    fault::point(Point::SegmentSwept);
    removed
}

/// Whether the lock was acquired.
fn lock(file: &OwnedFd) -> bool {
    retry_on_intr(|| flock(file, FlockOperation::NonBlockingLockExclusive)).is_ok()
}

pub(crate) struct Owned {
    segment: Shmem,
    len: usize,
    process: ProcessId,
    /// The lock shows that the owner lives. A forked child must not inherit it.
    lock: Option<(KeptFromChildren, OwnedFd)>,
}

impl Drop for Owned {
    fn drop(&mut self) {
        if !self.process.is_current() {
            // A forked child must not remove its parent's segment.
            self.segment.set_owner(false);
        }
    }
}

// SAFETY: the segment is plain memory with an owner flag. Only one thread drops it, and its address and length do not change.
unsafe impl Send for Owned {}
// SAFETY: as above. No method changes it through a shared reference.
unsafe impl Sync for Owned {}

impl std::fmt::Debug for Owned {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Owned")
            .field("name", &self.name())
            .field("len", &self.len)
            .finish()
    }
}

impl Owned {
    pub(super) fn create(len: usize, prefix: &str) -> Result<Self, RegionError> {
        memfd::check_file_size(len).map_err(|error| RegionError::NoSpace { size: len, error })?;
        for _ in 0..TRIES {
            let mut segment = Self::make(len, prefix)?;
            // `ftruncate` only sets the size. Without reserving the memory, a full /dev/shm would later cause SIGBUS.
            if let Some(lock) = segment.open_and_lock()? {
                let (_, fd) = segment.lock.insert(lock);
                memfd::reserve(fd, len)
                    .map_err(|error| RegionError::NoSpace { size: len, error })?;
                return Ok(segment);
            }
        }
        Err(system("keep a segment in /dev/shm")(
            io::ErrorKind::NotFound.into(),
        ))
    }

    fn make(len: usize, prefix: &str) -> Result<Self, RegionError> {
        let name = format!("/{prefix}{:016x}", xmem_shm::os::random::u64());
        fault::call(Point::ShmCreate).map_err(system("create a segment in /dev/shm"))?;
        let segment = ShmemConf::new()
            .os_id(&name)
            .size(len)
            .create()
            .map_err(|error| match error {
                ShmemError::MapCreateFailed(code)
                | ShmemError::UnknownOsError(code)
                | ShmemError::MapOpenFailed(code) => io::Error::from_raw_os_error(code as i32),
                other => io::Error::other(other.to_string()),
            })
            .map_err(system("create a segment in /dev/shm"))?;
        fault::point(Point::ShmCreated);
        Ok(Self {
            segment,
            len,
            process: ProcessId::current(),
            lock: None,
        })
    }

    /// Opens the segment and locks it. `None`: another process removed it or will, because it took it for the segment of a
    /// killed producer.
    fn open_and_lock(&self) -> Result<Option<(KeptFromChildren, OwnedFd)>, RegionError> {
        let fd = match shm::open(self.name(), shm::OFlags::RDWR, Mode::empty()) {
            Ok(fd) => fd,
            Err(Errno::NOENT) => return Ok(None),
            Err(error) => return Err(system("open a segment again")(error.into())),
        };
        // Before the lock, because reserving the memory takes time, and this process may fork meanwhile.
        let kept = KeptFromChildren::new(&fd);
        match retry_on_intr(|| flock(&fd, FlockOperation::NonBlockingLockExclusive)) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => return Ok(None),
            Err(error) => return Err(system("lock a segment")(error.into())),
        }
        let stat = fstat(&fd).map_err(|e| system("look at a segment")(e.into()))?;
        Ok((stat.st_nlink > 0).then_some((kept, fd)))
    }

    pub(super) fn ptr(&self) -> *mut u8 {
        self.segment.as_ptr()
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn name(&self) -> &str {
        self.segment.get_os_id()
    }
}

pub(super) fn view(name: &str, len: usize) -> Result<Mapping, RegionError> {
    // The name comes from the producer, so it must not refer to other files.
    if !name.starts_with("/xmem-") || name[1..].contains('/') || name.contains('\0') {
        return Err(RegionError::Untrusted("its name is not one of a segment"));
    }
    // Read-only, so that bugs of the consumer cannot change a frame. The crate would map it for writing.
    let path = Path::new(DIR).join(&name[1..]);
    let fd = open(&path, READ, Mode::empty()).map_err(|e| system("open a segment")(e.into()))?;
    let stat = fstat(&fd).map_err(|e| system("look at a segment")(e.into()))?;
    if stat.st_uid != own_uid() && stat.st_uid != 0 {
        return Err(RegionError::Untrusted(
            "it belongs to another user, who could truncate it",
        ));
    }
    check_len(memfd::reserved_len(&stat), len)?;
    Mapping::when_read(&fd, len).map_err(system("map a segment"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{CWD, mkfifoat};
    use xmem_shm::testing::is_so_in_a_child;

    /// A lock in the child would prevent that a killed owner's segment is removed.
    #[test]
    fn a_child_does_not_inherit_the_lock_of_a_new_segment() {
        let segment = Owned::make(4096, &prefix(Path::new("/r/p.sock"))).unwrap();
        let lock = segment.open_and_lock().unwrap().unwrap();
        let is_file = || FileType::from_raw_mode(fstat(&lock.1).unwrap().st_mode).is_file();
        assert!(is_file());
        assert!(is_so_in_a_child(|| !is_file()));
    }

    /// The producer chooses the name.
    #[test]
    fn a_fifo_in_the_place_of_a_segment_is_refused() {
        let name = format!("/xmem-test-{:016x}", xmem_shm::os::random::u64());
        let path = Path::new(DIR).join(&name[1..]);
        mkfifoat(CWD, &path, Mode::RUSR).unwrap();
        let result = view(&name, 4096);
        fs::remove_file(path).unwrap();
        assert!(result.is_err());
    }
}
