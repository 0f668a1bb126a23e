// SPDX-License-Identifier: MPL-2.0

//! A temporary folder for one run, for sockets and the output of strace.

use std::path::{Path, PathBuf};

use crate::Error;

#[derive(Debug)]
pub(crate) struct RunDir(tempfile::TempDir);

impl RunDir {
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

/// The prefix of the names of shared memory: the name of the socket's folder. For transports that have a setting for it.
pub(crate) fn shm_prefix(socket: &Path) -> Result<&str, Error> {
    let run_dir = socket.parent().and_then(Path::file_name);
    let name = run_dir.and_then(|name| name.to_str());
    name.ok_or_else(|| "the name of the folder is not UTF-8".into())
}

impl Drop for RunDir {
    /// Removes the file that iceoryx2 keeps in /dev/shm for later processes.
    fn drop(&mut self) {
        let socket = self.socket();
        let (Ok(prefix), Ok(dir)) = (shm_prefix(&socket), std::fs::read_dir("/dev/shm")) else {
            return;
        };
        for file in dir.flatten() {
            if file.file_name().to_string_lossy().starts_with(prefix) {
                // Another process may have removed the file already.
                let _ = std::fs::remove_file(file.path());
            }
        }
    }
}
