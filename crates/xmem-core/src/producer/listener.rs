// SPDX-License-Identifier: MPL-2.0

//! The pool's socket: made in place of a stale one, never of a live one, and removed at the end.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Gid, chownat, fstat};
use rustix::io::Errno;

use super::access::Access;
use crate::error::CreateError;
use crate::fault::{self, Point};
use crate::os::cred::own_uid;
use crate::os::fork::KeptFromChildren;
use crate::os::lock::LockFile;
use crate::os::socket::{self, Listening};

/// The pool's socket, and the lock that makes it ours.
#[derive(Debug)]
pub(super) struct Listener {
    _kept: KeptFromChildren,
    pub(super) socket: OwnedFd,
    path: PathBuf,
    /// Identity of the socket's file, so that only our own is removed.
    inode: (u64, u64),
    /// The group that the socket's file belongs to.
    pub(super) group: u32,
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
                if meta.uid() != own_uid() {
                    return Err(CreateError::Foreign {
                        path: path.to_owned(),
                        uid: meta.uid(),
                    });
                }
                std::fs::remove_file(path)
                    .map_err(system("remove the socket that a killed producer left"))?;
                fault::point(Point::StaleSocketRemoved);
            }
            Ok(_) => {
                return Err(CreateError::NotASocket {
                    path: path.to_owned(),
                });
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(system("look for the pool's socket")(error)),
        }
        let Listening { socket, file } = socket::listen_at(path, access.file_mode())
            .map_err(system("listen on the pool's socket"))?;
        let look =
            || fstat(&file).map_err(|error| system("look at the pool's socket")(error.into()));
        let stat = look()?;
        let mut listener = Self {
            _kept: KeptFromChildren::new(&socket),
            socket,
            path: path.to_owned(),
            inode: (stat.st_dev, stat.st_ino),
            group: stat.st_gid,
            _lock: lock,
        };
        if let Some(gid) = access.gid() {
            // The file itself: its path may lead elsewhere by now.
            chownat(
                &file,
                "",
                None,
                Some(Gid::from_raw(gid)),
                AtFlags::EMPTY_PATH,
            )
            .map_err(|error| not_the_groups(gid, error))?;
            listener.group = look()?.st_gid;
        }
        Ok(listener)
    }
}

/// The socket could not be given to its group.
fn not_the_groups(gid: u32, error: Errno) -> CreateError {
    match error {
        Errno::PERM | Errno::INVAL => CreateError::Settings(format!(
            "socket-group: cannot give the socket to group {gid} ({error}): this user has to be a member of it"
        )),
        _ => CreateError::System {
            what: "give the pool's socket to its group",
            error: error.into(),
        },
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let is_ours = std::fs::symlink_metadata(&self.path)
            .is_ok_and(|meta| (meta.dev(), meta.ino()) == self.inode);
        if is_ours {
            let _ = std::fs::remove_file(&self.path);
            fault::point(Point::SocketRemoved);
        }
    }
}
