// SPDX-License-Identifier: MPL-2.0

//! `xmem share --idle`: started by programs, at most once for a pool.

use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use rustix::process::geteuid;
use rustix::stdio::dup2_stderr;
use xmem_core::discovery::prepare_socket_dir;

use crate::Error;
use crate::format::to_stderr;

/// Runs the command with its messages in a log beside the socket. The lock of this file lasts as long as the process, so a second
/// command for the pool finds it locked and does nothing.
pub(super) fn run(pool: &OsStr, play: impl FnOnce() -> Result<(), Error>) -> Result<(), Error> {
    let path = prepare_socket_dir(pool)?.with_extension("log");
    let cannot = |error: io::Error| format!("cannot write {}: {error}", path.display());
    let log = open(&path).map_err(cannot)?;
    match log.try_lock() {
        Ok(()) => log.set_len(0).map_err(cannot)?,
        Err(TryLockError::WouldBlock) => return Ok(()),
        Err(TryLockError::Error(error)) => return Err(cannot(error).into()),
    }
    let stderr = io::stderr().as_fd().try_clone_to_owned()?;
    dup2_stderr(&log)?;
    let result = play();
    match &result {
        // Removed while it is locked. A command that has opened it just now shares the source without a log.
        Ok(()) => drop(fs::remove_file(&path)),
        Err(error) => to_stderr(error),
    }
    // The program that started this command reads why it failed.
    dup2_stderr(stderr)?;
    result.map_err(|error| format!("{error} (log: {})", path.display()).into())
}

/// In a directory like /tmp, others may have made the file.
fn open(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.append(true).create(true).mode(0o600);
    options.custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK);
    let file = options.open(path)?;
    let there = file.metadata()?;
    if !there.is_file() || there.uid() != geteuid().as_raw() {
        return Err(io::Error::other("it isn't a file of this user: remove it"));
    }
    Ok(file)
}
