// SPDX-License-Identifier: MPL-2.0

//! A connection to a producer: what was mapped, and what came over the socket.
//!
//! It belongs to the frames as much as to the consumer: it lives until the last of them is gone.

use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU32};
use std::sync::{Arc, Mutex, MutexGuard};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use xmem_shm::abi::budget::BudgetLimit;
use xmem_shm::abi::layout::{CURSOR_LEFT, Control, LeasePage, REGIONS_LET_GO};
use xmem_shm::abi::limits::{MAX_NAMED_SIZE, MAX_REQUEST};
use xmem_shm::abi::meta::Text;
use xmem_shm::abi::named::Sticky;
use xmem_shm::abi::wire::{MAX_MESSAGE, MAX_QUEUED, RegionKind, ToConsumer, ToProducer};
use xmem_shm::fault::{self, Point};
use xmem_shm::lock::lock;
use xmem_shm::os::cred;
use xmem_shm::os::eventfd;
use xmem_shm::os::fork::{KeptFromChildren, ProcessId};
use xmem_shm::os::sealed;
use xmem_shm::os::socket;
use xmem_shm::os::thread::Thread;
use xmem_shm::printable::printable;
use xmem_shm::sync::Ordering;

use super::held::HeldTable;
use super::inbox::{Answer, Grant, Inbox, Version};
use super::origin::Origins;
#[cfg(feature = "cuda")]
use super::regions::Closing;
use crate::cancel::{Bell, Wake};
use crate::error::RequestError;
use crate::region::Ticket;
use crate::stats::ReceiveStats;
#[cfg(feature = "cuda")]
use crate::stats::device_words;

/// Messages that are read before the thread looks whether it is to end.
const MESSAGES_PER_TURN: usize = 64;

/// The socket of a connection. The producer takes its end for the end of all that the consumer has.
#[derive(Debug)]
pub(crate) struct Link {
    _kept: KeptFromChildren,
    socket: OwnedFd,
}

pub(crate) struct Session {
    pub(super) control: Control,
    pub(super) page: Arc<LeasePage>,
    /// The same, as devices can write it.
    #[cfg(feature = "cuda")]
    device_page: Mutex<Option<Arc<super::device_page::DevicePage>>>,
    /// How this process came by device memory, as the producer was told.
    device: Mutex<String>,
    #[cfg(feature = "cuda")]
    asked_for_marks: AtomicBool,
    pub(super) held: HeldTable,
    pub(super) process: ProcessId,
    /// How many slots it asked for, and the most that the producer ever lets it hold at once.
    asked: u32,
    pub(super) granted: u32,
    pub(super) warned_of_budget: AtomicBool,
    pub(super) producer_pid: u32,
    pub(super) peers_may_write: bool,
    /// The connection. It outlives the session for as long as device memory is being closed.
    link: Arc<Link>,
    pool: String,
    /// Where the producer's socket is, and under which name this consumer joined.
    pub(super) path: PathBuf,
    pub(super) name: String,
    pub(super) holds_only: bool,
    /// The pools that frames of this one come from.
    pub(super) origins: Origins,
    inbox: Mutex<Inbox>,
    /// Rings when something came over the socket.
    pub(super) bell: Bell,
    pub(super) lost: AtomicBool,
    /// The producer's process. A second notice of death: its end of the socket may live on in a forked child.
    producer: Option<OwnedFd>,
    /// Up to which version regions were let go of.
    pub(super) swept: AtomicU32,
    /// Held by whoever lets go of regions.
    pub(super) sweeping: Mutex<()>,
    #[cfg(feature = "cuda")]
    pub(super) closing: Mutex<Closing>,
    stop: OwnedFd,
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session")
            .field("pool", &self.pool)
            .field("budget", &self.granted)
            .finish_non_exhaustive()
    }
}

/// What the welcome said.
pub(super) struct Terms {
    pub(super) asked: u32,
    pub(super) budget: u32,
    pub(super) producer_pid: u32,
    pub(super) peers_may_write: bool,
    pub(super) pool: String,
    pub(super) path: PathBuf,
    pub(super) name: String,
    pub(super) holds_only: bool,
}

