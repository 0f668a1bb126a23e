// SPDX-License-Identifier: MPL-2.0

//! The versions of the sticky state that consumers may still ask for.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use crate::error::RegionError;
use crate::sealed;
use crate::sticky::{MAX_STICKY_SIZE, Sticky};

/// Each version is a descriptor; a stream that changes its state with every frame must not use them all up.
const MAX_VERSIONS: usize = 64;

#[derive(Debug)]
struct Version {
    number: u64,
    fd: Arc<OwnedFd>,
    /// The first frame of this version.
    since: u64,
}

#[derive(Debug)]
pub(super) struct StickyLog {
    versions: VecDeque<Version>,
    number: u64,
    current: Arc<Sticky>,
}

impl StickyLog {
    pub(super) fn new() -> Result<Self, RegionError> {
        let mut log = Self {
            versions: VecDeque::new(),
            number: 0,
            current: Arc::default(),
        };
        log.push(&Sticky::new(), 0)?;
        Ok(log)
    }

    pub(super) fn version(&self) -> u64 {
        self.number
    }

    pub(super) fn current(&self) -> Arc<Sticky> {
        self.current.clone()
    }

    /// A new version, which the frames from `head` on belong to.
    pub(super) fn push(&mut self, sticky: &Sticky, head: u64) -> Result<u64, RegionError> {
        let bytes = sticky.encode();
        let what = "keep the stream's sticky state";
        if bytes.len() > MAX_STICKY_SIZE {
            let error = std::io::Error::other(format!(
                "it has {} bytes and may have {MAX_STICKY_SIZE}",
                bytes.len()
            ));
            return Err(RegionError::System { what, error });
        }
        let fd = sealed::write("xmem-sticky", &bytes)
            .map_err(|error| RegionError::System { what, error })?;
        self.number += 1;
        self.current = Arc::new(sticky.clone());
        self.versions.push_back(Version {
            number: self.number,
            fd: Arc::new(fd),
            since: head,
        });
        if self.versions.len() > MAX_VERSIONS {
            self.versions.pop_front();
        }
        Ok(self.number)
    }

    pub(super) fn get(&self, number: u64) -> Option<Arc<OwnedFd>> {
        self.versions
            .iter()
            .find(|version| version.number == number)
            .map(|version| version.fd.clone())
    }

    /// Forgets the versions that only frames before `sequence` belong to.
    pub(super) fn forget_before(&mut self, sequence: u64) {
        while self
            .versions
            .get(1)
            .is_some_and(|next| next.since <= sequence)
        {
            self.versions.pop_front();
        }
    }
}
