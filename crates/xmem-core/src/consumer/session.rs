// SPDX-License-Identifier: MPL-2.0

//! A connection to a producer: what was mapped, and what came over the socket.
//!
//! It belongs to the frames as much as to the consumer: it lives until the last of them is gone.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU32};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::held::HeldTable;
use crate::cancel::{Bell, Canceller, Deadline, Wake};
use crate::error::ReceiveError;
use crate::layout::{CURSOR_LEFT, Control, LeasePage, REGIONS_LET_GO};
use crate::os::cred;
use crate::os::fork::{KeptFromChildren, ProcessId};
use crate::os::socket;
use crate::region::{RegionView, Ticket};
use crate::sealed;
use crate::stats::ReceiveStats;
use crate::sticky::{MAX_STICKY_SIZE, Sticky};
use crate::sync::{Ordering, fence};
use crate::wire::{MAX_MESSAGE, RegionKind, ToConsumer, ToProducer};

/// How long the owner of a pool may take to answer where the caller has set no time.
pub(crate) const ANSWER_TIME: Duration = Duration::from_secs(10);
/// How often a question is asked again that the producer's full queue may have swallowed.
const ASK_AGAIN: Duration = Duration::from_millis(500);
/// Versions of the sticky state that are kept, besides those that frames have.
const MAX_STICKIES: usize = 64;

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
enum Answer {
    Ready(Arc<RegionView>),
    /// There is no such region, or it cannot be mapped.
    Gone,
}

#[derive(Debug, Default)]
struct Inbox {
    regions: HashMap<u32, Answer>,
    stickies: BTreeMap<u64, Option<Arc<Sticky>>>,
    last_request: u32,
    /// Questions that somebody waits for the answer of, and the answer.
    requests: HashMap<u32, Option<Result<Grant, String>>>,
}

pub(crate) struct Session {
    pub(super) control: Control,
    pub(super) page: LeasePage,
    pub(super) held: HeldTable,
    pub(super) process: ProcessId,
    pub(super) budget: u32,
    pub(super) producer_pid: u32,
    pub(super) peers_may_write: bool,
    _kept: KeptFromChildren,
    socket: OwnedFd,
    pool: String,
    inbox: Mutex<Inbox>,
    /// Rings when something came over the socket.
    bell: Bell,
    lost: AtomicBool,
    /// Up to which version regions were let go of.
    swept: AtomicU32,
    stop: OwnedFd,
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session")
            .field("pool", &self.pool)
            .field("budget", &self.budget)
            .finish_non_exhaustive()
    }
}

/// What the welcome said.
pub(super) struct Terms {
    pub(super) budget: u32,
    pub(super) producer_pid: u32,
    pub(super) peers_may_write: bool,
    pub(super) pool: String,
}

impl Session {
    pub(super) fn start(
        socket: OwnedFd,
        control: Control,
        page: LeasePage,
        terms: Terms,
    ) -> io::Result<(Arc<Self>, JoinHandle<()>)> {
        let session = Arc::new(Self {
            swept: AtomicU32::new(control.regions_version()),
            control,
            page,
            held: HeldTable::default(),
            process: ProcessId::current(),
            budget: terms.budget,
            producer_pid: terms.producer_pid,
            peers_may_write: terms.peers_may_write,
            _kept: KeptFromChildren::new(&socket),
            socket,
            pool: terms.pool,
            inbox: Mutex::default(),
            bell: Bell::default(),
            lost: AtomicBool::new(false),
            stop: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
        });
        let thread = std::thread::Builder::new()
            .name("xmem-consumer".into())
            .spawn({
                let session = session.clone();
                move || session.listen()
            })?;
        Ok((session, thread))
    }

    pub(super) fn pool_name(&self) -> &str {
        &self.pool
    }

