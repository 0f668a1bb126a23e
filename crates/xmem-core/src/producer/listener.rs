// SPDX-License-Identifier: MPL-2.0

//! The pool's socket: made in place of a stale one, never of a live one, and removed at the end.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Gid, chownat};

use super::access::Access;
use crate::error::CreateError;
use crate::os::fork::KeptFromChildren;
use crate::os::lock::LockFile;
use crate::os::socket;

/// The pool's socket, and the lock that makes it ours.
#[derive(Debug)]
pub(super) struct Listener {
    _kept: KeptFromChildren,
    pub(super) socket: OwnedFd,
    path: PathBuf,
    /// Identity of the socket's file, so that only our own is removed.
    inode: Option<(u64, u64)>,
    _lock: LockFile,
}

impl Listener {
    /// Listens at the path, in place of a socket that a killed producer left.
    pub(super) fn bind(path: &Path, lock: LockFile, access: &Access) -> Result<Self, CreateError> {
        let system = |what| move |error| CreateError::System { what, error };
        match std::fs::symlink_metadata(path) {
            Ok(meta) if meta.file_type().is_socket() => {
                // We hold the lock, so no xmem producer listens there. But another program might; only a refused
                // connection says that nobody does.
                let refused = socket::connect_to(path)
                    .is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused);
                if !refused {
                    return Err(CreateError::InUse {
                        pool: path.to_string_lossy().into_owned(),
                        holder: "a program that is no xmem producer, or cannot see the lock file"
                            .into(),
                    });
                }
                std::fs::remove_file(path)
                    .map_err(system("remove the socket that a killed producer left"))?;
            }
            Ok(_) => {
                return Err(CreateError::NotASocket {
                    path: path.to_owned(),
                });
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(system("look for the pool's socket")(error)),
        }
        let socket =
            socket::listen_at(path, access.mode).map_err(system("listen on the pool's socket"))?;
        let listener = Self {
            _kept: KeptFromChildren::new(&socket),
            socket,
            path: path.to_owned(),
            inode: inode(path),
            _lock: lock,
        };
        if let Some(gid) = access.gid() {
            chownat(
                CWD,
                path,
                None,
                Some(Gid::from_raw(gid)),
                AtFlags::SYMLINK_NOFOLLOW,
            )
            .map_err(|error| system("give the pool's socket to its group")(error.into()))?;
        }
        Ok(listener)
    }
}

fn inode(path: &Path) -> Option<(u64, u64)> {
    let meta = std::fs::symlink_metadata(path).ok()?;
    Some((meta.dev(), meta.ino()))
}

impl Drop for Listener {
    fn drop(&mut self) {
        if inode(&self.path) == self.inode {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}