impl Session {
    pub(super) fn start(
        socket: OwnedFd,
        control: Control,
        page: LeasePage,
        terms: Terms,
    ) -> io::Result<(Arc<Self>, Thread)> {
        let producer = cred::peer(&socket)
            .ok()
            .and_then(|peer| Pid::from_raw(peer.pid as i32))
            .and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
        let session = Arc::new(Self {
            producer,
            swept: AtomicU32::new(control.regions_version()),
            sweeping: Mutex::default(),
            #[cfg(feature = "cuda")]
            closing: Mutex::default(),
            control,
            page: Arc::new(page),
            #[cfg(feature = "cuda")]
            device_page: Mutex::default(),
            device: Mutex::default(),
            #[cfg(feature = "cuda")]
            asked_for_marks: AtomicBool::new(false),
            held: HeldTable::default(),
            process: ProcessId::current(),
            asked: terms.asked,
            granted: terms.budget,
            warned_of_budget: AtomicBool::new(false),
            producer_pid: terms.producer_pid,
            peers_may_write: terms.peers_may_write,
            link: Arc::new(Link {
                _kept: KeptFromChildren::new(&socket),
                socket,
            }),
            pool: terms.pool,
            path: terms.path,
            name: terms.name,
            holds_only: terms.holds_only,
            origins: Origins::default(),
            inbox: Mutex::default(),
            bell: Bell::default(),
            lost: AtomicBool::new(false),
            stop: eventfd::new()?,
        });
        let thread = Thread::spawn("xmem-consumer", {
            let session = session.clone();
            move || session.listen()
        })?;
        Ok((session, thread))
    }

    /// Whether this was not inherited through fork.
    pub(crate) fn is_of_this_process(&self) -> bool {
        self.process.is_current()
    }

    pub(super) fn pool_name(&self) -> &str {
        &self.pool
    }

    pub(super) fn producer_uid(&self) -> Option<u32> {
        if !self.process.is_current() {
            return None;
        }
        let peer = cred::peer(&self.link.socket).ok()?;
        (peer.uid != cred::NOBODY).then_some(peer.uid)
    }

    /// How many slots it may hold at once now.
    pub(crate) fn budget(&self) -> u32 {
        // A forked child does not have the memory.
        if self.process.is_current() {
            self.granted.min(self.control.share().most)
        } else {
            self.granted
        }
    }

    /// What keeps it from holding more. A forked child may hold nothing.
    pub(super) fn budget_limit(&self) -> BudgetLimit {
        if !self.process.is_current() {
            return BudgetLimit::Asked;
        }
        let share = self.control.share();
        if share.most < self.granted {
            share.limit
        } else if self.granted < self.asked {
            BudgetLimit::MaxHeld
        } else {
            BudgetLimit::Asked
        }
    }

    pub(super) fn stats(&self) -> ReceiveStats {
        if !self.process.is_current() {
            // A forked child does not have the page.
            return ReceiveStats {
                budget: self.granted,
                ..ReceiveStats::default()
            };
        }
        ReceiveStats {
            received: self.page.received().load(Ordering::Relaxed),
            missed: self.page.missed().load(Ordering::Relaxed),
            held: self.held.count(),
            budget: self.budget(),
            budget_limit: self.budget_limit(),
            latency_ns: self.page.latency().load(Ordering::Relaxed),
        }
    }

