// SPDX-License-Identifier: MPL-2.0

//! The versions of the sticky state (caps and so on) that the producer sent.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use xmem_shm::abi::limits::MAX_NAMED_SIZE;
use xmem_shm::abi::named::Sticky;
use xmem_shm::abi::wire::ToProducer;
use xmem_shm::lock::lock;
use xmem_shm::os::clock::Deadline;

use super::link::{ASK_AGAIN, Link};
use crate::cancel::Canceller;
use crate::error::ReceiveError;

/// The maximum number of versions that are kept besides those of frames, and their maximum size in encoded form. A producer has
/// the same limits.
const MAX_STICKIES: usize = 64;
const MAX_STICKY_BYTES: usize = 4 * MAX_NAMED_SIZE;

/// A version, and its size in bytes. `None`: the producer no longer has it, or it is invalid.
struct Version(Option<Arc<Sticky>>, usize);

#[derive(Default)]
pub(super) struct Versions {
    known: BTreeMap<u64, Version>,
    /// The version of the last frame. Most frames have the version of the previous one.
    reached: Option<(u64, Arc<Sticky>)>,
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
        if let Some((reached, sticky)) = &self.reached
            && *reached == number
        {
            return Some(Some(sticky.clone()));
        }
        self.reach_next(number)
    }

    #[cold]
    fn reach_next(&mut self, number: u64) -> Option<Option<Arc<Sticky>>> {
        let found = self.known.get(&number)?.0.clone();
        while self.known.first_key_value()?.0 < &number {
            self.known.pop_first();
        }
        self.reached = found.clone().map(|sticky| (number, sticky));
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
