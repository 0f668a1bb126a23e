// SPDX-License-Identifier: MPL-2.0

//! The regions that a connection has mapped: taken when they come, and let go of when the producer has.

use std::collections::HashSet;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
#[cfg(feature = "cuda")]
use std::sync::atomic::AtomicBool;

use xmem_shm::fault::{self, Point};
use xmem_shm::lock::lock;
use xmem_shm::sync::{Ordering, fence};

use super::inbox::{Answer, MAX_REGIONS};
use super::session::Session;
use crate::error::RegionError;
use crate::region::{RegionView, Ticket};

/// What the producer is to be told of retired regions, when their device memory is closed.
#[cfg(feature = "cuda")]
#[derive(Debug, Default)]
pub(super) struct Closing {
    /// Up to which version they are let go of then.
    version: u64,
    /// One of each region. Set when it is closed.
    closed: Vec<Arc<AtomicBool>>,
}

impl Session {
    /// Maps a region that was asked for. `ticket`: `None`, if what was sent is none.
    pub(super) fn take_region(
        self: &Arc<Self>,
        id: u32,
        ticket: Option<Ticket<OwnedFd>>,
        len: u64,
    ) {
        if !self.inbox().is_asked(id) {
            return;
        }
        let view = match (ticket, usize::try_from(len)) {
            (Some(ticket), Ok(len)) if len > 0 => self.open_region(ticket, len),
            _ => Err(RegionError::Untrusted(
                "the producer's answer makes no sense",
            )),
        };
        fault::point(Point::RegionMapped);
        if let Err(error) = &view {
            log::warn!(
                "pool {:?}: region {id} cannot be used: {error}",
                self.pool_name()
            );
        }
        let answer = match view {
            Ok(view) => Answer::Ready(Arc::new(view)),
            // A segment's name is gone as soon as the producer retires it.
            Err(RegionError::System { error, .. }) if error.kind() == io::ErrorKind::NotFound => {
                Answer::Gone
            }
            Err(error @ RegionError::System { .. }) => Answer::Refused(error),
            Err(_) => Answer::Gone,
        };
        let mut inbox = self.inbox();
        // It may have gone while the answer was on its way, and we may have said already that we let go of it.
        let in_use = self.control.region_ids().any(|other| other == id);
        let answer = if in_use { answer } else { Answer::Gone };
        inbox.answer(id, answer);
    }

    /// Maps a region. A pool has not more of them than slots.
    fn open_region(
        self: &Arc<Self>,
        ticket: Ticket<OwnedFd>,
        len: usize,
    ) -> Result<RegionView, RegionError> {
        let slots = self.control.constants().shape.max_slots as usize;
        let most = slots.min(MAX_REGIONS);
        if self.inbox().regions.len() >= most {
            self.let_go_of_retired();
            if self.inbox().regions.len() >= most {
                return Err(RegionError::Untrusted("the pool has too many regions"));
            }
        }
        RegionView::open(ticket, len, self.peers_may_write)
    }

    /// Lets go of the regions that the producer does not use any more. Called where no answer is waited for.
    pub(super) fn sweep_regions(self: &Arc<Self>) {
        let version = self.control.regions_version();
        if version != self.swept.load(Ordering::Relaxed) {
            let version = self.let_go_of_retired();
            self.inbox()
                .regions
                .retain(|_, answer| matches!(answer, Answer::Ready(_)));
            self.swept.store(version, Ordering::Relaxed);
        }
    }

    /// Unmaps retired regions and says so. Returns up to which version.
    pub(super) fn let_go_of_retired(self: &Arc<Self>) -> u32 {
        // One thread after another: what is said last has to be the newest.
        let _sweeping = lock(&self.sweeping);
        let mut inbox = self.inbox();
        let version = self.control.regions_version();
        let ids: HashSet<u32> = self.control.region_ids().collect();
        let gone: Vec<Answer> = inbox
            .regions
            .extract_if(.., |id, answer| {
                matches!(answer, Answer::Ready(_)) && !ids.contains(id)
            })
            .map(|(_, answer)| answer)
            .collect();
        drop(inbox);
        #[cfg(feature = "cuda")]
        let closing = gone.iter().filter_map(Answer::closing).collect();
        // Unmapped without the lock, and before the producer hears of it.
        drop(gone);
        fault::point(Point::RegionsLetGo);
        self.say_let_go(
            version.into(),
            #[cfg(feature = "cuda")]
            closing,
        );
        // Pairs with the fence of a producer that begins to wait: either we see that it waits, or it sees what we said.
        fence(Ordering::SeqCst);
        if self.producer_waits() {
            self.ring();
        }
        version
    }

    /// Says up to which version regions are let go of; of those whose device memory must be closed first, when that is.
    pub(super) fn say_let_go(
        self: &Arc<Self>,
        version: u64,
        #[cfg(feature = "cuda")] closed: Vec<Arc<AtomicBool>>,
    ) {
        #[cfg(feature = "cuda")]
        let lasts = !closed.is_empty();
        #[cfg(feature = "cuda")]
        {
            let mut closing = lock(&self.closing);
            let is_waited_for = !closing.closed.is_empty();
            let open = |closed: &Arc<AtomicBool>| !closed.load(Ordering::Acquire);
            closing.closed.extend(closed.into_iter().filter(open));
            closing.version = version;
            if is_waited_for {
                return;
            }
            if !closing.closed.is_empty() {
                drop(closing);
                let session = self.clone();
                return xmem_cuda::reaper::until(move || session.is_closed());
            }
        }
        self.page.regions_seen().store(version, Ordering::Release);
        fault::point(Point::RegionsSeenStored);
        // As in `is_closed`: it was closed before anybody had to wait, or was never opened.
        #[cfg(feature = "cuda")]
        if lasts {
            self.ring();
        }
    }

    /// Whether all device memory is closed that was to be. Then the producer is told.
    #[cfg(feature = "cuda")]
    fn is_closed(&self) -> bool {
        let mut closing = lock(&self.closing);
        closing
            .closed
            .retain(|closed| !closed.load(Ordering::Acquire));
        if !closing.closed.is_empty() {
            return false;
        }
        if self.process.is_current() {
            self.page
                .regions_seen()
                .store(closing.version, Ordering::Release);
            fault::point(Point::RegionsSeenStored);
            drop(closing);
            // Its owner may wait for this to free it.
            self.ring();
        }
        true
    }
}
