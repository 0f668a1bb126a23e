// SPDX-License-Identifier: MPL-2.0

//! The shared memory of a process, as the kernel counts it.

use std::collections::HashSet;
use std::os::unix::fs::MetadataExt;

use serde::{Deserialize, Serialize};

use crate::Error;

/// The unit of `st_blocks` on all file systems.
const BLOCK: u64 = 512;

#[derive(Debug, Default, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct Memory {
    /// The size of the shared memory to which the process has a descriptor. A file with several descriptors counts once.
    pub(crate) bytes: u64,
    /// The number of open descriptors of all kinds.
    pub(crate) descriptors: u64,
}

impl Memory {
    pub(crate) fn of_this_process() -> Result<Self, Error> {
        let mut memory = Self::default();
        let mut seen = HashSet::new();
        for entry in std::fs::read_dir("/proc/self/fd")? {
            let path = entry?.path();
            // Another thread may have closed the descriptor.
            let (Ok(target), Ok(file)) = (std::fs::read_link(&path), std::fs::metadata(&path))
            else {
                continue;
            };
            memory.descriptors += 1;
            let target = target.to_string_lossy();
            let is_shared = target.starts_with("/memfd:") || target.starts_with("/dev/shm/");
            if is_shared && seen.insert((file.dev(), file.ino())) {
                memory.bytes += file.blocks() * BLOCK;
            }
        }
        Ok(memory)
    }
}
