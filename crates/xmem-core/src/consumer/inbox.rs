// SPDX-License-Identifier: MPL-2.0

//! What came over the socket, for whoever asked for it.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
#[cfg(feature = "cuda")]
use std::sync::atomic::AtomicBool;

use xmem_shm::abi::limits::MAX_NAMED_SIZE;
use xmem_shm::abi::named::Sticky;
use xmem_shm::abi::wire::ToProducer;

use crate::error::RegionError;
use crate::region::RegionView;

/// Versions of the sticky state that are kept, besides those that frames have, and their encoded bytes: as many as a
/// producer keeps.
const MAX_STICKIES: usize = 64;
const MAX_STICKY_BYTES: usize = 4 * MAX_NAMED_SIZE;
/// Regions that are mapped, at the most. A process may have 65,530 mappings, and not all of them are ours.
pub(super) const MAX_REGIONS: usize = 8192;
/// Questions for regions that an answer is taken to.
const MAX_ASKED: usize = 64;

/// The right to write a slot, as the producer granted it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Grant {
    pub(crate) slot: u32,
    pub(crate) generation: u32,
    pub(crate) region: u32,
    pub(crate) offset: u64,
    pub(crate) len: u64,
}

impl Grant {
    /// The message that the slot is written: publish it for so many readers and with so many bytes, or take it back.
    pub(crate) fn written(&self, request: u32, publish: Option<(u32, u64)>) -> ToProducer {
        let (keep, size) = publish.unwrap_or_default();
        ToProducer::Written {
            request,
            slot: self.slot,
            generation: self.generation,
            publish: publish.is_some(),
            keep,
            size,
        }
    }
}

#[derive(Debug)]
pub(super) enum Answer {
    Ready(Arc<RegionView>),
    /// There is no such region, or none that can be trusted.
    Gone,
    /// The system refuses to map it now.
    Refused(RegionError),
}

impl Answer {
    /// Is set when the device memory of the region is closed, if its producer has to wait for that.
    #[cfg(feature = "cuda")]
    pub(super) fn closing(&self) -> Option<Arc<AtomicBool>> {
        match self {
            Self::Ready(view) => {
                let cuda = view.cuda()?;
                cuda.imports.closing(cuda.header())
            }
            _ => None,
        }
    }
}

/// A version of the sticky state, and how long it is in bytes. `None`: it is gone, or makes no sense.
#[derive(Debug)]
pub(super) struct Version(pub(super) Option<Arc<Sticky>>, pub(super) usize);

/// What came over the socket. Nothing in it grows with what a producer sends.
#[derive(Debug, Default)]
pub(super) struct Inbox {
    pub(super) regions: BTreeMap<u32, Answer>,
    /// Regions that were asked for, and no answer came yet. The oldest questions are forgotten.
    asked: VecDeque<u32>,
    pub(super) stickies: BTreeMap<u64, Version>,
    pub(super) last_request: u32,
    /// Questions that somebody waits for the answer of, and the answer.
    pub(super) requests: BTreeMap<u32, Option<Result<Grant, String>>>,
    /// It has its place in the stream.
    pub(super) arrived: bool,
}

impl Inbox {
    pub(super) fn ask_for(&mut self, region: u32) {
        if !self.asked.contains(&region) {
            self.asked.push_front(region);
            self.asked.truncate(MAX_ASKED);
        }
    }

    /// Whether this is the answer to a question for a region.
    pub(super) fn is_asked(&self, region: u32) -> bool {
        self.asked.contains(&region)
    }

    pub(super) fn answer(&mut self, region: u32, answer: Answer) {
        self.asked.retain(|asked| *asked != region);
        if self.regions.len() < MAX_REGIONS {
            self.regions.insert(region, answer);
        }
    }

    pub(super) fn keep_sticky(&mut self, number: u64, version: Version) {
        self.stickies.insert(number, version);
        while self.stickies.len() > MAX_STICKIES || self.sticky_bytes() > MAX_STICKY_BYTES {
            // The oldest is what comes next, and the newest is what `sticky` tells. One from between is asked for
            // again when its frame comes.
            let spare = self.stickies.keys().nth_back(1).copied();
            self.stickies.remove(&spare.unwrap_or(number));
        }
    }

    fn sticky_bytes(&self) -> usize {
        self.stickies.values().map(|version| version.1).sum()
    }
}