    /// Whether the producer is gone. What it published before is in the ring.
    pub(super) fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Acquire) || self.control.closed()
    }

    /// Whether the connection is over, because the producer is gone or has ended it.
    ///
    /// Looks for itself: nobody listens any more when the consumer has left, and its frames may still be held.
    pub(super) fn is_disconnected(&self) -> bool {
        if self.lost.load(Ordering::Acquire) {
            return true;
        }
        if !self.process.is_current() {
            // A forked child has others' descriptors there.
            return false;
        }
        // That the socket was hung up is told without being asked for; what may be read there is not looked at.
        let mut fds = vec![PollFd::new(&self.link.socket, PollFlags::empty())];
        fds.extend(
            self.producer
                .iter()
                .map(|fd| PollFd::new(fd, PollFlags::IN)),
        );
        poll(&mut fds, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
    }

    #[cfg(feature = "cuda")]
    pub(super) fn link(&self) -> &Arc<Link> {
        &self.link
    }

    /// Tells the producer how this process came by device memory.
    #[cfg(feature = "cuda")]
    pub(super) fn say_device(&self, works: bool, how: &str) {
        *lock(&self.device) = device_words(works, how);
        let how = Text::new(how);
        // It is for its figures only.
        let _ = self.send(&ToProducer::Device { works, how });
        fault::point(Point::DeviceSaid);
    }

    /// Has the producer mark frames when devices are done with them. Asked for once, and again if that could not be sent.
    #[cfg(feature = "cuda")]
    pub(super) fn ask_for_marks(&self) {
        if !self.asked_for_marks.swap(true, Ordering::Relaxed)
            && self.send(&ToProducer::MarkReady).is_err()
        {
            self.asked_for_marks.store(false, Ordering::Relaxed);
        }
    }

    #[cfg(feature = "cuda")]
    pub(super) fn device_page(
        &self,
        device: &xmem_cuda::device::Device,
    ) -> Result<Arc<super::device_page::DevicePage>, xmem_cuda::error::CudaError> {
        let mut registered = lock(&self.device_page);
        if let Some(page) = &*registered {
            return Ok(page.clone());
        }
        let page = Arc::new(super::device_page::DevicePage::register(
            &self.page, device,
        )?);
        *registered = Some(page.clone());
        Ok(page)
    }

    pub(super) fn device(&self) -> String {
        if !self.process.is_current() {
            return String::new();
        }
        lock(&self.device).clone()
    }

    pub(super) fn inbox(&self) -> MutexGuard<'_, Inbox> {
        lock(&self.inbox)
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

    pub(crate) fn send(&self, message: &ToProducer) -> io::Result<()> {
        if !self.process.is_current() {
            // Inherited through fork: the connection is the parent's.
            return Err(io::ErrorKind::NotConnected.into());
        }
        socket::send(&self.link.socket, &message.encode(), &[])
    }

    pub(super) fn request(&self, name: &str, data: &[u8]) -> Result<(), RequestError> {
        if !self.process.is_current() {
            return Err(RequestError::Forked);
        }
        if data.len() > MAX_REQUEST {
            return Err(RequestError::TooLarge { size: data.len() });
        }
        let request = ToProducer::Request {
            name: Text::new(name),
            data: data.to_vec(),
        };
        self.send(&request).map_err(|error| match error.kind() {
            io::ErrorKind::WouldBlock => RequestError::Busy,
            _ => RequestError::ProducerLost,
        })
    }

    /// Says goodbye and ends the control thread. What is held stays held.
    pub(super) fn leave(&self) {
        // The word besides the message: a producer whose queue is full must not wait for us for ever.
        self.page.cursor().store(CURSOR_LEFT, Ordering::Release);
        fault::point(Point::LeaveMarked);
        let _ = self.send(&ToProducer::Leave);
        eventfd::ring(&self.stop);
    }

    /// The control thread: reads what the producer sends until it is gone, or until the consumer leaves.
    fn listen(self: &Arc<Self>) {
        loop {
            let mut fds = vec![
                PollFd::new(&self.stop, PollFlags::IN),
                PollFd::new(&self.link.socket, PollFlags::IN),
            ];
            fds.extend(
                self.producer
                    .iter()
                    .map(|fd| PollFd::new(fd, PollFlags::IN)),
            );
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
                let regions = std::mem::take(&mut self.inbox().regions);
                #[cfg(feature = "cuda")]
                let closing = regions.values().filter_map(Answer::closing).collect();
                drop(regions);
                fault::point(Point::LeaveLetGo);
                self.say_let_go(
                    REGIONS_LET_GO,
                    #[cfg(feature = "cuda")]
                    closing,
                );
                fault::point(Point::LeaveDone);
                return;
            }
            let dead = rest.iter().any(|fd| !fd.revents().is_empty());
            let spoke = !socket.revents().is_empty();
            if dead {
                self.read_rest();
                break;
            }
            if spoke && !self.read_some() {
                break;
            }
        }
        self.lost.store(true, Ordering::Release);
        self.bell.ring();
        self.page.wake();
    }

    /// Reads the messages there are, or as many as have their turn. `false`: the producer is gone, or makes no sense.
    fn read_some(self: &Arc<Self>) -> bool {
        let mut buffer = [0; MAX_MESSAGE + 1];
        for _ in 0..MESSAGES_PER_TURN {
            match socket::recv(&self.link.socket, &mut buffer) {
                // What is missing is asked for again.
                Ok(Some(message)) if message.fds_lost => log::warn!(
                    "pool {:?}: no descriptors are left to take what its producer sent: raise RLIMIT_NOFILE",
                    self.pool
                ),
                Ok(Some(message)) => {
                    let fds = message.fds;
                    let Some(message) = ToConsumer::decode(message.bytes) else {
                        log::warn!(
                            "pool {:?}: its producer sent a message that makes no sense",
                            self.pool
                        );
                        return false;
                    };
                    self.take_in(message, fds);
                }
                Ok(None) => return false,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return true,
                Err(_) => return false,
            }
        }
        true
    }

    /// Reads what the producer said before it died. Its queue is bounded, and nothing is added any more.
    fn read_rest(self: &Arc<Self>) {
        for _ in 0..MAX_QUEUED / MESSAGES_PER_TURN {
            if !self.read_some() {
                break;
            }
        }
    }

    fn take_in(self: &Arc<Self>, message: ToConsumer, fds: Vec<OwnedFd>) {
        let mut fds = fds.into_iter();
        let fd = fds.next();
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
                    RegionKind::Imported => fd.map(Ticket::Imported),
                    RegionKind::Cuda => fd.map(|fd| Ticket::Cuda(fd, fds.next())),
                };
                self.take_region(id, ticket, len);
            }
            ToConsumer::NoRegion { id } => {
                // An answer, or the news that a region was retired.
                let mut inbox = self.inbox();
                if inbox.is_asked(id) {
                    inbox.answer(id, Answer::Gone);
                }
                drop(inbox);
                self.let_go_of_retired();
            }
            ToConsumer::Sticky { version } => {
                let bytes = fd.and_then(|fd| sealed::read(fd, MAX_NAMED_SIZE).ok());
                let sticky = bytes.as_deref().and_then(Sticky::decode).map(Arc::new);
                let len = bytes.map_or(0, |bytes| bytes.len());
                fault::point(Point::StickyRead);
                self.inbox().keep_sticky(version, Version(sticky, len));
                self.page.wake();
            }
            ToConsumer::NoSticky { version } => {
                self.inbox().keep_sticky(version, Version(None, 0));
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
                // Regions are mapped for reading only unless the welcome said otherwise.
                let answer = if self.peers_may_write {
                    Ok(grant)
                } else {
                    Err("it granted what it said it never would".to_owned())
                };
                self.answered(request, answer);
            }
            ToConsumer::Origin { pool_id, path } => self.meet_origin(pool_id, path.as_str()),
            ToConsumer::NoOrigin { pool_id } => self.miss_origin(pool_id),
            ToConsumer::Arrived => {
                fault::point(Point::Arrived);
                self.inbox().arrived = true;
            }
            ToConsumer::Denied { request, reason } => {
                self.answered(request, Err(printable(reason.as_str())));
            }
            // Those belong to the handshake.
            ToConsumer::Welcome { .. } | ToConsumer::Refused { .. } | ToConsumer::Stats => {}
        }
        self.bell.ring();
        // A consumer that polls sleeps there until an answer comes.
        self.page.wake();
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
