// SPDX-License-Identifier: MPL-2.0

//! Named segments under /dev/shm, through the crate `shared_memory`.
//!
//! They cannot be sealed, and outlive a killed owner; the pool's next producer sweeps them by their prefix.
#![allow(unsafe_code)] // shared_memory's handle holds a raw pointer and so is not Send

use std::fs;
use std::path::Path;

use rustix::fs::{Mode, fstat};
use rustix::shm;
use shared_memory::{Shmem, ShmemConf, ShmemError};

use super::{check_len, system};
use crate::error::RegionError;
use crate::fault::{self, Point};
use crate::os::cred::own_uid;
use crate::os::fork::ProcessId;
use crate::os::mapping::{Access, Mapping};
use crate::os::memfd;

const DIR: &str = "/dev/shm";

/// What the names of a pool's segments begin with.
pub(crate) fn prefix(socket: &Path) -> String {
    // FNV-1a over the path: segments of two pools must not be taken for each other, nothing more.
    let hash = socket
        .as_os_str()
        .as_encoded_bytes()
        .iter()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
        });
    format!("xmem-{}-{hash:016x}-", own_uid())
}

/// Removes what a killed producer left. Only for who holds the pool's lock.
pub(crate) fn sweep(prefix: &str) {
    let Ok(entries) = fs::read_dir(DIR) else {
        return;
    };
    for entry in entries.flatten() {
        if entry.file_name().to_string_lossy().starts_with(prefix) {
            log::info!(
                "removing {:?}, left by a producer that was killed",
                entry.path()
            );
            let _ = fs::remove_file(entry.path());
            fault::point(Point::SegmentSwept);
        }
    }
}

pub(crate) struct Owned {
    segment: Shmem,
    len: usize,
    process: ProcessId,
}

impl Drop for Owned {
    fn drop(&mut self) {
        if !self.process.is_current() {
            // A forked child must not remove its parent's segment.
            self.segment.set_owner(false);
        }
    }
}

// SAFETY: the segment is plain memory with an owner flag; it is used from one thread at a time to drop it, and its
// address and length do not change.
unsafe impl Send for Owned {}
// SAFETY: as above; no method changes it through a shared reference.
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
        let name = format!("/{prefix}{:016x}", crate::random::u64());
        memfd::check_file_size(len).map_err(|error| RegionError::NoSpace { size: len, error })?;
        fault::call(Point::ShmCreate).map_err(system("create a segment in /dev/shm"))?;
        let segment = ShmemConf::new()
            .os_id(&name)
            .size(len)
            .create()
            .map_err(|error| RegionError::System {
                what: "create a segment in /dev/shm",
                error: match error {
                    ShmemError::MapCreateFailed(code)
                    | ShmemError::UnknownOsError(code)
                    | ShmemError::MapOpenFailed(code) => {
                        std::io::Error::from_raw_os_error(code as i32)
                    }
                    other => std::io::Error::other(other.to_string()),
                },
            })?;
        fault::point(Point::ShmCreated);
        let segment = Self {
            segment,
            len,
            process: ProcessId::current(),
        };
        // The crate only sets the size; without the reservation a full /dev/shm would be a SIGBUS later.
        let fd = shm::open(&name, shm::OFlags::RDWR, Mode::empty())
            .map_err(|e| system("open a segment again")(e.into()))?;
        memfd::reserve(&fd, len).map_err(|error| RegionError::NoSpace { size: len, error })?;
        Ok(segment)
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
    // The producer says the name, so it must not lead anywhere else.
    if !name.starts_with("/xmem-") || name[1..].contains('/') || name.contains('\0') {
        return Err(RegionError::Untrusted("its name is not one of a segment"));
    }
    // Read-only, although the crate could map it too: a consumer's own mistakes must not reach a frame.
    let fd = shm::open(name, shm::OFlags::RDONLY, Mode::empty())
        .map_err(|e| system("open a segment")(e.into()))?;
    let stat = fstat(&fd).map_err(|e| system("look at a segment")(e.into()))?;
    if stat.st_uid != own_uid() && stat.st_uid != 0 {
        return Err(RegionError::Untrusted(
            "it belongs to another user, who could truncate it",
        ));
    }
    check_len(memfd::reserved_len(&stat), len)?;
    Mapping::new(&fd, len, Access::Read).map_err(system("map a segment"))
}
