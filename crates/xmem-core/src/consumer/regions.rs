// SPDX-License-Identifier: MPL-2.0

//! The mapped regions of a connection. They are mapped when the producer sends them, and unmapped when it retires them.

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::io;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, Weak};

use xmem_shm::abi::layout::REGIONS_LET_GO;
use xmem_shm::abi::wire::ToProducer;
use xmem_shm::fault::{self, Point};
use xmem_shm::lock::lock;
use xmem_shm::os::clock::Deadline;
use xmem_shm::sync::{AtomicU32, Ordering, fence};

use super::connection::Connection;
use crate::cancel::Canceller;
use crate::error::{ReceiveError, RegionError};
use crate::region::{Imported, RegionView, Ticket, device};

/// The maximum number of mapped regions. A process can have 65,530 mappings, and the program needs some of them.
const MAX_REGIONS: usize = 8192;
/// The maximum number of regions that are requested at the same time.
const MAX_ASKED: usize = 64;

enum Answer {
    Ready(Arc<RegionView>),
    /// The region does not exist, or cannot be trusted.
    Gone,
    /// The system cannot map it now.
    Refused(RegionError),
}

impl Answer {
    /// A flag that is set when the region's device memory is closed, if its producer must wait for that.
    fn closing(&self) -> Option<Arc<AtomicBool>> {
        match self {
            Self::Ready(view) => view.cuda()?.closing(),
            Self::Gone | Self::Refused(_) => None,
        }
    }
}

/// The request for a DMA buffer.
struct DmabufAsked {
    region: u32,
    /// Weak, because a retired region must be unmapped.
    view: Weak<RegionView>,
    bytes: Range<usize>,
    /// Why the producer refused it.
    refused: Option<String>,
}

/// The size is bounded, even if a producer sends other messages.
#[derive(Default)]
struct State {
    answers: BTreeMap<u32, Answer>,
    /// Regions that were requested and not answered yet, newest first.
    asked: VecDeque<u32>,
    dmabuf: Option<DmabufAsked>,
}

impl State {
    fn ask_for(&mut self, id: u32) {
        if !self.asked.contains(&id) {
            self.asked.push_front(id);
            self.asked.truncate(MAX_ASKED);
        }
    }

    /// A request that was not answered in time stays, so that a caller that polls gets the answer in its next call.
    fn ask_for_dmabuf(&mut self, region: u32, view: &Arc<RegionView>, bytes: &Range<usize>) {
        let known = self.dmabuf.as_ref();
        if known.is_none_or(|it| (it.region, &it.bytes) != (region, bytes)) {
            self.dmabuf = Some(DmabufAsked {
                region,
                view: Arc::downgrade(view),
                bytes: bytes.clone(),
                refused: None,
            });
        }
    }

    fn is_asked(&self, id: u32) -> bool {
        self.asked.contains(&id)
    }

    fn answer(&mut self, id: u32, answer: Answer) {
        self.asked.retain(|asked| *asked != id);
        if self.answers.len() < MAX_REGIONS {
            self.answers.insert(id, answer);
        }
    }

    /// The answer for a region. A failure is removed, so that the region is requested again when it is needed.
    fn find(&mut self, id: u32) -> Option<Result<Option<Arc<RegionView>>, ReceiveError>> {
        if let Answer::Ready(view) = self.answers.get(&id)? {
            return Some(Ok(Some(view.clone())));
        }
        self.take_failure(id)
    }

    #[cold]
    fn take_failure(&mut self, id: u32) -> Option<Result<Option<Arc<RegionView>>, ReceiveError>> {
        match self.answers.remove(&id)? {
            Answer::Refused(error) => Some(Err(ReceiveError::Region(error))),
            Answer::Gone | Answer::Ready(_) => Some(Ok(None)),
        }
    }
}

/// A report to the producer that is delayed until device memory is closed.
#[derive(Default)]
struct Closing {
    /// The version of the list of regions up to which retired regions are unmapped.
    version: u64,
    /// A flag for each region that is still open. It is set when the region is closed.
    closed: Vec<Arc<AtomicBool>>,
}

/// The regions of one connection.
pub(crate) struct MappedRegions {
    connection: Arc<Connection>,
    state: Mutex<State>,
    /// The version of the list of regions at the last `sweep`.
    swept: AtomicU32,
    /// Held while retired regions are unmapped.
    unmapping: Mutex<()>,
    closing: Mutex<Closing>,
}

