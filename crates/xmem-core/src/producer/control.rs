// SPDX-License-Identifier: MPL-2.0

//! The control thread: lets consumers in, answers them, and notices when they are gone. No frame passes here.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{AtFlags, CWD, Gid, chownat};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::access::Access;
use super::builder::ConsumerEvent;
use super::peer::{Departure, Peer};
use super::pool::{Claimed, Pool, Wishes};
use crate::consumer::StartFrom;
use crate::error::CreateError;
use crate::layout::{FLAG_CUT_OFF, LeasePage, VERSION};
use crate::meta::{FrameMeta, Text};
use crate::os::clock::monotonic_ns;
use crate::os::cred;
use crate::os::fork::KeptFromChildren;
use crate::os::lock::LockFile;
use crate::os::socket;
use crate::region::Ticket;
use crate::sealed;
use crate::stats::ConsumerStats;
use crate::wire::{MAX_MESSAGE, RegionKind, ToConsumer, ToProducer};

/// How long a connection may take to say what it wants.
const HANDSHAKE_TIME: Duration = Duration::from_secs(2);
/// Connections that have not said yet what they want.
const MAX_PENDING: usize = 64;
/// Messages of one connection that are answered before the others have their turn.
const MESSAGES_PER_TURN: usize = 16;
/// More messages than fit into a socket's queue.
const MAX_QUEUED: usize = 1024;
/// Slots that one peer may be writing at once.
const MAX_WRITING: usize = 8;
/// The largest buffer that a peer may ask for, in bytes: reserving it takes this thread's time.
const MAX_PEER_SIZE: u64 = 1 << 30;
/// How long a pool that is closed answers consumers that have frames to take yet.
const LINGER: Duration = Duration::from_millis(50);

const LISTENER: u64 = 0;
const COMMANDS: u64 = 1;
const FIRST_CONNECTION: u64 = 2;
/// In an event's number: it is about the connection's process, not its socket.
const PROCESS: u64 = 1 << 63;

/// What other threads ask of the control thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Command {
    Stop,
    /// The consumer's page does not count any more; close its connection.
    Disconnect(u64, Departure),
    /// The consumer was given up on; say so.
    TimedOut(u64),
    /// Send the newest sticky state to everybody.
    PushSticky,
    /// The region is retired; say so to who has it, also to those that do not look for frames now.
    RegionGone(u32),
}

#[derive(Debug)]
pub(super) struct Commands {
    queue: Mutex<Vec<Command>>,
    event: OwnedFd,
}

