// SPDX-License-Identifier: MPL-2.0

//! A folder for what one run leaves while it runs: sockets, and what strace writes.

use std::path::{Path, PathBuf};

use crate::Error;

#[derive(Debug)]
pub(crate) struct Room(tempfile::TempDir);

impl Room {
    pub(crate) fn new() -> Result<Self, Error> {
        Ok(Self(tempfile::Builder::new().prefix(PREFIX).tempdir()?))
    }

    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.path().join("socket")
    }
}

const PREFIX: &str = "xmem-bench-";

/// The prefix of names of shared memory, if a transport has a setting for it: the name of the socket's room.
pub(crate) fn shm_prefix(socket: &Path) -> Result<&str, Error> {
    let room = socket.parent().and_then(Path::file_name);
    let name = room.and_then(|name| name.to_str());
    name.ok_or_else(|| "a folder with an odd name".into())
}

impl Drop for Room {
    /// iceoryx2 leaves a file for the next process.
    fn drop(&mut self) {
        let socket = self.socket();
        let (Ok(prefix), Ok(dir)) = (shm_prefix(&socket), std::fs::read_dir("/dev/shm")) else {
            return;
        };
        for file in dir.flatten() {
            if file.file_name().to_string_lossy().starts_with(prefix) {
                // Another process may have been quicker.
                let _ = std::fs::remove_file(file.path());
            }
        }
    }
}