    pub(super) fn stats(&self) -> ReceiveStats {
        if !self.process.is_current() {
            // A forked child does not have the page.
            return ReceiveStats {
                budget: self.budget,
                ..ReceiveStats::default()
            };
        }
        ReceiveStats {
            received: self.page.received().load(Ordering::Relaxed),
            missed: self.page.missed().load(Ordering::Relaxed),
            held: self.held.count(),
            budget: self.budget,
            latency_ns: self.page.latency().load(Ordering::Relaxed),
        }
    }

    /// Whether the producer is gone. What it published before is in the ring.
    pub(super) fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Acquire) || self.control.closed()
    }

    fn inbox(&self) -> MutexGuard<'_, Inbox> {
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the producer waits for something to be given back. Look after a full fence.
    pub(super) fn producer_waits(&self) -> bool {
        self.control.waiting().load(Ordering::Relaxed) != 0
    }

    /// Tells the producer that something was given back.
    pub(super) fn ring(&self) {
        // If its queue is full it has still to read what was sent before, and looks at everything then.
        let _ = self.send(&ToProducer::Bell);
    }

    fn send(&self, message: &ToProducer) -> io::Result<()> {
        if !self.process.is_current() {
            // Inherited through fork: the connection is the parent's.
            return Err(io::ErrorKind::NotConnected.into());
        }
        socket::send(&self.socket, &message.encode(), &[])
    }

    /// Says goodbye and ends the control thread. What is held stays held.
    pub(super) fn leave(&self) {
        // The word besides the message: a producer whose queue is full must not wait for us for ever.
        self.page.cursor().store(CURSOR_LEFT, Ordering::Release);
        let _ = self.send(&ToProducer::Leave);
        let _ = rustix::io::write(&self.stop, &1u64.to_ne_bytes());
    }

    /// The control thread: reads what the producer sends until it is gone, or until the consumer leaves.
    fn listen(&self) {
        // A second notice of death: the producer's end of the socket may live on in a forked child.
        let producer = cred::peer(&self.socket)
            .ok()
            .and_then(|peer| Pid::from_raw(peer.pid as i32))
            .and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
        loop {
            let mut fds = vec![
                PollFd::new(&self.stop, PollFlags::IN),
                PollFd::new(&self.socket, PollFlags::IN),
            ];
            fds.extend(producer.as_ref().map(|fd| PollFd::new(fd, PollFlags::IN)));
            if let Err(error) = poll(&mut fds, None)
                && error != rustix::io::Errno::INTR
            {
                break;
            }
            let [stop, socket, rest @ ..] = &fds[..] else {
                break;
            };
            if !stop.revents().is_empty() {
                // Frames keep what they need themselves.
                drop(std::mem::take(&mut self.inbox().regions));
                self.page
                    .regions_seen()
                    .store(REGIONS_LET_GO, Ordering::Release);
                return;
            }
            let dead = rest.iter().any(|fd| !fd.revents().is_empty());
            let spoke = dead || !socket.revents().is_empty();
            // What it said before it died comes first.
            let alive = !spoke || self.read_all();
            if dead || !alive {
                break;
            }
        }
        self.lost.store(true, Ordering::Release);
        self.bell.ring();
        self.page.wake();
    }

    /// Reads all messages there are. `false`: the producer is gone, or makes no sense.
    fn read_all(&self) -> bool {
        let mut buffer = [0; MAX_MESSAGE + 1];
        loop {
            match socket::recv(&self.socket, &mut buffer) {
                Ok(Some(message)) => {
                    let fd = message.fds.into_iter().next();
                    let Some(message) = ToConsumer::decode(message.bytes) else {
                        log::warn!(
                            "pool {:?}: its producer sent a message that makes no sense",
                            self.pool
                        );
                        return false;
                    };
                    self.take_in(message, fd);
                }
                Ok(None) => return false,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return true,
                Err(_) => return false,
            }
        }
    }

    fn take_in(&self, message: ToConsumer, fd: Option<OwnedFd>) {
        match message {
            ToConsumer::Region {
                id,
                len,
                kind,
                name,
                number,
            } => {
                let ticket = match kind {
                    RegionKind::Memfd => fd.map(Ticket::Memfd),
                    RegionKind::PosixShm => Some(Ticket::PosixShm(name.as_str().to_owned())),
                    RegionKind::Heap => Some(Ticket::Heap(number)),
                };
                let view = match (ticket, usize::try_from(len)) {
                    (Some(ticket), Ok(len)) if len > 0 => {
                        RegionView::open(ticket, len, self.peers_may_write)
                            .map_err(|error| error.to_string())
                    }
                    _ => Err("the producer's answer makes no sense".to_owned()),
                };
                let answer = match view {
                    Ok(view) => Answer::Ready(Arc::new(view)),
                    Err(reason) => {
                        log::warn!("pool {:?}: region {id} cannot be used: {reason}", self.pool);
                        Answer::Gone
                    }
                };
                self.inbox().regions.insert(id, answer);
            }
            ToConsumer::NoRegion { id } => {
                self.inbox().regions.insert(id, Answer::Gone);
                // An answer, or the news that a region was retired.
                self.let_go_of_retired();
            }
            ToConsumer::Sticky { version } => {
                let sticky = fd
                    .and_then(|fd| sealed::read(fd, MAX_STICKY_SIZE).ok())
                    .and_then(|bytes| Sticky::decode(&bytes));
                let mut inbox = self.inbox();
                inbox.stickies.insert(version, sticky.map(Arc::new));
                while inbox.stickies.len() > MAX_STICKIES {
                    // The oldest is what comes next, and the newest is what `sticky` tells. One from between is asked
                    // for again when its frame comes.
                    let spare = inbox.stickies.keys().nth_back(1).copied();
                    inbox.stickies.remove(&spare.unwrap_or(version));
                }
                drop(inbox);
                self.page.wake();
            }
            ToConsumer::NoSticky { version } => {
                self.inbox().stickies.insert(version, None);
            }
            ToConsumer::Granted {
                request,
                slot,
                generation,
                region,
                offset,
                len,
            } => {
                let grant = Grant {
                    slot,
                    generation,
                    region,
                    offset,
                    len,
                };
                self.answered(request, Ok(grant));
            }
            ToConsumer::Denied { request, reason } => {
                self.answered(request, Err(reason.as_str().to_owned()));
            }
            // Those belong to the handshake.
            ToConsumer::Welcome { .. } | ToConsumer::Refused { .. } | ToConsumer::Stats => {}
        }
        self.bell.ring();
    }

    /// Asks the producer, and waits for what comes.
    fn ask<T>(
        &self,
        question: &ToProducer,
        repeat: bool,
        deadline: Deadline,
        cancel: &Canceller,
        mut answer: impl FnMut(&mut Inbox) -> Option<T>,
    ) -> Result<T, ReceiveError> {
        if !self.process.is_current() {
            return Err(ReceiveError::Forked);
        }
        let mut asked = false;
        loop {
            let rings = self.bell.rings();
            if let Some(found) = answer(&mut self.inbox()) {
                return Ok(found);
            }
            if self.lost.load(Ordering::Acquire) {
                // What came before the end is in the inbox, and was looked at just now or is not coming.
                return answer(&mut self.inbox()).ok_or(ReceiveError::ProducerLost);
            }
            if cancel.is_cancelled() {
                return Err(ReceiveError::Cancelled);
            }
            if deadline.is_over() {
                return Err(ReceiveError::Timeout);
            }
            if !asked || repeat {
                asked = self.send(question).is_ok() || asked;
            }
            self.bell.wait(rings, deadline.left_up_to(ASK_AGAIN));
        }
    }

    /// The region of this id, mapped. Asked for when it is met for the first time.
    pub(crate) fn region(
        &self,
        id: u32,
        deadline: Deadline,
        cancel: &Canceller,
    ) -> Result<Option<Arc<RegionView>>, ReceiveError> {
        let look = |inbox: &mut Inbox| match inbox.regions.get(&id)? {
            Answer::Ready(view) => Some(Some(view.clone())),
            Answer::Gone => {
                inbox.regions.remove(&id);
                Some(None)
            }
        };
        if let Some(found) = look(&mut self.inbox()) {
            return Ok(found);
        }
        self.ask(&ToProducer::GetRegion { id }, true, deadline, cancel, look)
    }

    /// This version of the sticky state. Asked for only if it was not sent already.
    pub(super) fn sticky(
        &self,
        version: u64,
        deadline: Deadline,
        cancel: &Canceller,
    ) -> Result<Option<Arc<Sticky>>, ReceiveError> {
        let look = |inbox: &mut Inbox| {
            let found = inbox.stickies.get(&version)?.clone();
            // Frames come in order, so no other comes that needs an older one.
            while inbox.stickies.first_key_value()?.0 < &version {
                inbox.stickies.pop_first();
            }
            Some(found)
        };
        if let Some(found) = look(&mut self.inbox()) {
            return Ok(found);
        }
        self.ask(
            &ToProducer::GetSticky { version },
            true,
            deadline,
            cancel,
            look,
        )
    }

    /// The newest sticky state that came.
    pub(super) fn newest_sticky(&self) -> Option<Arc<Sticky>> {
        self.inbox().stickies.values().rev().find_map(Clone::clone)
    }

    /// Asks for the right to write, or says that it is done. `question` gets the number that the answer will have. `Err`
    /// inside: the producer says no, in words.
    pub(crate) fn ask_to_write(
        &self,
        question: impl FnOnce(u32) -> ToProducer,
        cancel: &Canceller,
    ) -> Result<Result<Grant, String>, ReceiveError> {
        let request = {
            let mut inbox = self.inbox();
            inbox.last_request = inbox.last_request.wrapping_add(1);
            let request = inbox.last_request;
            inbox.requests.insert(request, None);
            request
        };
        let deadline = Deadline::after(Some(ANSWER_TIME));
        // Not asked again: each question that arrives is answered with a slot.
        let answer = self.ask(&question(request), false, deadline, cancel, |inbox| {
            inbox.requests.get_mut(&request)?.take()
        });
        // An answer that comes after this is to nobody's question, and given back.
        self.inbox().requests.remove(&request);
        answer
    }

    /// An answer to `ask_to_write`.
    fn answered(&self, request: u32, answer: Result<Grant, String>) {
        let mut inbox = self.inbox();
        if let Some(waiting) = inbox.requests.get_mut(&request) {
            *waiting = Some(answer);
            return;
        }
        drop(inbox);
        if let Ok(grant) = answer {
            let _ = self.say_written(&grant.written(0, None));
        }
    }

    pub(crate) fn say_written(&self, message: &ToProducer) -> io::Result<()> {
        self.send(message)
    }

    /// Lets go of the regions that the producer does not use any more. Called where no answer is waited for.
    pub(super) fn sweep_regions(&self) {
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
    fn let_go_of_retired(&self) -> u32 {
        let mut inbox = self.inbox();
        let version = self.control.regions_version();
        // Pairs with the release store of the version: the ids belong to it, or are newer.
        fence(Ordering::Acquire);
        let ids: Vec<u32> = self
            .control
            .region_ids()
            .iter()
            .map(|id| id.load(Ordering::Relaxed))
            .collect();
        let gone: Vec<Answer> = inbox
            .regions
            .extract_if(|id, answer| matches!(answer, Answer::Ready(_)) && !ids.contains(id))
            .map(|(_, answer)| answer)
            .collect();
        drop(inbox);
        // Unmapped without the lock, and before the producer hears of it.
        drop(gone);
        self.page
            .regions_seen()
            .store(version.into(), Ordering::Release);
        if self.producer_waits() {
            self.ring();
        }
        version
    }
}

impl Wake for Session {
    fn wake(&self) {
        // A forked child does not have the page.
        if !self.process.is_current() {
            return;
        }
        self.bell.ring();
        self.page.wake();
    }
}