impl Commands {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self {
            queue: Mutex::default(),
            event: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
        })
    }

    pub(super) fn send(&self, command: Command) {
        self.queue
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(command);
        // The only way to fail is a counter that is full, and then the thread is awake anyway.
        let _ = rustix::io::write(&self.event, &1u64.to_ne_bytes());
    }

    fn take(&self) -> Vec<Command> {
        let mut count = [0; 8];
        let _ = rustix::io::read(&self.event, &mut count);
        std::mem::take(&mut *self.queue.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// The pool's socket, and the lock that makes it ours.
#[derive(Debug)]
pub(super) struct Listener {
    _kept: KeptFromChildren,
    socket: OwnedFd,
    path: PathBuf,
    /// Identity of the socket's file, so that only our own is removed.
    inode: Option<(u64, u64)>,
    _lock: LockFile,
}

impl Listener {
    /// Listens at the path, in place of a socket that a killed producer left.
    pub(super) fn bind(path: &Path, lock: LockFile, access: &Access) -> Result<Self, CreateError> {
        let system = |what| move |error| CreateError::System { what, error };
        match std::fs::symlink_metadata(path) {
            Ok(meta) if meta.file_type().is_socket() => {
                // We hold the lock, so no xmem producer listens there. But another program might; only a refused
                // connection says that nobody does.
                let refused = socket::connect_to(path)
                    .is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused);
                if !refused {
                    return Err(CreateError::InUse {
                        pool: path.to_string_lossy().into_owned(),
                        holder: "a program that is no xmem producer, or cannot see the lock file"
                            .into(),
                    });
                }
                std::fs::remove_file(path)
                    .map_err(system("remove the socket that a killed producer left"))?;
            }
            Ok(_) => {
                return Err(CreateError::NotASocket {
                    path: path.to_owned(),
                });
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(system("look for the pool's socket")(error)),
        }
        let socket =
            socket::listen_at(path, access.mode).map_err(system("listen on the pool's socket"))?;
        let listener = Self {
            _kept: KeptFromChildren::new(&socket),
            socket,
            path: path.to_owned(),
            inode: inode(path),
            _lock: lock,
        };
        if let Some(gid) = access.gid() {
            chownat(
                CWD,
                path,
                None,
                Some(Gid::from_raw(gid)),
                AtFlags::SYMLINK_NOFOLLOW,
            )
            .map_err(|error| system("give the pool's socket to its group")(error.into()))?;
        }
        Ok(listener)
    }
}

fn inode(path: &Path) -> Option<(u64, u64)> {
    let meta = std::fs::symlink_metadata(path).ok()?;
    Some((meta.dev(), meta.ino()))
}

impl Drop for Listener {
    fn drop(&mut self) {
        if inode(&self.path) == self.inode {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Starts the control thread.
pub(super) fn spawn(pool: &Arc<Pool>, listener: Listener) -> io::Result<JoinHandle<()>> {
    let epoll = epoll::create(CreateFlags::CLOEXEC)?;
    epoll::add(
        &epoll,
        &listener.socket,
        EventData::new_u64(LISTENER),
        EventFlags::IN,
    )?;
    epoll::add(
        &epoll,
        &pool.commands.event,
        EventData::new_u64(COMMANDS),
        EventFlags::IN,
    )?;
    let thread = ControlThread {
        pool: pool.clone(),
        listener,
        epoll,
        connections: HashMap::new(),
        next: FIRST_CONNECTION,
        spare: File::open("/dev/null").ok(),
    };
    std::thread::Builder::new()
        .name("xmem-producer".into())
        .spawn(move || thread.run())
}

#[derive(Debug)]
enum Stage {
    /// Has not said what it wants.
    Pending(Instant),
    Joined(Arc<Peer>),
    /// A joined one that was told goodbye to, or said goodbye: its leases hold until it closes.
    Leaving(Arc<Peer>),
}

#[derive(Debug)]
struct Connection {
    _kept: KeptFromChildren,
    socket: OwnedFd,
    /// A second notice of death: the socket may live on in a forked child.
    process: Option<OwnedFd>,
    peer: cred::Peer,
    stage: Stage,
    writing: Vec<Claimed>,
    /// The owner has been told that it is not connected any more.
    told: bool,
}

impl Connection {
    fn send(&self, message: &ToConsumer, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        socket::send(&self.socket, &message.encode(), fds)
    }

    fn consumer(&self) -> Option<&Arc<Peer>> {
        match &self.stage {
            Stage::Pending(_) => None,
            Stage::Joined(peer) | Stage::Leaving(peer) => Some(peer),
        }
    }
}

/// What a message means for its connection.
enum Next {
    Stay,
    Close(Departure),
}

struct ControlThread {
    pool: Arc<Pool>,
    listener: Listener,
    epoll: OwnedFd,
    connections: HashMap<u64, Connection>,
    next: u64,
    /// Given up to accept, and so refuse, a connection when there are no descriptors left.
    spare: Option<File>,
}

impl ControlThread {
    fn run(mut self) {
        let mut events = Vec::with_capacity(64);
        loop {
            events.clear();
            let timeout = self.timeout();
            let result = epoll::wait(
                &self.epoll,
                rustix::buffer::spare_capacity(&mut events),
                timeout.as_ref(),
            );
            if let Err(error) = result
                && error != rustix::io::Errno::INTR
            {
                log::error!(
                    "pool {:?}: the control thread cannot wait: {error}",
                    self.pool.name
                );
                break;
            }
            for event in &events {
                if !self.handle(event) {
                    return self.end();
                }
            }
            self.close_late();
        }
        self.end();
    }

    /// Until the first connection is late.
    fn timeout(&self) -> Option<rustix::time::Timespec> {
        let oldest = self
            .connections
            .values()
            .filter_map(|connection| match connection.stage {
                Stage::Pending(since) => Some(since),
                _ => None,
            })
            .min()?;
        let left = (oldest + HANDSHAKE_TIME).saturating_duration_since(Instant::now())
            + Duration::from_millis(1);
        left.try_into().ok()
    }

    fn close_late(&mut self) {
        let late: Vec<u64> = self
            .connections
            .iter()
            .filter(|(_, connection)| {
                matches!(connection.stage, Stage::Pending(since) if since.elapsed() >= HANDSHAKE_TIME)
            })
            .map(|(id, _)| *id)
            .collect();
        for id in late {
            self.close(id, Departure::CutOff);
        }
    }

    /// Returns whether to go on.
    fn handle(&mut self, event: &Event) -> bool {
        match event.data.u64() {
            LISTENER => self.accept(),
            COMMANDS => {
                for command in self.pool.commands.take() {
                    match command {
                        Command::Stop => return false,
                        Command::Disconnect(id, reason) => self.close(id, reason),
                        Command::TimedOut(id) => self.timed_out(id),
                        Command::PushSticky => self.push_sticky(),
                        Command::RegionGone(id) => self.say_gone(id),
                    }
                }
            }
            id if id & PROCESS != 0 => {
                let id = id & !PROCESS;
                self.read_rest(id);
                self.close(id, Departure::Died);
            }
            id => self.read(id),
        }
        true
    }

    /// The pool is closed. Consumers that have frames to take yet may ask for what they need for that.
    fn end(mut self) {
        let _ = epoll::delete(&self.epoll, &self.listener.socket);
        let until = Instant::now() + LINGER;
        let mut events = Vec::with_capacity(64);
        while self.somebody_is_behind() && Instant::now() < until {
            events.clear();
            let turn = Duration::from_millis(5).try_into().ok();
            let _ = epoll::wait(
                &self.epoll,
                rustix::buffer::spare_capacity(&mut events),
                turn.as_ref(),
            );
            for event in &events {
                if event.data.u64() >= FIRST_CONNECTION {
                    self.handle(event);
                }
            }
        }
        let ids: Vec<u64> = self.connections.keys().copied().collect();
        for id in ids {
            self.close(id, Departure::Closed);
        }
    }

    fn somebody_is_behind(&self) -> bool {
        let head = self.pool.control.head();
        self.connections.values().any(|connection| {
            matches!(&connection.stage, Stage::Joined(peer) if peer.cursor().is_some_and(|cursor| cursor < head))
        })
    }

    fn accept(&mut self) {
        for _ in 0..MAX_PENDING {
            match socket::accept(&self.listener.socket) {
                Ok(socket) => self.admit(socket),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) => {
                    log::warn!(
                        "pool {:?}: cannot accept a consumer: {error}",
                        self.pool.name
                    );
                    // Out of descriptors: without this the connection would wait, and wake us, for ever.
                    if self.spare.take().is_some() {
                        drop(socket::accept(&self.listener.socket));
                        self.spare = File::open("/dev/null").ok();
                    } else {
                        self.spare = File::open("/dev/null").ok();
                        std::thread::sleep(Duration::from_millis(10));
                    }
                    return;
                }
            }
        }
    }

    fn admit(&mut self, socket: OwnedFd) {
        let Ok(peer) = cred::peer(&socket) else {
            return;
        };
        if let Err(reason) = self.pool.settings.access.check(&socket, peer) {
            log::warn!("pool {:?}: {reason}", self.pool.name);
            refuse(&socket, &reason);
            return;
        }
        let pending = || {
            self.connections
                .iter()
                .filter_map(|(id, connection)| match connection.stage {
                    Stage::Pending(since) => Some((since, *id)),
                    _ => None,
                })
        };
        if pending().count() >= MAX_PENDING
            && let Some((_, oldest)) = pending().min()
        {
            self.close(oldest, Departure::CutOff);
        }
        let id = self.next;
        self.next += 1;
        if epoll::add(
            &self.epoll,
            &socket,
            EventData::new_u64(id),
            EventFlags::IN | EventFlags::RDHUP,
        )
        .is_err()
        {
            return;
        }
        self.connections.insert(
            id,
            Connection {
                _kept: KeptFromChildren::new(&socket),
                socket,
                process: None,
                peer,
                stage: Stage::Pending(Instant::now()),
                writing: Vec::new(),
                told: false,
            },
        );
    }

    fn read(&mut self, id: u64) {
        let mut buffer = [0; MAX_MESSAGE + 1];
        for _ in 0..MESSAGES_PER_TURN {
            let Some(connection) = self.connections.get(&id) else {
                return;
            };
            // Descriptors that come along are closed at once: consumers have none to send.
            let next = match socket::recv(&connection.socket, &mut buffer) {
                Ok(Some(message)) => self.answer(id, message.bytes),
                Ok(None) => Next::Close(if matches!(connection.stage, Stage::Leaving(_)) {
                    Departure::Left
                } else {
                    Departure::Died
                }),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(_) => Next::Close(Departure::CutOff),
            };
            if let Next::Close(reason) = next {
                return self.close(id, reason);
            }
        }
    }

    /// Reads what a process said before it died. Its queue is bounded, and nothing is added any more.
    fn read_rest(&mut self, id: u64) {
        for _ in 0..MAX_QUEUED / MESSAGES_PER_TURN {
            self.read(id);
        }
    }

    fn answer(&mut self, id: u64, bytes: &[u8]) -> Next {
        let Some(connection) = self.connections.get(&id) else {
            return Next::Stay;
        };
        let message = ToProducer::decode(bytes);
        let result = match (&connection.stage, message) {
            (
                Stage::Pending(_),
                Some(ToProducer::Join {
                    version,
                    max_held,
                    start_from,
                    name,
                }),
            ) if version == VERSION => {
                return self.join(id, max_held, start_from, name.as_str());
            }
            (Stage::Pending(_), Some(ToProducer::Query { version })) if version == VERSION => {
                let stats = serde_json::to_vec(&self.pool.stats()).unwrap_or_default();
                if let Ok(fd) = sealed::write("xmem-stats", &stats) {
                    let _ = connection.send(&ToConsumer::Stats, &[fd.as_fd()]);
                }
                return Next::Close(Departure::Left);
            }
            (Stage::Pending(_), _) => {
                let reason = match ToProducer::version_of(bytes) {
                    Some(version) => format!(
                        "it speaks protocol version {VERSION} and this consumer version {version}: update the older one"
                    ),
                    None => "that was not an xmem consumer's first message".into(),
                };
                log::warn!(
                    "pool {:?}: refusing process {}: {reason}",
                    self.pool.name,
                    connection.peer.pid
                );
                refuse(&connection.socket, &reason);
                return Next::Close(Departure::CutOff);
            }
            (Stage::Joined(_) | Stage::Leaving(_), Some(ToProducer::Bell)) => {
                self.pool.on_bell();
                Ok(())
            }
            (Stage::Joined(_) | Stage::Leaving(_), Some(ToProducer::GetRegion { id: region })) => {
                self.send_region(id, connection, region)
            }
            (Stage::Joined(_) | Stage::Leaving(_), Some(ToProducer::GetSticky { version })) => {
                self.send_sticky(connection, version)
            }
            (Stage::Joined(peer), Some(ToProducer::Leave)) => {
                let peer = peer.clone();
                peer.leave();
                if let Some(connection) = self.connections.get_mut(&id) {
                    connection.stage = Stage::Leaving(peer);
                }
                self.pool.on_bell();
                Ok(())
            }
            (Stage::Leaving(_), Some(ToProducer::Leave)) => Ok(()),
            (Stage::Joined(_), Some(ToProducer::AcquireSlot { request, size }))
                if self.pool.settings.peers_may_write =>
            {
                return self.grant(id, request, |pool| {
                    if size > MAX_PEER_SIZE {
                        return Err(format!(
                            "a buffer for others may have {MAX_PEER_SIZE} bytes at most"
                        ));
                    }
                    pool.acquire(size as usize)
                        .map_err(|error| error.to_string())
                });
            }
            (Stage::Joined(_), Some(ToProducer::AcquireIndex { request, slot }))
                if self.pool.settings.peers_may_write =>
            {
                return self.grant(id, request, |pool| {
                    pool.acquire_index(slot).ok_or_else(|| {
                        format!("slot {slot} is in use, or there is none of that number")
                    })
                });
            }
            (
                Stage::Joined(_),
                Some(
                    ToProducer::AcquireSlot { request, .. }
                    | ToProducer::AcquireIndex { request, .. },
                ),
            ) => connection.send(
                &ToConsumer::Denied {
                    request,
                    reason: "this pool's producer lets nobody else write (peers_may_write)".into(),
                },
                &[],
            ),
            (
                Stage::Joined(_) | Stage::Leaving(_),
                Some(ToProducer::Written {
                    request,
                    slot,
                    generation,
                    publish,
                    keep,
                    size,
                }),
            ) => {
                return self.written(
                    id,
                    request,
                    slot,
                    generation,
                    publish.then_some((keep, size)),
                );
            }
            (Stage::Joined(peer) | Stage::Leaving(peer), _) => {
                log::warn!(
                    "pool {:?}: consumer {} sent a message that makes no sense",
                    self.pool.name,
                    peer.id
                );
                return Next::Close(Departure::CutOff);
            }
        };
        // A peer that does not read gets no answer, and asks again; what else is wrong shows as a hang-up.
        if let Err(error) = result {
            log::debug!("pool {:?}: an answer was not sent: {error}", self.pool.name);
        }
        Next::Stay
    }

    fn join(&mut self, id: u64, max_held: u32, start_from: StartFrom, name: &str) -> Next {
        let pool = self.pool.clone();
        if pool.closed.load(Ordering::Acquire) {
            // Not refused: the next producer may be welcome, so the consumer is to try again.
            return Next::Close(Departure::Closed);
        }
        let Some(connection) = self.connections.get_mut(&id) else {
            return Next::Stay;
        };
        let welcome = match pool.welcome(id, connection.peer, max_held, start_from, name) {
            Ok(welcome) => welcome,
            Err(reason) => {
                log::warn!(
                    "pool {:?}: refusing process {}: {reason}",
                    pool.name,
                    connection.peer.pid
                );
                refuse(&connection.socket, &reason);
                return Next::Close(Departure::CutOff);
            }
        };
        let message = ToConsumer::Welcome {
            version: VERSION,
            id,
            budget: welcome.peer.budget,
            pid: std::process::id(),
            peers_may_write: pool.settings.peers_may_write,
            pool: Text::new(&pool.name),
        };
        connection.stage = Stage::Joined(welcome.peer.clone());
        // The page is in the list already (`welcome`): a consumer that could hold before its page counts would tear.
        let fds = [pool.control_fd.as_fd(), welcome.page_fd.as_fd()];
        if connection.send(&message, &fds).is_err() {
            // Nobody was told that it came.
            connection.told = true;
            return Next::Close(Departure::Died);
        }
        let process = Pid::from_raw(connection.peer.pid as i32)
            .and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
        if let Some(process) = process
            && epoll::add(
                &self.epoll,
                &process,
                EventData::new_u64(id | PROCESS),
                EventFlags::IN,
            )
            .is_ok()
        {
            connection.process = Some(process);
        }
        if let Some(connection) = self.connections.get(&id) {
            let version = pool.lock().sticky.version();
            let _ = self.send_sticky(connection, version);
        }
        self.tell(ConsumerEvent::Connected, &welcome.peer);
        Next::Stay
    }

    fn say_gone(&self, id: u32) {
        let consumers = self.pool.lock().regions.mapped_by(id);
        for consumer in consumers {
            if let Some(connection) = self.connections.get(&consumer) {
                // Who does not read now notices when it looks for the next frame.
                let _ = connection.send(&ToConsumer::NoRegion { id }, &[]);
            }
        }
    }

    fn send_region(&self, consumer: u64, connection: &Connection, id: u32) -> io::Result<()> {
        let region = self.pool.lock().regions.send(id, consumer);
        let Some(region) = region else {
            return connection.send(&ToConsumer::NoRegion { id }, &[]);
        };
        let message = |kind, name: &str, number| ToConsumer::Region {
            id,
            len: region.len() as u64,
            kind,
            name: Text::new(name),
            number,
        };
        match region.ticket() {
            Ticket::Memfd(fd) => connection.send(&message(RegionKind::Memfd, "", 0), &[fd]),
            Ticket::PosixShm(name) => {
                connection.send(&message(RegionKind::PosixShm, &name, 0), &[])
            }
            Ticket::Heap(number) => connection.send(&message(RegionKind::Heap, "", number), &[]),
        }
    }

    fn send_sticky(&self, connection: &Connection, version: u64) -> io::Result<()> {
        let fd = self.pool.lock().sticky.get(version);
        match fd {
            Some(fd) => connection.send(&ToConsumer::Sticky { version }, &[fd.as_fd()]),
            None => connection.send(&ToConsumer::NoSticky { version }, &[]),
        }
    }

    fn push_sticky(&self) {
        let version = self.pool.lock().sticky.version();
        for connection in self.connections.values() {
            if matches!(connection.stage, Stage::Joined(_)) {
                // Who does not read now asks for it when it meets it.
                let _ = self.send_sticky(connection, version);
            }
        }
        // Consumers that sleep may wait for the state itself.
        let peers = self.pool.lock().peers.clone();
        for peer in peers.iter() {
            peer.page.wake();
        }
    }

    fn grant(
        &mut self,
        id: u64,
        request: u32,
        claim: impl FnOnce(&Pool) -> Result<Claimed, String>,
    ) -> Next {
        let Some(connection) = self.connections.get_mut(&id) else {
            return Next::Stay;
        };
        let claimed = if connection.writing.len() >= MAX_WRITING {
            Err(format!(
                "this process writes {MAX_WRITING} slots already: publish or drop one first"
            ))
        } else {
            claim(&self.pool)
        };
        let sent = match &claimed {
            Ok(claimed) => connection.send(&granted(request, claimed), &[]),
            Err(reason) => connection.send(
                &ToConsumer::Denied {
                    request,
                    reason: Text::new(reason),
                },
                &[],
            ),
        };
        match (claimed, sent) {
            (Ok(claimed), Ok(())) => connection.writing.push(claimed),
            // It never heard of it.
            (Ok(claimed), Err(_)) => self.pool.abandon(claimed.slot, claimed.word),
            (Err(_), _) => {}
        }
        Next::Stay
    }

    fn written(
        &mut self,
        id: u64,
        request: u32,
        slot: u32,
        generation: u32,
        publish: Option<(u32, u64)>,
    ) -> Next {
        let Some(connection) = self.connections.get_mut(&id) else {
            return Next::Stay;
        };
        let Some(at) = connection
            .writing
            .iter()
            .position(|claimed| claimed.slot == slot && claimed.word.generation() == generation)
        else {
            return Next::Close(Departure::CutOff);
        };
        let claimed = connection.writing.swap_remove(at);
        let published = publish.is_some_and(|(keep, size)| {
            let meta = FrameMeta {
                size,
                ..FrameMeta::default()
            };
            let mut wishes = Wishes {
                hook: None,
                keep: (keep > 0).then_some(keep),
            };
            self.pool.check_payload(&meta, claimed.place).is_ok()
                && self.pool.publish(&claimed, meta, &mut wishes).is_ok()
        });
        let connection = self.connections.get(&id);
        if published {
            // The writer keeps no reference; the count, or the history, keeps the frame.
            self.pool.dereference(claimed.slot);
        } else {
            self.pool.abandon(claimed.slot, claimed.word);
        }
        if let (Some(connection), Some(_)) = (connection, publish) {
            // The writer waits for this before it tells others the slot's number.
            let answer = if published {
                granted(request, &claimed)
            } else {
                ToConsumer::Denied {
                    request,
                    reason: "its size is larger than the slot, or the pool is closed".into(),
                }
            };
            let _ = connection.send(&answer, &[]);
        }
        Next::Stay
    }

    fn timed_out(&mut self, id: u64) {
        let Some(connection) = self.connections.get_mut(&id) else {
            return;
        };
        if let Stage::Joined(peer) = &connection.stage {
            let peer = peer.clone();
            connection.stage = Stage::Leaving(peer.clone());
            connection.told = true;
            self.tell(
                |consumer| ConsumerEvent::Disconnected {
                    consumer,
                    reason: Departure::TimedOut,
                },
                &peer,
            );
        }
    }

    fn close(&mut self, id: u64, reason: Departure) {
        let Some(connection) = self.connections.remove(&id) else {
            return;
        };
        let _ = epoll::delete(&self.epoll, &connection.socket);
        if let Some(process) = &connection.process {
            let _ = epoll::delete(&self.epoll, process);
        }
        if let (Departure::CutOff, Some(peer)) = (reason, connection.consumer()) {
            // So that it knows that what it holds is not safe any more.
            peer.page.flags().fetch_or(FLAG_CUT_OFF, Ordering::Release);
            peer.page.wake();
        }
        let told_already =
            matches!(&connection.stage, Stage::Leaving(_)) && reason == Departure::Died;
        let reason = if told_already {
            Departure::Left
        } else {
            reason
        };
        let peer = connection.consumer().cloned();
        // The figures while its page still counts.
        let event = peer.as_ref().map(|peer| ConsumerEvent::Disconnected {
            consumer: self.pool.consumer_stats(peer, monotonic_ns()),
            reason,
        });
        self.pool.remove_peer(id);
        for claimed in connection.writing {
            self.pool.abandon(claimed.slot, claimed.word);
        }
        drop(connection._kept);
        drop(connection.socket);
        drop(connection.process);
        if let (Some(event), false) = (event, connection.told) {
            self.call(event);
        }
        if let Some(peer) = peer {
            log::info!(
                "pool {:?}: consumer {} ({:?}, process {}) is gone: {reason:?}",
                self.pool.name,
                id,
                peer.name,
                peer.pid
            );
        }
    }

    fn tell(&self, event: impl FnOnce(ConsumerStats) -> ConsumerEvent, peer: &Peer) {
        self.call(event(self.pool.consumer_stats(peer, monotonic_ns())));
    }

    fn call(&self, event: ConsumerEvent) {
        let Some(on_consumer) = &self.pool.settings.on_consumer else {
            return;
        };
        // A panic out there must not end this thread, on which everybody relies.
        if catch_unwind(AssertUnwindSafe(|| on_consumer(event))).is_err() {
            log::error!("pool {:?}: on_consumer panicked", self.pool.name);
        }
    }
}

fn granted(request: u32, claimed: &Claimed) -> ToConsumer {
    ToConsumer::Granted {
        request,
        slot: claimed.slot,
        generation: claimed.word.generation(),
        region: claimed.place.region,
        offset: claimed.place.offset as u64,
        len: claimed.place.len as u64,
    }
}

fn refuse(socket: impl AsFd, reason: &str) {
    let message = ToConsumer::Refused {
        version: VERSION,
        reason: Text::new(reason),
    };
    let _ = socket::send(socket, &message.encode(), &[]);
}

/// What a consumer that may join is given.
pub(super) struct Welcome {
    peer: Arc<Peer>,
    page_fd: OwnedFd,
}

impl Pool {
    /// Lets a consumer in: from here on its page counts. `Err`: why not, in words.
    fn welcome(
        &self,
        id: u64,
        peer: cred::Peer,
        max_held: u32,
        start_from: StartFrom,
        name: &str,
    ) -> Result<Welcome, String> {
        let settings = &self.settings;
        let state = self.lock();
        if state.peers.len() >= settings.max_consumers as usize {
            return Err(format!(
                "{} consumers are connected and that is its max-consumers",
                state.peers.len()
            ));
        }
        let free = settings.max_slots.saturating_sub(state.reserved(settings));
        let budget = max_held
            .min(settings.max_held)
            .min(free.saturating_sub(Peer::reserved(0)));
        if budget == 0 {
            return Err(format!(
                "no slot is left to hold: {} of max-slots {} are promised to others; raise max-slots or lower max-held",
                settings.max_slots - free,
                settings.max_slots
            ));
        }
        drop(state);
        // A page takes a few system calls, so the lock is not held meanwhile. Only this thread lets consumers in, so
        // what was free stays free.
        let (page, page_fd) = LeasePage::create(self.shape())
            .map_err(|error| format!("it cannot make a lease page: {error}"))?;
        let peer = Arc::new(Peer::new(
            id,
            peer.pid,
            peer.uid,
            name.to_owned(),
            budget,
            page,
        ));
        self.add_peer(peer.clone(), start_from);
        Ok(Welcome { peer, page_fd })
    }
}
