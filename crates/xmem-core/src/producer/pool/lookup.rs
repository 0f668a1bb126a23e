// SPDX-License-Identifier: MPL-2.0

//! What frames refer to by number: the layouts in control memory, and the versions of the sticky state that consumers may still
//! request.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::{io, mem};

use xmem_shm::abi::frame_layout::{FrameLayout, LayoutId};
use xmem_shm::abi::layout::Control;
use xmem_shm::abi::limits::{MAX_NAMED_ENTRIES, MAX_NAMED_SIZE};
use xmem_shm::abi::named::Sticky;
use xmem_shm::os::sealed;

use crate::error::{StickyError, SystemError};

/// The maximum size of all kept versions. Within it, versions are kept while a frame may need them.
const MAX_BYTES: usize = 4 * MAX_NAMED_SIZE;

#[derive(Debug)]
struct Version {
    number: u64,
    bytes: Arc<[u8]>,
    /// Only the newest version has a descriptor, because consumers request it most often. Otherwise a stream that changes its
    /// state with each frame would use up all descriptors.
    fd: Option<Arc<OwnedFd>>,
    /// The first frame of this version.
    since: u64,
}

/// A version that a consumer requested.
#[derive(Debug)]
pub(in crate::producer) enum Found {
    Descriptor(Arc<OwnedFd>),
    Bytes(Arc<[u8]>),
}

impl Found {
    /// Its descriptor. Creates one if there is none.
    pub(in crate::producer) fn descriptor(self) -> io::Result<Arc<OwnedFd>> {
        match self {
            Self::Descriptor(fd) => Ok(fd),
            Self::Bytes(bytes) => descriptor(&bytes),
        }
    }
}

fn descriptor(bytes: &[u8]) -> io::Result<Arc<OwnedFd>> {
    sealed::write("xmem-sticky", bytes).map(Arc::new)
}

#[derive(Debug)]
pub(in crate::producer) struct StickyLog {
    versions: VecDeque<Version>,
    number: u64,
    current: Arc<Sticky>,
}

impl StickyLog {
    pub(in crate::producer) fn new() -> Result<Self, SystemError> {
        let mut log = Self {
            versions: VecDeque::new(),
            number: 0,
            current: Arc::default(),
        };
        let empty = Sticky::new();
        log.add(&empty, empty.encode(), 0)?;
        Ok(log)
    }

    pub(in crate::producer) fn version(&self) -> u64 {
        self.number
    }

    pub(in crate::producer) fn current(&self) -> Arc<Sticky> {
        self.current.clone()
    }

    /// Adds a version for the frames from sequence `head` on.
    pub(super) fn push(&mut self, sticky: &Sticky, head: u64) -> Result<u64, StickyError> {
        let bytes = sticky.encode();
        if bytes.len() > MAX_NAMED_SIZE {
            let size = bytes.len();
            return Err(StickyError::TooLarge { size });
        }
        if sticky.len() > MAX_NAMED_ENTRIES {
            let count = sticky.len();
            return Err(StickyError::TooMany { count });
        }
        Ok(self.add(sticky, bytes, head)?)
    }

    fn add(&mut self, sticky: &Sticky, bytes: Vec<u8>, head: u64) -> Result<u64, SystemError> {
        let what = "keep the stream's sticky state";
        let fd = descriptor(&bytes).map_err(SystemError::at(what))?;
        self.number += 1;
        self.current = Arc::new(sticky.clone());
        // If no frame was published since, no frame needs the last version.
        if self.versions.back().is_some_and(|last| last.since == head) {
            self.versions.pop_back();
        }
        if let Some(last) = self.versions.back_mut() {
            last.fd = None;
        }
        self.versions.push_back(Version {
            number: self.number,
            bytes: bytes.into(),
            fd: Some(fd),
            since: head,
        });
        let size = |version: &Version| version.bytes.len() + mem::size_of::<Version>();
        let mut total: usize = self.versions.iter().map(size).sum();
        while total > MAX_BYTES
            && let Some(oldest) = self.versions.pop_front()
        {
            total -= size(&oldest);
        }
        Ok(self.number)
    }

    /// The versions of the frames from this sequence on.
    pub(in crate::producer) fn needed_from(&self, sequence: u64) -> impl Iterator<Item = u64> {
        let ends = self.versions.iter().skip(1).map(|next| next.since);
        let versions = self.versions.iter().zip(ends.chain([u64::MAX]));
        versions
            .filter(move |(_, end)| *end > sequence)
            .map(|(version, _)| version.number)
    }

    pub(in crate::producer) fn get(&self, number: u64) -> Option<Found> {
        let at = self
            .versions
            .binary_search_by_key(&number, |version| version.number)
            .ok()?;
        let version = self.versions.get(at)?;
        Some(match &version.fd {
            Some(fd) => Found::Descriptor(fd.clone()),
            None => Found::Bytes(version.bytes.clone()),
        })
    }

    /// Removes the versions that only frames before `sequence` need.
    pub(in crate::producer) fn forget_before(&mut self, sequence: u64) {
        while self
            .versions
            .get(1)
            .is_some_and(|next| next.since <= sequence)
        {
            self.versions.pop_front();
        }
    }
}

/// The layouts in the table of control memory. A row is written once and never changes, because a consumer may read it at any time.
#[derive(Debug, Default)]
pub(in crate::producer) struct Layouts {
    rows: Vec<(LayoutId, Arc<FrameLayout>)>,
    /// The row of the last frame, because most frames have the layout of the previous one.
    last: usize,
}

impl Layouts {
    /// The number of a layout in the table. Adds it if the table has room. `None`: it has not.
    pub(in crate::producer) fn find(
        &mut self,
        layout: &Arc<FrameLayout>,
        control: &Control,
    ) -> Option<LayoutId> {
        let is_it = |(_, row): &(LayoutId, Arc<FrameLayout>)| row == layout;
        let last = self.rows.get(self.last);
        if let Some((id, _)) = last.filter(|row| is_it(row)) {
            return Some(*id);
        }
        if let Some(at) = self.rows.iter().position(is_it) {
            self.last = at;
            return self.rows.get(at).map(|(id, _)| *id);
        }
        let id = LayoutId::new(u16::try_from(self.rows.len() + 1).ok()?)?;
        control.set_layout(id, layout);
        self.last = self.rows.len();
        self.rows.push((id, layout.clone()));
        Some(id)
    }
}
