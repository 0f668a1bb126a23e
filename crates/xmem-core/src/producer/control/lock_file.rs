// SPDX-License-Identifier: MPL-2.0

//! The lock file of a pool. The process that holds its flock is the producer.

use std::ffi::OsStr;
use std::io::ErrorKind;
use std::path::Path;

use xmem_shm::os::lock::{LockError, LockFile};
use xmem_shm::os::{cred, socket};

use crate::error::{CreateError, SystemError};
use crate::rendezvous::lock_path;

/// Whether this process listens there, by the kernel's credentials. A process ID in a file could be from another PID namespace.
fn is_own(path: &Path) -> bool {
    let listener = socket::connect_to(path).and_then(cred::peer);
    listener.is_ok_and(|peer| peer.pid == std::process::id())
}

/// Describes the process that holds the lock. Consumers cannot find a producer whose socket was removed.
fn describe(holder: String, socket: &Path) -> String {
    let mut text = holder;
    if text.is_empty() {
        text = "another process".to_owned();
    }
    if std::fs::symlink_metadata(socket).is_err_and(|error| error.kind() == ErrorKind::NotFound) {
        text += ", whose socket file is missing";
    }
    text
}

/// Makes this process the pool's producer.
pub(in crate::producer) fn take_lock(pool: &OsStr, socket: &Path) -> Result<LockFile, CreateError> {
    let pid = std::process::id();
    let program = std::fs::read_to_string("/proc/self/comm").unwrap_or_default();
    let own = format!("{} (process {pid})", program.trim());
    LockFile::acquire(&lock_path(socket), &own).map_err(|error| match error {
        LockError::Held(holder) => CreateError::InUse {
            pool: pool.to_string_lossy().into_owned(),
            holder: if is_own(socket) {
                format!("{own}, which is this very process")
            } else {
                describe(holder, socket)
            },
        },
        LockError::NotALock => CreateError::NotALock {
            path: lock_path(socket),
        },
        LockError::Foreign(uid) => CreateError::Foreign {
            path: lock_path(socket),
            uid,
        },
        LockError::Io(error) => match error.kind() {
            ErrorKind::PermissionDenied
            | ErrorKind::NotFound
            | ErrorKind::NotADirectory
            | ErrorKind::StorageFull
            | ErrorKind::ReadOnlyFilesystem => CreateError::Lock {
                path: lock_path(socket),
                error,
            },
            _ => SystemError::at("lock the pool")(error).into(),
        },
    })
}