impl MappedRegions {
    pub(super) fn new(connection: &Arc<Connection>) -> Self {
        Self {
            connection: connection.clone(),
            state: Mutex::default(),
            swept: AtomicU32::new(connection.control().regions_version()),
            unmapping: Mutex::default(),
            closing: Mutex::default(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// The mapped region with this ID. It is requested from the producer at its first use. `None`: it is retired, or the
    /// producer of a live pool is gone.
    pub(crate) fn get(
        &self,
        id: u32,
        deadline: Deadline,
        cancel: &Canceller,
    ) -> Result<Option<Arc<RegionView>>, ReceiveError> {
        let found = self.lock().find(id);
        match found {
            Some(found) => found,
            None => self.ask(id, deadline, cancel),
        }
    }

    #[cold]
    fn ask(
        &self,
        id: u32,
        deadline: Deadline,
        cancel: &Canceller,
    ) -> Result<Option<Arc<RegionView>>, ReceiveError> {
        let question = ToProducer::GetRegion { id };
        let answer = self.connection.ask(&question, deadline, cancel, || {
            let mut state = self.lock();
            let found = state.find(id);
            if found.is_none() {
                state.ask_for(id);
            }
            found
        })?;
        answer.unwrap_or(Ok(None))
    }

    /// Gets the DMA buffer of bytes of a region, at their first use from the producer, and leaves it to the view. The caller holds
    /// a frame there. `false`: the producer of a live pool is gone.
    pub(super) fn get_dmabuf(
        &self,
        region: u32,
        view: &Arc<RegionView>,
        bytes: &Range<usize>,
        deadline: Deadline,
        cancel: &Canceller,
    ) -> Result<bool, ReceiveError> {
        if view.dmabuf(bytes).is_some() {
            return Ok(true);
        }
        let question = ToProducer::GetDmabuf {
            region,
            offset: bytes.start as u64,
        };
        self.lock().ask_for_dmabuf(region, view, bytes);
        let answer = self.connection.ask(&question, deadline, cancel, || {
            if view.dmabuf(bytes).is_some() {
                return Some(Ok(true));
            }
            let refused = self.lock().dmabuf.as_mut()?.refused.take()?;
            Some(Err(ReceiveError::NoDmabuf(refused)))
        })?;
        answer.unwrap_or(Ok(false))
    }

    /// Keeps a requested DMA buffer. An answer to an earlier request has no effect.
    pub(super) fn keep_dmabuf(&self, region: u32, start: u64, fd: Option<OwnedFd>) {
        let memory = fd.and_then(|fd| Imported::new(fd, 1).ok());
        let memory = memory.filter(Imported::is_dmabuf);
        let mut state = self.lock();
        let Some(asked) = state.dmabuf.as_mut().filter(|it| it.region == region) else {
            return;
        };
        match (memory, usize::try_from(start)) {
            (Some(memory), Ok(start)) => {
                let view = asked.view.upgrade();
                if view.is_none_or(|view| view.keep_dmabuf(start, memory, &asked.bytes)) {
                    state.dmabuf = None;
                }
            }
            _ => asked.refused = Some("what its producer sent is no DMA buffer".to_owned()),
        }
    }

    /// Notes why the producer does not send a DMA buffer.
    pub(super) fn refuse_dmabuf(&self, region: u32, reason: String) {
        let mut state = self.lock();
        if let Some(asked) = state.dmabuf.as_mut().filter(|it| it.region == region) {
            asked.refused = Some(reason);
        }
    }

    /// Maps a region that was requested, or that the producer sends because its pool ends. `ticket`: `None` if the producer's message
    /// has none.
    pub(super) fn map(self: &Arc<Self>, id: u32, ticket: Option<Ticket<OwnedFd>>, len: u64) {
        let state = self.lock();
        let is_new = !state.answers.contains_key(&id) && self.is_listed(id);
        if !state.is_asked(id) && !is_new {
            return;
        }
        drop(state);
        let view = match (ticket, usize::try_from(len)) {
            (Some(ticket), Ok(len)) if len > 0 => self.open(ticket, len),
            _ => Err(RegionError::Untrusted("the producer's answer is invalid")),
        };
        fault::point(Point::RegionMapped);
        if let Err(error) = &view {
            log::warn!(
                "pool {:?}: region {id} cannot be used: {error}",
                self.connection.pool_name()
            );
        }
        let answer = match view {
            Ok(view) => Answer::Ready(Arc::new(view)),
            // The segment's name is removed when the producer retires it.
            Err(RegionError::System(it)) if it.error.kind() == io::ErrorKind::NotFound => {
                Answer::Gone
            }
            Err(error @ RegionError::System(_)) => Answer::Refused(error),
            Err(_) => Answer::Gone,
        };
        let mut state = self.lock();
        // The producer may have retired it while the answer was on its way. Then it may already know that this consumer has
        // unmapped all regions up to that version.
        let answer = if self.is_listed(id) {
            answer
        } else {
            Answer::Gone
        };
        state.answer(id, answer);
    }

    /// Whether the pool has this region.
    fn is_listed(&self, id: u32) -> bool {
        let mut ids = self.connection.control().region_ids();
        ids.any(|other| other == id)
    }

    /// Maps a region.
    fn open(
        self: &Arc<Self>,
        ticket: Ticket<OwnedFd>,
        len: usize,
    ) -> Result<RegionView, RegionError> {
        let shape = self.connection.control().constants().shape;
        let most = shape.max_regions().min(MAX_REGIONS);
        if self.lock().answers.len() >= most {
            self.unmap_retired();
            if self.lock().answers.len() >= most {
                return Err(RegionError::Untrusted("the pool has too many regions"));
            }
        }
        RegionView::open(ticket, len)
    }

    /// Handles the message that the producer does not have a region: an answer, or the notification that it was retired.
    pub(super) fn retired(self: &Arc<Self>, id: u32) {
        let mut state = self.lock();
        if state.is_asked(id) {
            state.answer(id, Answer::Gone);
        }
        drop(state);
        self.unmap_retired();
    }

    /// Unmaps retired regions if the list of regions changed. Only the consumer's own thread calls this, while it waits for no
    /// answer.
    #[inline]
    pub(super) fn sweep(self: &Arc<Self>) {
        let version = self.connection.control().regions_version();
        if version != self.swept.load(Ordering::Relaxed) {
            self.sweep_now();
        }
    }

    #[cold]
    fn sweep_now(self: &Arc<Self>) {
        let version = self.unmap_retired();
        self.lock()
            .answers
            .retain(|_, answer| matches!(answer, Answer::Ready(_)));
        self.swept.store(version, Ordering::Relaxed);
    }

    /// Unmaps retired regions and reports that. Returns the version of the list of regions that it read.
    fn unmap_retired(self: &Arc<Self>) -> u32 {
        // Serialised, because the last report must be the newest.
        let _unmapping = lock(&self.unmapping);
        let control = self.connection.control();
        let mut state = self.lock();
        let version = control.regions_version();
        let ids: HashSet<u32> = control.region_ids().collect();
        let retired: Vec<Answer> = state
            .answers
            .extract_if(.., |id, answer| {
                matches!(answer, Answer::Ready(_)) && !ids.contains(id)
            })
            .map(|(_, answer)| answer)
            .collect();
        drop(state);
        self.unmap(retired, version.into(), Point::RegionsLetGo);
        // Pairs with the fence of a producer that begins to wait: either this thread sees that it waits, or the producer sees
        // the report.
        fence(Ordering::SeqCst);
        self.connection.notify_release(false);
        version
    }

    /// Unmaps all regions, when the consumer leaves. Frames keep the regions that they use.
    pub(super) fn unmap_all(self: &Arc<Self>) {
        let answers = std::mem::take(&mut self.lock().answers);
        self.unmap(
            answers.into_values().collect(),
            REGIONS_LET_GO,
            Point::LeaveLetGo,
        );
    }

    fn unmap(self: &Arc<Self>, answers: Vec<Answer>, version: u64, unmapped: Point) {
        let closing = answers.iter().filter_map(Answer::closing).collect();
        // Without the lock, and before the producer is notified.
        drop(answers);
        fault::point(unmapped);
        self.report(version, closing);
    }

    /// Reports the version up to which retired regions are unmapped. If their device memory is still open, reports when it is
    /// closed.
    fn report(self: &Arc<Self>, version: u64, closed: Vec<Arc<AtomicBool>>) {
        let had_device_memory = !closed.is_empty();
        let mut closing = lock(&self.closing);
        let is_waited_for = !closing.closed.is_empty();
        let open = |closed: &Arc<AtomicBool>| !closed.load(Ordering::Acquire);
        closing.closed.extend(closed.into_iter().filter(open));
        closing.version = version;
        if is_waited_for {
            return;
        }
        let waits = !closing.closed.is_empty();
        drop(closing);
        if waits {
            let regions = self.clone();
            return device::until(move || regions.report_closed());
        }
        self.store_report(version);
        // As in `report_closed`. The memory was closed before the producer had to wait, or was never opened.
        if had_device_memory {
            self.connection.link().notify_producer();
        }
    }

    fn store_report(&self, version: u64) {
        let seen = self.connection.page().regions_seen();
        seen.store(version, Ordering::Release);
        fault::point(Point::RegionsSeenStored);
    }

    /// Reports if all device memory is closed. Returns whether it is.
    fn report_closed(&self) -> bool {
        let mut closing = lock(&self.closing);
        closing
            .closed
            .retain(|closed| !closed.load(Ordering::Acquire));
        if !closing.closed.is_empty() {
            return false;
        }
        if self.connection.is_of_this_process() {
            // Under the lock, so that no newer report is overwritten.
            self.store_report(closing.version);
            drop(closing);
            // The memory's owner may wait for this before it frees the memory.
            self.connection.link().notify_producer();
        }
        true
    }
}
