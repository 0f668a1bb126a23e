// SPDX-License-Identifier: MPL-2.0

//! What frames refer to by number: the layouts in control memory, and the versions of the sticky state (caps and so on) that the
//! producer sent.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::Duration;

use xmem_shm::abi::entry::Entry;
use xmem_shm::abi::frame_layout::{FrameLayout, LayoutId, MetaError};
use xmem_shm::abi::layout::Control;
use xmem_shm::abi::limits::{MAX_LAYOUTS, MAX_NAMED_SIZE};
use xmem_shm::abi::meta::FrameMeta;
use xmem_shm::abi::named::Sticky;
use xmem_shm::abi::wire::ToProducer;
use xmem_shm::lock::lock;
use xmem_shm::os::clock::Deadline;

use super::link::{ASK_AGAIN, Link};
use crate::cancel::Canceller;
use crate::error::ReceiveError;
use crate::frame::lease::Described;

/// The maximum number of versions that are kept besides those of frames, and their maximum size in encoded form. A producer has
/// the same limits.
const MAX_STICKIES: usize = 64;
const MAX_STICKY_BYTES: usize = 4 * MAX_NAMED_SIZE;

/// A version, and its size in bytes. `None`: the producer no longer has it, or it is invalid.
struct Version(Option<Arc<Sticky>>, usize);

#[derive(Default)]
pub(super) struct Versions {
    known: BTreeMap<u64, Version>,
}

impl Versions {
    fn bytes(&self) -> usize {
        self.known.values().map(|version| version.1).sum()
    }

    fn newest(&self) -> Option<Arc<Sticky>> {
        let mut newest_first = self.known.values().rev();
        newest_first.find_map(|version| version.0.clone())
    }

    /// The version of a frame. Older versions are dropped: frames arrive in order, so they are not needed again.
    fn reach(&mut self, number: u64) -> Option<Option<Arc<Sticky>>> {
        let found = self.known.get(&number)?.0.clone();
        while self.known.first_key_value()?.0 < &number {
            self.known.pop_first();
        }
        Some(found)
    }
}

/// The versions of the sticky state of one connection. Their number and size are bounded, even if a producer sends more.
pub(super) struct Stickies {
    link: Arc<Link>,
    versions: Mutex<Versions>,
}

impl Stickies {
    pub(super) fn new(link: &Arc<Link>) -> Self {
        Self {
            link: link.clone(),
            versions: Mutex::default(),
        }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Versions> {
        lock(&self.versions)
    }

    /// Stores the producer's answer: a version and its size in bytes, or that it does not have it.
    pub(super) fn keep(&self, number: u64, sticky: Option<Arc<Sticky>>, size: usize) {
        let mut versions = self.lock();
        versions.known.insert(number, Version(sticky, size));
        while versions.known.len() > MAX_STICKIES || versions.bytes() > MAX_STICKY_BYTES {
            // The next frame needs the oldest, and `newest` the newest. Another version is requested again when its frame
            // arrives.
            let spare = versions.known.keys().nth_back(1).copied();
            versions.known.remove(&spare.unwrap_or(number));
        }
    }

    /// This version. It is requested from the producer if it was not sent yet.
    pub(super) fn get(
        &self,
        version: u64,
        deadline: Deadline,
        cancel: &Canceller,
    ) -> Result<Option<Arc<Sticky>>, ReceiveError> {
        let found = self.lock().reach(version);
        match found {
            Some(found) => Ok(found),
            None => self.ask(version, deadline, cancel),
        }
    }

    #[cold]
    fn ask(
        &self,
        version: u64,
        deadline: Deadline,
        cancel: &Canceller,
    ) -> Result<Option<Arc<Sticky>>, ReceiveError> {
        let question = ToProducer::GetSticky { version };
        let check = || self.lock().reach(version);
        self.link.ask(&question, deadline, cancel, check)
    }

    /// The newest version. `None` in a forked child.
    pub(super) fn newest(&self) -> Option<Arc<Sticky>> {
        if !self.link.is_of_this_process() {
            return None;
        }
        self.lock().newest()
    }

    /// The newest version. Waits until there is one.
    pub(super) fn wait(
        &self,
        timeout: Option<Duration>,
        cancel: &Canceller,
    ) -> Option<Arc<Sticky>> {
        if !self.link.is_of_this_process() {
            return None;
        }
        let deadline = Deadline::after(timeout);
        self.link
            .wait_for(deadline, cancel, ASK_AGAIN, || self.newest())
    }
}

type Checked = Result<Arc<FrameLayout>, MetaError>;

/// The layouts of a pool's frames, by their rows in the pool's table. Each is copied out of shared memory and checked once, so later
/// writes of the producer have no effect on it.
pub(super) struct Layouts([OnceLock<Checked>; MAX_LAYOUTS]);

impl Layouts {
    pub(super) fn new() -> Self {
        Self([const { OnceLock::new() }; MAX_LAYOUTS])
    }

    /// The description of an entry's frame. `None`: the entry was overwritten.
    pub(super) fn describe(
        &self,
        entry: &Entry,
        control: &Control,
    ) -> Result<Option<Described<'_>>, MetaError> {
        if entry.has_extension() {
            let meta = self.describe_extended(entry, control)?;
            return Ok(meta.map(Described::Whole));
        }
        let layout = self.get(entry.layout_number(), control)?;
        Ok(Some(Described::Plain(layout)))
    }

    #[cold]
    fn describe_extended(
        &self,
        entry: &Entry,
        control: &Control,
    ) -> Result<Option<FrameMeta>, MetaError> {
        let Some(extension) = control.read_extension(entry.sequence()) else {
            return Ok(None);
        };
        if entry.layout_number() == 0 {
            return extension.describe(entry).map(Some);
        }
        let layout = self.get(entry.layout_number(), control)?;
        Ok(Some(entry.meta(layout.clone(), Some(extension.reserved()))))
    }

    fn get(&self, number: u16, control: &Control) -> Result<&Arc<FrameLayout>, MetaError> {
        let id = LayoutId::new(number);
        let row = id.and_then(|id| Some((id, self.0.get(id.index())?)));
        let (id, checked) = row.ok_or(MetaError("a layout that there cannot be"))?;
        // The row was written before the entry that refers to it.
        let check = || FrameLayout::decode(&control.layout(id)).map(Arc::new);
        checked.get_or_init(check).as_ref().map_err(|error| *error)
    }
}
