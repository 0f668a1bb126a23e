// SPDX-License-Identifier: MPL-2.0

//! The lock file of a pool: the process that holds its flock is the producer. And the files that a killed producer left, which the
//! next producer replaces.

use std::ffi::OsStr;
use std::io::ErrorKind;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::{fs, io};

use xmem_shm::fault::{self, Point};
use xmem_shm::os::cred::own_uid;
use xmem_shm::os::lock::{LockError, LockFile};
use xmem_shm::os::{cred, socket};

use crate::error::{CreateError, RemoveError, SystemError};
use crate::region;
use crate::rendezvous::{has_safe_dir, is_in_runtime_dir, lock_path, socket_path};

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

/// Removes the socket that a killed producer left. `false`: there is none. The caller holds the pool's lock.
pub(super) fn remove_socket(path: &Path) -> Result<bool, CreateError> {
    match fs::symlink_metadata(path) {
        Ok(meta) if meta.file_type().is_socket() => {
            // No xmem producer listens there, because the caller holds the lock. Another program might. A refused connection
            // shows that none does.
            let connected =
                socket::connect_to(path).map_err(SystemError::at("test the existing socket"));
            match connected {
                Err(error) if error.error.kind() == io::ErrorKind::ConnectionRefused => {}
                Err(error) if error.is_shortage() => return Err(error.into()),
                _ => {
                    return Err(CreateError::InUse {
                        pool: path.to_string_lossy().into_owned(),
                        holder:
                            "a program that is not a producer of xmem, or cannot see the lock file"
                                .into(),
                    });
                }
            }
            if meta.uid() != own_uid() {
                return Err(CreateError::Foreign {
                    path: path.to_owned(),
                    uid: meta.uid(),
                });
            }
            fs::remove_file(path).map_err(SystemError::at(
                "remove the socket that a killed producer left",
            ))?;
            fault::point(Point::StaleSocketRemoved);
            Ok(true)
        }
        Ok(_) => Err(CreateError::NotASocket {
            path: path.to_owned(),
        }),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(SystemError::at("look for the pool's socket")(error).into()),
    }
}

/// Removes the files of a killed producer's pool: its socket, its lock file and its segments in `/dev/shm`. Returns the
/// removed paths, perhaps none.
///
/// Outside of the runtime directory a socket without a producer's lock file beside it counts as another program's.
///
/// The files do no harm: the pool's next producer removes them too. This function holds the pool's lock meanwhile, so a
/// producer that starts just then tries again.
///
/// ```
/// # let dir = tempfile::tempdir()?;
/// # let pool = dir.path().join("p.sock");
/// # let pool = pool.to_str().unwrap();
/// use std::os::unix::net::UnixListener;
/// use xmem_core::discovery::remove_stale;
/// use xmem_core::{Producer, RemoveError};
///
/// drop(UnixListener::bind(pool)?); // the socket of a process that listened,
/// std::fs::write(dir.path().join("p.lock"), "camera (process 4711)")?; // and was a producer
/// assert_eq!(remove_stale(pool)?.len(), 2);
/// assert!(remove_stale(pool)?.is_empty());
///
/// let _producer = Producer::builder(pool).build()?;
/// assert!(matches!(remove_stale(pool), Err(RemoveError::Live { .. })));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
///
/// [`RemoveError::Live`] when the pool has a producer, [`RemoveError::Foreign`] when the files belong to another user,
/// also for root; see [`RemoveError`] for the others.
pub fn remove_stale(pool: impl AsRef<OsStr>) -> Result<Vec<PathBuf>, RemoveError> {
    let pool = pool.as_ref();
    let socket = socket_path(pool)?;
    if !has_safe_dir(pool, &socket)? {
        return Ok(Vec::new());
    }
    let lock_file = lock_path(&socket);
    let is_there = |path: &Path| fs::symlink_metadata(path).is_ok();
    let had_lock = is_there(&lock_file);
    let prefix = region::shm_prefix(&socket);
    if !had_lock && !is_there(&socket) {
        // Without a lock file there is nothing to lock. Segments have their own locks.
        return Ok(region::sweep_shm(&prefix));
    }
    // An empty file may belong to another program, so it is not locked. A producer's lock file has content.
    let has_content = fs::symlink_metadata(&lock_file).is_ok_and(|meta| meta.len() > 0);
    if !has_content && is_there(&socket) && !is_in_runtime_dir(pool, &socket) {
        return Err(RemoveError::NotAPools { path: socket });
    }
    let lock = take_lock(pool, &socket).map_err(|error| match error {
        // The lock file of another user cannot be opened, but perhaps its socket can be connected to.
        CreateError::Foreign { uid, .. } if socket::connect_to(&socket).is_ok() => {
            CreateError::InUse {
                pool: pool.to_string_lossy().into_owned(),
                holder: format!("a process of user {uid}"),
            }
        }
        error => error,
    })?;
    let had_socket = remove_socket(&socket)?;
    let segments = region::sweep_shm(&prefix);
    // Removes the lock file.
    drop(lock);
    let removed = [(had_socket, socket), (had_lock, lock_file)];
    Ok(removed
        .into_iter()
        .filter_map(|(had, path)| had.then_some(path))
        .chain(segments)
        .collect())
}
